// Keeps an open page as new as the files beside it, and plays the replay of a run that is over. live.js stands above this
// and puts HTML on screen; here it is decided which. Nothing but the folder of this page is ever asked.

const main = document.querySelector("main");
const [everyS, lateS, staleS] = ["everyS", "lateS", "staleS"].map((name) => Number(main.dataset[name]));
const part = (name) => main.querySelector(`[data-part="${name}"]`);
const byId = (id) => document.getElementById(id);
let state = JSON.parse(main.dataset.state);
let skewMs = 0; // the web server's clock minus this one's
let replay = null; // or the promise of it: a slider that is drawn asks for it many times
let playing = 0;
let fast = part("fast").firstElementChild.innerHTML; // the newest, which a replay covers for a while

const waitedS = () => Math.max(0, (Date.now() + skewMs) / 1000 - state.written_at);

// --- what is on screen ---

// ages, and the clock that runs from one, are in a file those of the moment of writing
function aged(html) {
  const older = (seconds) => (Number(seconds) + waitedS()).toFixed(1);
  const written = { age: older, from: older, late: () => lateS, stale: () => staleS };
  return html.replace(/data-(age|from|late|stale)="([\d.]+)"/g, (_, name, value) => `data-${name}="${written[name](value)}"`);
}

function put(name, html) {
  show({ data: aged(html), parentElement: part(name) });
}

function putNewest(parts) {
  for (const [name, html] of Object.entries(parts)) put(name, html);
  fast = parts.fast ?? fast;
}

for (const place of main.querySelectorAll("[data-part]")) put(place.dataset.part, place.firstElementChild.innerHTML);

function watch() {
  byId("silent").hidden = state.final || waitedS() <= staleS;
  byId("replay").hidden = !state.frames;
  byId("moment").max = Math.max(0, state.frames - 1);
  if (!main.classList.contains("replaying")) byId("moment").value = byId("moment").max;
}
watch();
setInterval(watch, 1000);

// --- new figures ---

async function fetched(file, mostS = 10) {
  // asks with If-None-Match and If-Modified-Since, so that what is known is not sent again; one that stalls stops nothing
  const answer = await fetch(file, { cache: "no-cache", signal: AbortSignal.timeout(1000 * mostS) });
  if (!answer.ok) throw new Error(`${file}: ${answer.status}`);
  const saidMs = Date.parse(answer.headers.get("Date")) + 1000 * Number(answer.headers.get("Age") ?? 0);
  if (Math.abs(saidMs - Date.now() - skewMs) > 1500) skewMs = saidMs - Date.now();
  return answer.json();
}

async function follow() {
  try {
    const live = await fetched("live.json");
    if (live.written_at !== state.written_at) {
      const charts = live.charts === state.charts ? null : await fetched("charts.json");
      const { parts, ...now } = live;
      leaveReplay();
      replay = null;
      byId("frames")?.remove(); // what came with the page is of the run before
      state = { ...now, charts: charts ? charts.charts : state.charts };
      putNewest({ ...parts, ...charts?.parts });
      watch();
    }
  } catch {
    // the figures' age tells it; the next one may come through
  }
  // a little apart from each other, so that a thousand pages do not ask in the same moment
  setTimeout(follow, 1000 * (state.frames ? 12 : 1) * everyS * (1 + Math.random() / 10));
}

if (location.protocol !== "file:") follow();
// a file may not read the one beside it, but itself
else if (!state.final) setTimeout(() => location.reload(), 1000 * everyS);

// --- the replay ---

// whether it is on screen: the replay may not have come through
async function frame(number) {
  let frames;
  try {
    // megabytes, where a server does not compress
    replay ??= byId("frames") ? JSON.parse(byId("frames").textContent) : fetched("replay.json", 60);
    frames = await replay;
  } catch {
    replay = null;
    pause();
    return false;
  }
  const last = frames.frames.length - 1;
  const at = Math.min(number, last);
  byId("moment").value = at;
  byId("when").textContent = frames.times[at];
  main.classList.add("replaying");
  put("fast", frames.frames[at].map((piece) => frames.pieces[piece]).join(""));
  for (const plot of main.querySelectorAll('[data-chart="ranks"] .plot')) {
    const cursor = plot.querySelector(".cursor") ?? plot.appendChild(document.createElement("i"));
    cursor.className = "cursor";
    cursor.style.left = `${(100 * (frames.at[at] - frames.at[0])) / Math.max(1, frames.at[last] - frames.at[0])}%`;
  }
  if (at === last) pause();
  return true;
}

function pause() {
  clearInterval(playing);
  playing = 0;
  byId("play").textContent = "Play";
}

function leaveReplay() {
  pause();
  if (!main.classList.contains("replaying")) return;
  main.classList.remove("replaying");
  main.querySelector(".cursor")?.remove();
  byId("when").textContent = "";
  byId("moment").value = byId("moment").max;
  put("fast", fast);
}

byId("play").addEventListener("click", async () => {
  if (playing) return pause();
  const ended = !main.classList.contains("replaying") || Number(byId("moment").value) >= Number(byId("moment").max);
  byId("play").textContent = "Pause";
  if (!(await frame(ended ? 0 : Number(byId("moment").value))) || playing) return;
  playing = setInterval(() => frame(Number(byId("moment").value) + 1), 500);
});
byId("moment").addEventListener("input", () => (pause(), frame(Number(byId("moment").value))));
byId("end").addEventListener("click", leaveReplay);
