// One experiment, or one study: how it stands, its figures, its trials, what may be done.
import { h, number, prose, when, duration, units, events, announce, redraw } from "./dom.js";
import { KIND, get, post } from "./wire.js";
import { ask } from "./dialog.js";
import { search } from "./search.js";
import { TrialTable } from "./table.js";
import { Curves, Figure } from "./figures.js";
import { main, address, chips, counts, crumbs, done, grid, notice, progress, showState, stateAndWhy } from "./parts.js";

const FIGURES = {
  history: "History and best so far", front: "Pareto front", curves: "Learning curves", parallel: "Parallel coordinates", slice: "Each parameter",
  contour: "Two parameters", importance: "Importance", timeline: "Timeline",
};
const FIRST = ["history", "curves"]; // the others are chosen
const MOST_WAITING = 8;
const MOST_PARALLEL = 20; // axes that can be told apart

// What people change most while a search runs.
const SETTABLE = [
  ["spec.parallelism", "Parallel trials"], ["spec.budget.trials", "Trials in all"], ["spec.budget.wallClock", "Time in all"], ["spec.trial.timeout", "Time of a trial"],
];

// The value in the file at a path such as "spec.budget.trials", as text; empty if it has none.
const at = (file, path) => String(path.split(".").reduce((part, key) => part?.[key], file) ?? "");

const ACTIONS = {
  stop: (name) => ({ title: `Stop ${name}?`, words: "Running trials are cancelled. Resume continues the search with new ones.", action: "Stop", danger: true }),
  resume: (name) => ({ title: `Resume ${name}?`, words: "A controller is started on this machine. It continues when this page is closed.", action: "Resume" }),
  retry: (name) => ({ title: `Retry ${name}?`, words: "Its failed trials run again with the same parameters, and the search continues. A controller is started on this machine.", action: "Retry" }),
  extend: (name) => ({ title: `Extend ${name}?`, words: "All its trials are kept, and the search continues.", action: "Extend", fields: [h("label", {}, "More trials", h("input", { name: "trials", type: "number", min: 1, value: 20, required: true }))] }),
  enqueue: (name, parameters) => ({
    title: `Enqueue a point for ${name}?`, words: "The point is tried next. The search chooses the parameters that you leave empty.", action: "Enqueue",
    fields: parameters.map(({ title, hint }) => h("label", {}, title, h("input", { name: title, placeholder: hint, autocomplete: "off" }))),
  }),
  set: (name, _, spec) => ({
    title: `Change ${name}?`, words: "No trial is stopped. A controller that runs the search takes the change up within a second.", action: "Change",
    fields: [
      ...SETTABLE.map(([path, title]) => h("label", {}, title, h("input", { name: path, value: at(spec, path), placeholder: "not set", autocomplete: "off", required: path === "spec.parallelism" }))),
      h("label", {}, "Others, one a line", h("textarea", { name: "others", rows: 2, placeholder: "spec.pruning.minTrials=8" })),
    ],
    body: ({ others, ...values }) => ({ changes: [
      ...Object.entries(values).filter(([path, value]) => value.trim() !== at(spec, path)).map(([path, value]) => `${path}=${value.trim()}`),
      ...others.split("\n").map((line) => line.trim()).filter(Boolean),
    ] }),
  }),
  delete: (name) => ({ title: `Delete ${name}?`, words: "Its trials, their logs and their outputs are removed. This cannot be undone.", action: "Delete", danger: true }),
};
const WORDS = { stop: "Stop", resume: "Resume", retry: "Retry", extend: "Extend", set: "Change", enqueue: "Enqueue", delete: "Delete" };


