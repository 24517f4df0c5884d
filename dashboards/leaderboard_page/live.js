// Puts the page's HTML, as the server wrote it, on screen, and changes only what changed.
//
// Streamlit's own st.html replaces all nodes at every tick: an open list would close, a tooltip vanish, a selection be
// lost. Here a node stays the same node for as long as what it shows stays the same thing; rows that change places
// slide there. The page's own links change the view without loading it anew. It fetches nothing, computes no figure, and trusts the server to have escaped what hosts said.

const roots = new WeakMap();

const keyOf = (node) =>
  node.nodeType !== 1 ? null
    : node.dataset.host ? `${node.nodeName}/${node.dataset.host}`
    : node.dataset.key || node.id || null;

function alike(old, next) {
  return old.nodeType === next.nodeType && old.nodeName === next.nodeName && keyOf(old) === keyOf(next);
}

// what the visitor opened, and where a name was put
const isOurs = (node, name) => name === "open" || (name === "style" && node.classList.contains("label"));

function takeAttributes(old, next) {
  for (const { name } of [...old.attributes]) {
    if (!isOurs(old, name) && !next.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...next.attributes]) {
    if (!isOurs(old, name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

function takeChildren(old, next) {
  const keyed = new Map();
  for (const child of old.childNodes) {
    const key = keyOf(child);
    if (key !== null) keyed.set(key, child);
  }
  let place = old.firstChild;
  for (const wanted of [...next.childNodes]) {
    const key = keyOf(wanted);
    let found = key !== null ? keyed.get(key) : place && alike(place, wanted) ? place : null;
    if (found && !alike(found, wanted)) found = null;
    if (!found) {
      old.insertBefore(wanted, place);
      continue;
    }
    if (found === place) place = place.nextSibling;
    else old.insertBefore(found, place);
    take(found, wanted);
  }
  while (place) {
    const after = place.nextSibling;
    place.remove();
    place = after;
  }
}

function take(old, next) {
  if (old.nodeType !== 1) {
    if (old.nodeValue !== next.nodeValue) old.nodeValue = next.nodeValue;
    return;
  }
  takeAttributes(old, next);
  takeChildren(old, next);
}

// --- rows that slide to their new places ---

const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

function places(root) {
  const found = new Map();
  for (const row of root.querySelectorAll("tr[data-host]")) found.set(row, row.offsetTop);
  return found;
}

function slide(before) {
  if (calm.matches) return;
  for (const [row, top] of before) {
    const way = top - row.offsetTop;
    if (!row.isConnected || Math.abs(way) < 2) continue;
    row.animate([{ transform: `translateY(${way}px)` }, { transform: "none" }], {
      duration: 900, easing: "cubic-bezier(.3,0,.1,1)",
    });
  }
}

// --- names of a scatter's dots: beside the dot where there is room, else farther off at the end of a thin line ---

// A place: the point of the name nearest to its dot, in pixels from there, and which share of the name lies before it.
const PLACES = [[13, 0, 0], [-13, 0, 1], [0, -19, .5], [0, 19, .5], [9, -14, 0], [-9, -14, 1], [9, 14, 0], [-9, 14, 1]];
for (const far of [24, 34, 46, 60, 76, 94, 114, 138, 164, 194, 228]) {
  for (let turn = Math.PI / 24; turn < 2 * Math.PI; turn += Math.PI / 12) {
    PLACES.push([Math.round(far * Math.cos(turn)), Math.round(far * Math.sin(turn)), Math.cos(turn) > 0 ? 0 : 1]);
  }
}
const NEAR = 20;  // pixels; up to there no line is drawn (page.css)
const DOT = 8;  // a dot's radius, with the ground around it
const GRID = 4;  // dots are taken to stand on a grid of so many pixels: names rest while figures change a little
const ROUNDS = 5;
const CROSSED = 30;  // two lines that cross are as bad as a line that is so many pixels longer, a line through a name
const STRUCK = 200;  // as one that is so much longer

const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
const side = (a, b, p) => Math.sign((b.x - a.x) * (p.y - a.y) - (b.y - a.y) * (p.x - a.x));
const around = (a, b) => ({ left: Math.min(a.x, b.x), right: Math.max(a.x, b.x), top: Math.min(a.y, b.y), bottom: Math.max(a.y, b.y) });
const lineOf = (from, to) => ({ from, to, ...around(from, to) });
const cross = (a, b) => meet(a, b) && side(a.from, a.to, b.from) * side(a.from, a.to, b.to) < 0
  && side(b.from, b.to, a.from) * side(b.from, b.to, a.to) < 0;
// Whether a line runs through a box: it crosses a diagonal.
const strikes = (line, { left, right, top, bottom }) => line !== null && meet(line, { left, right, top, bottom })
  && [[top, bottom], [bottom, top]].some(([y, otherY]) => cross(line, lineOf({ x: left, y }, { x: right, y: otherY })));

// The best place for a name among those of the others; null: there is no room.
function choice(dot, found) {
  let [best, least] = [null, Infinity];
  for (const place of dot.places) {
    if (place.cost >= least) break;
    let { cost } = place;
    for (const [other, taken] of found) {
      if (other === dot) continue;
      if (meet(place.box, taken.box)) cost = Infinity;
      else if (place.line && taken.line && cross(place.line, taken.line)) cost += CROSSED;
      else if (strikes(place.line, taken.box) || strikes(taken.line, place.box)) cost += STRUCK;
      if (cost >= least) break;
    }
    if (cost < least) [best, least] = [place, cost];
  }
  return best;
}

function placeNames(plot) {
  const labels = [...plot.querySelectorAll(".dot > .label")];
  for (const label of labels) label.style.cssText = "";
  const [width, height] = [plot.clientWidth, plot.clientHeight];
  let dots = labels.map((label) => {
    const { left, top } = label.parentElement.style;
    const [trueX, trueY] = [parseFloat(left) / 100 * width, parseFloat(top) / 100 * height];
    const [x, y] = [trueX, trueY].map((pixels) => Math.round(pixels / GRID) * GRID);
    const mark = { left: x - DOT, top: y - DOT, right: x + DOT, bottom: y + DOT };
    return { label, x, y, off: [x - trueX, y - trueY], mark, wide: label.offsetWidth + 6, high: label.offsetHeight };
  });
  for (const dot of dots) {
    let [east, south] = [0, 0];  // away from the crowd
    for (const { x, y } of dots) {
      const near = 1 + (dot.x - x) ** 2 + (dot.y - y) ** 2;
      east += (dot.x - x) / near;
      south += (dot.y - y) / near;
    }
    const outwards = Math.atan2(south, east);
    dot.places = PLACES.map(([x, y, before]) => {
      const left = dot.x + x - before * dot.wide;
      const box = { left, right: left + dot.wide, top: dot.y + y - dot.high / 2, bottom: dot.y + y + dot.high / 2 };
      const far = Math.hypot(x, y);
      const line = far > NEAR ? lineOf({ x: dot.x, y: dot.y }, { x: dot.x + x, y: dot.y + y }) : null;
      return { x, y, before, box, line, cost: far + 12 * (1 - Math.cos(Math.atan2(y, x) - outwards)) };
    }).filter(({ box }) => box.left >= 2 && box.right <= width + 12 && box.top >= -6 && box.bottom < height
      && !dots.some((other) => other !== dot && meet(box, other.mark))).sort((a, b) => a.cost - b.cost);
  }
  // Those first in line choose first, and again when all have chosen; who finds no room is first in line of the next round.
  let best = new Map();
  for (let round = 0; round < ROUNDS && best.size < dots.length; round += 1) {
    const found = new Map();
    for (const dot of [...dots, ...dots, ...dots, ...dots]) {
      const place = choice(dot, found);
      if (place) found.set(dot, place);
    }
    if (round === 0 || found.size > best.size) best = found;
    dots = [...dots.filter((dot) => !found.has(dot)), ...dots.filter((dot) => found.has(dot))];
  }
  for (const dot of dots) {
    const [place, [x, y]] = [best.get(dot), dot.off];
    dot.label.style.cssText = place ? `--x:${place.x + x};--y:${place.y + y};--before:${place.before}` : "--shown:none";
  }
}

const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => placeNames(target)));

// --- the data's age goes on by itself, so that figures of a dead server are seen to be old ---

function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return whole % 60 ? `${minutes} min ${whole % 60} s` : `${minutes} min`;
}

function grow(state) {
  for (const age of state.root.querySelectorAll(".age[data-age]")) {
    const seconds = Number(age.dataset.age) + (performance.now() - state.taken) / 1000;
    const late = seconds > Number(age.dataset.stale) ? "stale" : seconds > Number(age.dataset.late) ? "late" : "fresh";
    const text = span(seconds);
    if (age.textContent !== text) age.textContent = text;
    if (age.dataset.state !== late) age.dataset.state = late;
  }
}

// --- the event's clock runs between two ticks, too ---

function stopwatch(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const padded = String(rest).padStart(2, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${padded}` : `${minutes}:${padded}`;
}

function run(state) {
  for (const clock of state.root.querySelectorAll(".runs")) {
    const passed = (performance.now() - state.began) / 1000;
    const text = stopwatch(clock.dataset.of ? Number(clock.dataset.of) - passed : passed);
    if (clock.textContent !== text) clock.textContent = text;
  }
}

function setClock(state) {
  const clock = state.root.querySelector(".runs");
  if (!clock) return;
  const began = state.taken - 1000 * Number(clock.dataset.from);
  // the quickest message so far is right: a slow one would set the clock back
  const goesOn = clock.dataset.run === state.run && Math.abs(began - state.began) < 60_000;
  state.began = goesOn ? Math.min(began, state.began) : began;
  state.run = clock.dataset.run;
}

function tick(state) {
  if (state.root.isConnected) {
    grow(state);
    run(state);
    return;
  }
  clearInterval(state.timer);
  state.timer = 0;
}

// --- links: what is clicked changes the address, and Streamlit shows what that says, as it does when the browser goes back ---

let awaited = null;  // what a link has opened: a panel gets the focus when it comes, hosts side by side are scrolled to

const panelOf = (query) => `${query.get("host") ?? ""}/${query.get("event") ?? ""}`;
const linkOf = (host) => document.querySelector(`#board tr[data-host="${CSS.escape(host)}"] a[href]`);

function follow(link) {
  const query = new URLSearchParams(link.getAttribute("href"));
  for (const [key, value] of [...query]) if (!value) query.delete(key);
  const before = new URLSearchParams(location.search);
  awaited = panelOf(query) !== "/" && panelOf(query) !== panelOf(before) ? ".panel"
    : query.get("cmp") && query.get("cmp") !== before.get("cmp") ? ".differences"
    : null;
  const words = query.toString();
  if (words === before.toString()) return;
  history.pushState({}, "", words ? `?${words}` : location.pathname);
  window.dispatchEvent(new PopStateEvent("popstate"));
  // who closed the panel with a key goes on where it was opened
  if (before.get("host") && !query.get("host")) linkOf(before.get("host"))?.focus({ preventScroll: true });
}

function clicked(event) {
  if (!event.target.closest(".live") || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  // what is drawn of a host is as good as its link; in its own panel that would close it
  const host = !event.target.closest(".panel") && event.target.closest("[data-host]")?.dataset.host;
  const link = event.target.closest("a[href]") ?? (host && !String(getSelection()) && linkOf(host));
  if (!link || !link.getAttribute("href").startsWith("?") || event.target.closest(".kiosk")) return;
  event.preventDefault();
  follow(link);
}

function pressed(event) {
  const inside = event.target.closest(".live");
  if (event.key === " " && event.target.closest("[role=switch]")) {
    event.preventDefault();
    follow(event.target);
  } else if (event.key === "Escape" && (inside || event.target === document.body)) {
    const close = document.querySelector(".panel .close");
    if (close) follow(close);
  }
}

function listen() {
  if (document.documentElement.dataset.toolkit) return;
  document.documentElement.dataset.toolkit = "listens";
  document.addEventListener("click", clicked);
  document.addEventListener("keydown", pressed);
  keepPresenter();
}

// The presenter's secret has reached the server: neither the address bar nor the history is to show it. The tab keeps it, as the
// server meets a stranger when the page is loaded again, and has to be told once more.
function keepPresenter() {
  let kept = null;
  try {
    kept = window.sessionStorage;
  } catch {
    // whoever allows no storage opens the link again
  }
  const query = new URLSearchParams(location.search);
  const key = `presenter of ${location.pathname}`;  // a page published beside this one has no use for it
  if (query.has("presenter")) {
    kept?.setItem(key, query.get("presenter"));
    query.delete("presenter");
    history.replaceState(history.state, "", query.size ? `?${query}` : location.pathname);
  } else if (kept?.getItem(key)) {
    query.set("presenter", kept.getItem(key));
    location.replace(`?${query}`);
  }
}

export default function ({ data, parentElement }) {
  const html = data instanceof Uint8Array ? new TextDecoder().decode(data) : String(data ?? "");
  let state = roots.get(parentElement);
  if (!state) {
    // a published page comes with its HTML
    const root = parentElement.querySelector(":scope > .live") ?? document.createElement("div");
    root.className = "live";
    parentElement.append(root);
    state = { root, html: null, taken: 0, timer: 0, began: NaN, run: null };
    roots.set(parentElement, state);
    listen();
  }
  if (!state.timer) state.timer = setInterval(tick, 200, state);
  if (state.html === html) return;
  const next = document.createElement("template");
  next.innerHTML = html;
  const before = places(state.root);
  takeChildren(state.root, next.content);
  state.html = html;
  state.taken = performance.now();
  setClock(state);
  run(state);
  for (const plot of state.root.querySelectorAll('[data-chart="tradeoff"] .plot')) {
    resized.observe(plot);
    placeNames(plot);
  }
  slide(before);
  const opened = awaited && state.root.querySelector(awaited);
  if (!opened) return;
  if (awaited === ".panel") {
    opened.focus({ preventScroll: true });
    opened.closest(".st-key-beside")?.scrollTo(0, 0);
  } else {
    state.root.scrollIntoView({ behavior: calm.matches ? "auto" : "smooth" });
  }
  awaited = null;
}
