// Elements and the words in them. Text never becomes markup: names and reasons may hold anything.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in PROPERTIES) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const PROPERTIES = { value: 1, checked: 1, disabled: 1, max: 1 };

// Calls draw(), at once or when a pressed button is released: an element that is replaced before its release gets no click.
export function redraw(draw) {
  if (pressed) held.push(draw);
  else draw();
}

const held = [];
let pressed = false;
addEventListener("pointerdown", () => { pressed = true; }, true);
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => setTimeout(release), true); // the click comes first

function release() {
  pressed = false;
  for (const draw of held.splice(0)) draw();
}

export const badge = (state) => h("span", { class: `state ${state}` }, state);

// Commands in messages are in backticks.
export function prose(text) {
  return text.split(/(`[^`]+`)/).map((part) => (part.startsWith("`") && part.length > 2 ? h("code", {}, part.slice(1, -1)) : part));
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return text(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value);
  return String(Number(value.toPrecision(6)));
}

export function text(value) {
  if (value === null || value === undefined) return "–";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// How many: 12,345.
export const count = (n) => n.toLocaleString("en-US");

// "3 min ago", with the exact time on hover.
export function when(stamp) {
  if (!stamp) return "–";
  const exact = new Date(stamp).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
  return h("time", { datetime: stamp, title: exact }, ago(stamp));
}

function ago(stamp) {
  const seconds = Math.round((Date.now() - new Date(stamp)) / 1000);
  if (seconds < 10) return "just now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  const days = Math.floor(seconds / 86400);
  return days < 14 ? `${days} d ago` : new Date(stamp).toLocaleDateString();
}

// Bring the times that are shown up to date.
export function refreshTimes() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const words = ago(time.dateTime);
    if (time.textContent !== words) time.textContent = words;
  }
}

export function duration(from, to) {
  return from ? units((new Date(to ?? Date.now()) - new Date(from)) / 1000) : "–";
}

export function units(exact) {
  const seconds = Math.max(0, Math.round(exact));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

// "trial=digits-x7k2q-7 attempt=1 running->failed class=…": the trial and the kind are said already.
const TRANSITION = /^trial=\S+ attempt=(\d+) (?:\S+->\S+\s*|waiting |created$)?/;
const PAIR = /(\w+)=("(?:[^"\\]|\\.)*"|\S+)\s*/g;

// The log's `value=0.12 class=userError reason="exit code 1"` as words: exit code 1 (value 0.12, class userError)
function inWords(message) {
  const rest = message.replace(TRANSITION, "");
  const pairs = [...rest.matchAll(PAIR)];
  if (rest === message || pairs.map(([all]) => all).join("") !== rest) return rest;
  const told = new Map(pairs.map(([, key, value]) => [key, value.startsWith('"') ? JSON.parse(value) : value]));
  const reason = told.get("reason") ?? "";
  told.delete("reason");
  const others = [...told].map(([key, value]) => `${key} ${value}`).join(", ");
  return reason && others ? `${reason} (${others})` : reason || others;
}

export function events(list) {
  const items = [...list].reverse().map((event) => {
    const attempt = Number(TRANSITION.exec(event.message)?.[1] ?? 1);
    return h("li", {}, when(event.time),
      event.trial === undefined ? "" : `trial ${event.trial} `, attempt > 1 ? `(attempt ${attempt}) ` : "", h("b", {}, event.kind), " ",
      ...prose(inWords(event.message)));
  });
  // It scrolls, so the keyboard must reach it.
  return h("ol", { class: "events", tabindex: "0", role: "list", "aria-label": "Events, newest first" }, items);
}

let told = 0;
export function announce(message) {
  if (Date.now() - told < 3000) return; // a screen reader reads each to its end
  told = Date.now();
  document.getElementById("announcement").textContent = message;
}
