// Parts that several pages show.
import { h, badge, count, number, prose, text } from "./dom.js";

export const main = document.getElementById("main");
const path = document.getElementById("path");

export const address = (namespace, name, ...rest) => ["#", "search", namespace, name, ...rest].map((part, index) => (index ? encodeURIComponent(part) : part)).join("/");

export function crumbs(title, ...links) {
  document.title = title ? `${title} – tuner` : "tuner";
  path.replaceChildren(...links.map(([words, to]) => (to ? h("a", { href: to }, words) : h("span", { "aria-current": "page" }, words))));
}

const SAID_MS = 10_000; // then the page itself shows it

// What a person did, for a while; and what goes wrong, for as long as it does.
export function notice() {
  const doing = h("div", { role: "status" });
  const failing = h("div", { role: "alert" });
  let timer = 0;
  return {
    element: h("div", {}, failing, doing),
    say(words) {
      clearTimeout(timer);
      doing.replaceChildren(h("div", { class: "said" }, ...prose(words)));
      timer = setTimeout(() => doing.replaceChildren(), SAID_MS);
    },
    trouble(words) {
      if (failing.textContent !== words) failing.replaceChildren(...(words ? [h("div", { class: "trouble" }, ...prose(words))] : []));
    },
  };
}

const STATES = ["succeeded", "pruned", "infeasible", "failed", "cancelled", "running", "paused", "queued"];

// A bar with a part for each state, as long as the budget.
export function progress(it) {
  const limit = it.budget?.trials ?? null;
  const there = Object.values(it.trials).reduce((sum, n) => sum + n, 0);
  const whole = Math.max(limit ?? 0, there, 1);
  const bar = h("div", { class: "progress", role: "progressbar", "aria-label": "Trials done", "aria-valuemin": 0, "aria-valuemax": whole, "aria-valuenow": it.done });
  for (const state of STATES) {
    if (!it.trials[state]) continue;
    const part = h("span", { class: `part ${state}`, title: `${count(it.trials[state])} ${state}` });
    part.style.width = `${(100 * it.trials[state]) / whole}%`;
    bar.append(part);
  }
  return bar;
}

export function counts(it) {
  const found = STATES.filter((state) => it.trials[state]);
  if (!found.length) return [it.loaded === false ? "reading…" : it.best ? "only imported ones" : "no trials yet"];
  return found.map((state) => h("span", { class: `dot ${state}` }, `${count(it.trials[state])} ${state}`));
}

export const done = (it) => (it.budget?.trials ? `${count(it.done)} / ${count(it.budget.trials)}` : count(it.done));

export function definitions(pairs) {
  return h("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
}

const MOST_CHIPS = 8;

// The parameters as pairs, in the order of the search space: of a summary's `parameters`.
export function inOrder(parameters, space = []) {
  const names = [...new Set([...space.map(({ title }) => title), ...Object.keys(parameters)])];
  return names.filter((name) => name in parameters).map((name) => [name, parameters[name]]);
}

// to: the address where all of them are.
export function chips(parameters, space, to) {
  const all = inOrder(parameters, space);
  return h("ul", { class: "chips", role: "list" },
    all.slice(0, MOST_CHIPS).map(([key, value]) => h("li", {}, h("span", { class: "key" }, key), " ", h("b", {}, typeof value === "number" ? number(value) : text(value)))),
    all.length > MOST_CHIPS ? h("li", {}, h("a", { href: to }, `${all.length - MOST_CHIPS} more`)) : null);
}

export function grid(label, heads, rows) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, h("table", { class: "plain" },
    h("thead", {}, h("tr", {}, heads.map((words) => h("th", { scope: "col" }, words)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", { class: typeof cell === "string" && cell.length > 30 ? "text" : null }, cell)))))));
}

export const stateAndWhy = () => ({ state: h("span", { id: "state" }), why: h("p", { class: "why" }) });
export const showState = (place, state) => place.replaceChildren(badge(state));
