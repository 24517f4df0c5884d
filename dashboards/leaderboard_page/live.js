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

function takeAttributes(old, next) {
  for (const { name } of [...old.attributes]) {
    if (name !== "open" && !next.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...next.attributes]) {
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
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

// --- the data's age goes on by itself, so that figures of a dead server are seen to be old ---

function told(seconds) {
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
    const text = told(seconds);
    if (age.textContent !== text) age.textContent = text;
    if (age.dataset.state !== late) age.dataset.state = late;
  }
}

function tick(state) {
  if (state.root.isConnected) return grow(state);
  clearInterval(state.timer);
  state.timer = 0;
}

// --- links: what is clicked changes the address, and Streamlit shows what that says, as it does when the browser goes back ---

let isAwaited = false;  // a panel, which gets the focus when it comes

const panelOf = (query) => `${query.get("host") ?? ""}/${query.get("event") ?? ""}`;
const linkOf = (host) => document.querySelector(`#board tr[data-host="${CSS.escape(host)}"] a[href]`);

function follow(link) {
  const query = new URLSearchParams(link.getAttribute("href"));
  for (const [key, value] of [...query]) if (!value) query.delete(key);
  const before = new URLSearchParams(location.search);
  isAwaited = panelOf(query) !== "/" && panelOf(query) !== panelOf(before);
  const words = query.toString();
  if (words === before.toString()) return;
  history.pushState({}, "", words ? `?${words}` : location.pathname);
  window.dispatchEvent(new PopStateEvent("popstate"));
  // who closed the panel with a key goes on where it was opened
  if (before.get("host") && !query.get("host")) linkOf(before.get("host"))?.focus({ preventScroll: true });
}

function clicked(event) {
  if (!event.target.closest(".live") || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const host = event.target.closest("[data-host]")?.dataset.host;
  const link = event.target.closest("a[href]") ?? (host && !String(getSelection()) && linkOf(host));
  if (!link?.getAttribute("href").startsWith("?") || event.target.closest(".kiosk")) return;
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
}

export default function ({ data, parentElement }) {
  const html = data instanceof Uint8Array ? new TextDecoder().decode(data) : String(data ?? "");
  let state = roots.get(parentElement);
  if (!state) {
    // a published page comes with its HTML
    const root = parentElement.querySelector(":scope > .live") ?? document.createElement("div");
    root.className = "live";
    parentElement.append(root);
    state = { root, html: null, taken: 0, timer: 0 };
    roots.set(parentElement, state);
    listen();
  }
  if (!state.timer) state.timer = setInterval(tick, 1000, state);
  if (state.html === html) return;
  const next = document.createElement("template");
  next.innerHTML = html;
  const before = places(state.root);
  takeChildren(state.root, next.content);
  state.html = html;
  state.taken = performance.now();
  slide(before);
  const panel = isAwaited && state.root.querySelector(".panel");
  if (panel) {
    isAwaited = false;
    panel.focus({ preventScroll: true });
    panel.closest(".st-key-beside")?.scrollTo(0, 0);
  }
}