export function experimentPage(namespace, name) {
  crumbs(name, [name]);
  const it = search(namespace, name);
  const said = notice();
  const { state, why } = stateAndWhy();
  const overview = h("div", { class: "overview" });
  const waiting = h("section", { class: "card", hidden: true });
  const history = h("div");
  const buttons = h("div", { class: "actions" });
  const toTrial = (trial) => { location.hash = address(namespace, name, "trial", trial); };
  let chosen = [];
  const compare = h("button", { type: "button", disabled: true, onclick: () => { location.hash = address(namespace, name, "compare", chosen.join(",")); } }, "Compare");
  const table = new TrialTable({
    link: (trial) => address(namespace, name, "trial", trial),
    choose(numbers) {
      chosen = numbers.sort((one, other) => one - other);
      compare.disabled = chosen.length < 2;
      compare.textContent = chosen.length < 2 ? "Compare" : `Compare ${chosen.length}`;
    },
  });
  table.tools.append(compare);
  const pictures = figuresOf(it, toTrial);

  async function act(what) {
    const spec = what === "set" ? await get(`${it.at}/file`) : null;
    const { body = (values) => values, ...question } = ACTIONS[what](name, it.summary.parameters ?? [], spec);
    const answer = await ask({ ...question, send: (values) => post(`${it.at}/${what}`, body(values)) });
    if (answer && what === "delete") location.hash = "#/";
    else if (answer) said.say(answer.message);
  }
  function showActions() {
    const focused = document.activeElement?.dataset.action;
    buttons.replaceChildren(...Object.entries(it.summary.actions).map(([what, possible]) => h("button", {
      type: "button", disabled: !possible, onclick: () => act(what).catch((error) => said.say(error.message)), "data-action": what,
      class: what === "resume" ? "main" : what === "delete" ? "danger" : null,
    }, WORDS[what])));
    if (focused) buttons.querySelector(`[data-action=${focused}]`)?.focus();
  }

  const file = h("details", { class: "card", hidden: KIND !== "experiments" }, h("summary", {}, "experiment.yaml, as JSON"), h("pre", { tabindex: "0" }));
  file.addEventListener("toggle", async () => {
    if (file.open) file.lastChild.textContent = JSON.stringify(await get(`${it.at}/file`), null, 2);
  });
  const happened = h("section", { class: "card" }, h("h2", {}, "Events"), history);
  main.replaceChildren(
    h("div", { class: "head" }, h("h1", {}, name), state, buttons),
    why, said.element, overview, pictures.element, waiting,
    h("section", { class: "card" }, h("h2", {}, "Trials"), table.element), happened, file);

  let before = null;
  let told = 0; // when the summary came
  function show() {
    const now = it.summary;
    if (now !== before) told = Date.now();
    if (before && (before.done !== now.done || before.state !== now.state)) {
      announce(`${name} is ${now.state ?? "open"}: ${now.done} trials done, best ${now.metric} ${number(now.best?.value)}`);
    }
    if (now.state) showState(state, now.state);
    why.replaceChildren(...prose(now.why));
    overview.replaceChildren(...overviewOf(now, address(namespace, name, "trial", now.best?.number), (Date.now() - told) / 1000));
    if (before?.actions === undefined || JSON.stringify(before.actions) !== JSON.stringify(now.actions)) showActions();
    happened.hidden = !now.events;
    if (now.events) history.replaceChildren(events(now.events));
    showWaiting(now);
    before = now;
    pictures.show();
    document.title = `${now.state === "running" && now.budget.trials ? `${now.done}/${now.budget.trials} ` : ""}${name} – tuner`;
  }
  function showWaiting(now) {
    waiting.hidden = !now.waiting?.length;
    if (waiting.hidden) return;
    const more = (now.trials.queued ?? 0) - now.waiting.length;
    waiting.replaceChildren(
      h("div", { class: "head" }, h("h2", {}, "Waiting"), h("a", { href: "#/queue" }, "queue and quota of the namespace")),
      grid("Waiting trials", ["Trial", "Reason"], now.waiting.slice(0, MOST_WAITING).map(([trial, reason]) => [h("a", { href: address(namespace, name, "trial", trial) }, String(trial)), reason || "–"])),
      more > 0 ? h("p", { class: "small" }, `and ${more} more`) : "");
  }

  const open = it.follow({
    reset() {
      table.best = it.summary.best?.number ?? null;
      table.reset(it.columns, it.rows);
      show();
    },
    update(rows, removed) {
      const best = table.best;
      table.best = it.summary.best?.number ?? null;
      show();
      if (rows.length || removed.length || best !== table.best) table.update(rows, removed);
    },
    trouble: (message) => said.trouble(message),
    gone(message) {
      said.trouble(message);
      pictures.close();
      if (!it.summary) main.replaceChildren(h("h1", {}, name), said.element, h("p", {}, h("a", { href: "#/" }, "All experiments")));
      for (const button of buttons.children) button.disabled = true;
    },
  });
  const ticking = setInterval(() => it.summary && it.summary.startTime && !it.summary.endTime && redraw(show), 5000);
  return () => {
    open.close();
    clearInterval(ticking);
    table.close();
    pictures.close();
  };
}

