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

export function clock(stamp) {
  if (!stamp) return "–";
  const time = new Date(stamp);
  const day = time.toDateString() === new Date().toDateString() ? "" : `${time.toLocaleDateString()} `;
  return day + time.toLocaleTimeString();
}

export function duration(from, to) {
  if (!from) return "–";
  const seconds = Math.max(0, Math.round((new Date(to ?? Date.now()) - new Date(from)) / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

// "trial=digits-x7k2q-7 attempt=1 running->failed class=…": the trial and the kind are said already.
const TRANSITION = /^trial=\S+ attempt=(\d+) \S+\s*/;

export function events(list) {
  const items = [...list].reverse().map((event) => {
    const attempt = Number(TRANSITION.exec(event.message)?.[1] ?? 1);
    return h("li", {}, h("time", { datetime: event.time }, clock(event.time)),
      event.trial === undefined ? "" : `trial ${event.trial} `, attempt > 1 ? `(attempt ${attempt}) ` : "", h("b", {}, event.kind), " ",
      ...prose(event.message.replace(TRANSITION, "")));
  });
  // It scrolls, so the keyboard must reach it.
  return h("ol", { class: "events", tabindex: "0", role: "list", "aria-label": "Events, newest first" }, items);
}

let told = 0;
export function announce(news) {
  if (Date.now() - told < 3000) return; // a screen reader reads each to its end
  told = Date.now();
  document.getElementById("news").textContent = news;
}