// Pauses and downtime do not count: of one that runs, the time since the summary came does.
function overviewOf(it, best, since) {
  const ran = it.ranSeconds === undefined ? duration(it.startTime, it.endTime) : units(it.ranSeconds + (it.state === "running" ? since : 0));
  const fact = (words, value, ...more) => h("div", { class: "fact" }, h("div", { class: "name" }, words), h("div", { class: "value" }, value), more.map((each) => h("div", { class: "more" }, each)));
  return [
    h("div", { class: "fact best" }, h("div", { class: "name" }, `best ${it.metric} (${it.direction})`),
      h("div", { class: "line" }, h("span", { class: "value" }, number(it.best?.value)), it.best ? h("a", { href: best }, `trial ${it.best.number}`) : h("span", { class: "more" }, "none yet"),
        it.front?.length > 1 ? h("span", { class: "more" }, `one of ${it.front.length} on the Pareto front`) : null),
      it.best ? chips(it.best.parameters, it.parameters, best) : null),
    h("div", { class: "fact" }, h("div", { class: "name" }, "trials"), h("div", { class: "value" }, done(it)), progress(it), h("div", { class: "more" }, counts(it)), ...(it.used ?? []).map((each) => h("div", { class: "more" }, each))),
    it.startTime ? fact("time", ran, ["started ", when(it.startTime)]) : null,
    fact("search", it.algorithm, [it.pruning ? `pruning ${it.pruning}` : "", it.runtime ? `${it.runtime}, parallelism ${it.parallelism}` : "", it.revision > 1 ? `revision ${it.revision}` : ""].filter(Boolean).join(", ")),
  ].filter(Boolean);
}

// Two figures that are always shown, and one of the others.
function figuresOf(it, choose) {
  const version = () => it.position; // every change of a trial has a new one
  const drawable = () => it.summary?.loaded && it.rows.size > 0;
  const make = (name, tell) => (name === "curves"
    ? new Curves({ label: FIGURES[name], at: it.at, query: version, choose, tell })
    : new Figure({ label: FIGURES[name], address: () => `${it.at}/figures/${name}.json?${version()}`, choose, tell }));
  const sections = {};
  const fixed = FIRST.map((name) => [name, make(name, (empty) => {
    sections[name].hidden = empty;
    show();
    const shown = Object.values(sections).filter((section) => !section.hidden);
    for (const section of shown) section.classList.toggle("wide", shown.length === 1);
  })]);
  const others = Object.keys(FIGURES).filter((name) => !FIRST.includes(name));
  const place = h("div");
  let other = null;
  const tabs = h("div", { class: "tabs", role: "group", "aria-label": "Figure" }, others.map((name) => h("button", { type: "button", "data-figure": name, "aria-pressed": "false", onclick: () => pick(name) }, FIGURES[name])));
  function pick(name) {
    other?.close();
    other = make(name);
    place.replaceChildren(other.element);
    for (const tab of tabs.children) tab.setAttribute("aria-pressed", String(tab.dataset.figure === name));
    if (drawable()) other.show(version());
  }
  const element = h("div", { class: "figures", hidden: true },
    fixed.map(([name, figure]) => (sections[name] = h("section", { class: "card", "data-figure": name, hidden: true },
      h("div", { class: "head" }, h("h2", {}, FIGURES[name]), figure.metric ?? ""), figure.element))),
    h("section", { class: "card wide" }, tabs, place));
  function show() {
    if (!drawable()) return;
    for (const [, figure] of fixed) figure.show(version());
    const { summary } = it;
    // Before a trial has ended there is at most a curve. Imported trials are not counted as done.
    element.hidden = !(summary.done || summary.best || Object.values(sections).some((section) => !section.hidden));
    if (element.hidden) return;
    const possible = {
      front: summary.front, parallel: summary.parameters.length > 1, contour: summary.parameters.length > 1, timeline: KIND === "experiments",
    };
    for (const [name, there] of Object.entries(possible)) tabs.querySelector(`[data-figure=${name}]`).hidden = !there;
    if (!other) pick(possible.front ? "front" : !summary.best && possible.timeline ? "timeline" : summary.parameters.length > MOST_PARALLEL ? "importance" : possible.parallel ? "parallel" : "slice");
    other.show(version());
  }
  return {
    element,
    show,
    close() {
      other?.close();
      for (const [, figure] of fixed) figure.close();
    },
  };
}
