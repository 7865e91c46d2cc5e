// Which page the address asks for. The pages: all experiments, one, one of its trials, some of its trials side by side.
import { h, badge, number, prose, clock, duration, text, events, announce } from "./dom.js";
import { get, post, place, stream } from "./wire.js";
import { ask } from "./dialog.js";
import { TrialTable } from "./table.js";

const main = document.getElementById("main");
const path = document.getElementById("path");
let leave = () => {};

function route() {
  leave();
  leave = () => {};
  const [kind, namespace, name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  if (kind === "experiment" && name) {
    const [what, which] = rest;
    if (what === "trial" && /^\d+$/.test(which)) leave = trialPage(namespace, name, Number(which));
    else if (what === "compare" && which) leave = comparePage(namespace, name, which.split(",").map(Number));
    else leave = experimentPage(namespace, name);
  } else leave = listPage();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

const address = (namespace, name, ...rest) => ["#", "experiment", namespace, name, ...rest].map((part, index) => (index ? encodeURIComponent(part) : part)).join("/");

function crumbs(title, ...links) {
  document.title = title ? `${title} – tuner` : "tuner";
  path.replaceChildren(...links.map(([words, to]) => (to ? h("a", { href: to }, words) : h("span", { "aria-current": "page" }, words))));
}

// What a person did, or what went wrong.
function notice() {
  const element = h("div", { role: "alert" });
  return {
    element,
    say: (words) => element.replaceChildren(h("div", { class: "said" }, ...prose(words))),
    trouble: (words) => element.replaceChildren(...(words ? [h("div", { class: "trouble" }, ...prose(words))] : [])),
  };
}

function progressOf(it) {
  const limit = it.budget.trials;
  const words = limit === null ? `${it.done} done, no limit` : `${it.done} of ${limit} trials`;
  return [limit === null ? null : h("progress", { max: limit, value: Math.min(it.done, limit), "aria-label": "Trials done" }), h("div", { class: "small" }, words)];
}

const counts = (trials) => Object.entries(trials).map(([state, n]) => `${n} ${state}`).join(", ") || "no trials yet";

// All experiments

function listPage() {
  crumbs("");
  const said = notice();
  const list = h("ul", { class: "list" });
  const where = h("p", { class: "small" });
  main.replaceChildren(h("h1", {}, "Experiments"), where, said.element, list);
  const open = stream("/api/stream", {
    list({ experiments, trouble, stateDirectory }) {
      said.trouble(trouble);
      where.textContent = stateDirectory;
      const focused = document.activeElement?.getAttribute("href");
      list.replaceChildren(...experiments.map((it) => h("li", {},
        h("div", {},
          h("a", { class: "name", href: address(it.namespace, it.name) }, it.name), badge(it.state),
          h("div", { class: "small" }, ...prose(it.why))),
        h("div", {},
          h("div", { class: "small" }, `best ${it.metric}`),
          h("div", { class: "big" }, number(it.best?.value)),
          it.best ? h("div", { class: "small" }, `trial ${it.best.number}`) : null),
        h("div", {}, progressOf(it), h("div", { class: "small" }, counts(it.trials)), h("div", { class: "small" }, `started ${clock(it.startTime)}`)))));
      if (!experiments.length) list.replaceChildren(h("li", { class: "empty" }, h("div", {}, "No experiments yet. Start one with ", h("code", {}, "tuner run experiment.yaml"))));
      if (focused) list.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    },
  });
  return () => open.close();
}

// One experiment

function experimentPage(namespace, name) {
  crumbs(name, [name]);
  const at = place(namespace, name);
  const said = notice();
  const title = h("h1", {}, name);
  const state = h("span", { id: "state" });
  const why = h("p", { class: "why" });
  const facts = h("div", { class: "facts" });
  const history = h("div");
  const pictures = h("div", { class: "figures" });
  const compare = h("button", { type: "button", disabled: true, onclick: () => { location.hash = address(namespace, name, "compare", chosen.join(",")); } }, "Compare");
  let chosen = [];
  let summary = null;
  const table = new TrialTable({
    link: (trial) => address(namespace, name, "trial", trial),
    choose(numbers) {
      chosen = numbers.sort((one, other) => one - other);
      compare.disabled = chosen.length < 2;
      compare.textContent = chosen.length < 2 ? "Compare" : `Compare ${chosen.length}`;
    },
  });
  table.tools.append(compare);
  const buttons = {
    stop: h("button", { type: "button", onclick: () => act("stop", { title: `Stop ${name}?`, words: "Running trials are cancelled. Resume continues the search with new ones.", action: "Stop", danger: true }) }, "Stop"),
    resume: h("button", { type: "button", class: "main", onclick: () => act("resume", { title: `Resume ${name}?`, words: "A controller is started on this machine. It goes on when this page is closed.", action: "Resume" }) }, "Resume"),
    extend: h("button", { type: "button", onclick: () => act("extend", { title: `Extend ${name}?`, words: "All its trials are kept, and the search goes on.", action: "Extend", fields: [h("label", {}, "More trials", h("input", { name: "trials", type: "number", min: 1, value: 20, required: true }))] }) }, "Extend"),
    delete: h("button", { type: "button", class: "danger", onclick: () => act("delete", { title: `Delete ${name}?`, words: "Its trials, their logs and their outputs are removed. This cannot be undone.", action: "Delete", danger: true }) }, "Delete"),
  };
  async function act(what, question) {
    const values = await ask(question);
    if (values === null) return;
    for (const button of Object.values(buttons)) button.disabled = true;
    try {
      const { message } = await post(`${at}/${what}`, values);
      if (what === "delete") location.hash = "#/";
      else said.say(message);
    } catch (error) {
      said.trouble(error.message);
    }
    if (summary) show(summary);
  }
  const file = h("details", { class: "card" }, h("summary", {}, "experiment.yaml, as JSON"), h("pre", { tabindex: "0" }));
  file.addEventListener("toggle", async () => {
    if (file.open) file.lastChild.textContent = JSON.stringify(await get(`${at}/file`), null, 2);
  });
  main.replaceChildren(
    h("div", { class: "head" }, title, state, h("div", { class: "actions" }, Object.values(buttons))),
    why, said.element, facts,
    pictures,
    h("section", { class: "card" }, h("h2", {}, "Trials"), table.element),
    h("section", { class: "card" }, h("h2", {}, "Events"), history), file);

  let drawn = "";
  let drawing = 0;
  // Again when a trial has ended, and not while the last ones are being drawn.
  function draw(it) {
    const wanted = `${it.revision}.${it.done}`;
    if (!it.done || wanted === drawn || Date.now() < drawing) return;
    drawn = wanted;
    drawing = Date.now() + 5000;
    setTimeout(() => summary && draw(summary), 5100);
    for (const [figure, words] of [["history", "Values of the trials, and the best so far"], ["curves", "Learning curves"], ["parallel", "Parameters and values"]]) {
      const picture = new Image();
      picture.alt = words;
      picture.onload = () => {
        const before = pictures.querySelector(`[data-figure=${figure}]`);
        const card = h("figure", { class: "card figure", "data-figure": figure }, picture);
        if (before) before.replaceWith(card);
        else pictures.append(card);
      };
      picture.src = `${at}/figures/${figure}.svg?${drawn}`; // without the package that draws, the page has none
    }
  }
  function fact(words, value, ...more) {
    return h("div", { class: "fact" }, h("div", { class: "name" }, words), h("div", { class: "value" }, value), more.map((each) => h("div", { class: "more" }, each)));
  }
  function show(it) {
    if (summary && (summary.done !== it.done || summary.state !== it.state)) {
      announce(`${name} is ${it.state}: ${it.done} trials done, best ${it.metric} ${number(it.best?.value)}`);
    }
    summary = it;
    table.best = it.best?.number ?? null;
    state.replaceChildren(badge(it.state));
    why.replaceChildren(...prose(it.why));
    const best = it.best ? `trial ${it.best.number}: ${Object.entries(it.best.parameters).map(([key, value]) => `${key}=${number(value)}`).join(" ")}` : "none yet";
    facts.replaceChildren(
      fact(`best ${it.metric} (${it.direction})`, number(it.best?.value), best),
      h("div", { class: "fact" }, h("div", { class: "name" }, "progress"), h("div", { class: "value" }, it.budget.trials === null ? `${it.done}` : `${it.done} / ${it.budget.trials}`), progressOf(it)[0]),
      fact("trials", String(Object.values(it.trials).reduce((sum, n) => sum + n, 0)), counts(it.trials)),
      fact("time", duration(it.startTime, it.endTime), `started ${clock(it.startTime)}`),
      fact("search", it.algorithm, `${it.runtime}, ${it.parallelism} at a time, revision ${it.revision}`),
    );
    history.replaceChildren(events(it.events));
    draw(it);
    const controlled = Boolean(it.controlledBy);
    buttons.stop.disabled = it.state === "succeeded" || it.state === "failed" || it.state === "stopping" || (it.state === "stopped" && !controlled);
    buttons.resume.disabled = controlled || it.state === "succeeded";
    buttons.extend.disabled = controlled || it.budget.trials === null;
    buttons.delete.disabled = controlled;
    document.title = `${it.state === "running" && it.budget.trials ? `${it.done}/${it.budget.trials} ` : ""}${name} – tuner`;
  }
  const open = stream(`${at}/stream`, {
    reset({ summary: it, columns, rows }) {
      if (said.element.querySelector(".trouble")) said.trouble("");
      table.best = it.best?.number ?? null;
      table.reset(columns, rows);
      show(it);
      table.draw(true);
    },
    update({ summary: it, rows }) {
      if (said.element.querySelector(".trouble")) said.trouble("");
      const before = table.best;
      show(it);
      table.update(rows);
      if (before !== table.best && !rows.length) table.draw(true);
    },
    trouble: ({ message }) => said.trouble(message),
    gone({ message }) {
      said.trouble(message);
      for (const button of Object.values(buttons)) button.disabled = true;
      open.close();
    },
  });
  const ticking = setInterval(() => summary && !summary.endTime && show(summary), 5000);
  return () => {
    open.close();
    clearInterval(ticking);
  };
}

// One trial

function facts(pairs) {
  return h("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
}

function trialPage(namespace, name, trial) {
  crumbs(`${name}/${trial}`, [name, address(namespace, name)], [`trial ${trial}`]);
  const at = `${place(namespace, name)}/trials/${trial}`;
  const said = notice();
  const state = h("span", { id: "state" });
  const why = h("p", { class: "why" });
  const parts = h("div");
  const log = h("pre", { class: "log", tabindex: "0", role: "log", "aria-label": "Log", "aria-live": "off" });
  const choice = h("select", { "aria-label": "Attempt", onchange: () => follow(Number(choice.value)) });
  const logCard = h("section", { class: "card" }, h("div", { class: "head" }, h("h2", {}, "Log"), choice), log);
  main.replaceChildren(
    h("div", { class: "head" }, h("h1", {}, `${name}, trial ${trial}`), state,
      h("div", { class: "actions" }, h("button", { type: "button", onclick: relabel }, "Labels"))),
    why, said.element, parts, logCard);
  let following = null;
  let attempt = 0;
  let shown = null;
  function follow(which) {
    attempt = which;
    following?.close();
    log.replaceChildren();
    following = stream(`${at}/log?attempt=${which}`, {
      lines({ text: added, first, skipped }) {
        const end = log.scrollTop + log.clientHeight >= log.scrollHeight - 40;
        if (first) log.replaceChildren(skipped ? `… ${skipped} bytes before\n` : "");
        log.append(added);
        while (log.childNodes.length > 400) log.firstChild.remove();
        if (end) log.scrollTop = log.scrollHeight;
      },
    }, { quiet: true });
  }
  async function relabel() {
    const value = Object.entries(shown?.labels ?? {}).map(([key, of]) => `${key}=${of}`).join("\n");
    const given = await ask({ title: `Labels of trial ${trial}`, words: "One on each line: name=value.", action: "Save", fields: [h("label", {}, "Labels", h("textarea", { name: "labels", value }))] });
    if (given === null) return;
    const pairs = given.labels.split("\n").filter((line) => line.trim()).map((line) => {
      const [key, ...rest] = line.split("=");
      return [key.trim(), rest.join("=").trim()];
    });
    try {
      said.say((await post(`${at}/labels`, { labels: Object.fromEntries(pairs) })).message);
      await load();
    } catch (error) {
      said.trouble(error.message);
    }
  }
  async function load() {
    try {
      shown = await get(at);
    } catch (error) {
      said.trouble(error.message);
      return;
    }
    const it = shown;
    state.replaceChildren(badge(it.state));
    why.replaceChildren(...prose(it.why));
    const newest = it.attempts?.at(-1)?.number;
    const numbers = (it.attempts ?? []).map((each) => each.number);
    if (newest !== undefined && choice.options.length !== numbers.length) {
      choice.replaceChildren(...numbers.map((each) => h("option", { value: each }, `attempt ${each}`)));
      choice.value = newest;
      follow(newest);
    }
    logCard.hidden = newest === undefined;
    const provenance = it.provenance?.[attempt] ?? {};
    const curve = it.measurements.filter((each) => each.attempt === (it.measurements.at(-1)?.attempt));
    const opened = new Set([...parts.querySelectorAll("details[open] > summary")].map((each) => each.dataset.part));
    parts.replaceChildren(
      h("div", { class: "two" },
        h("section", { class: "card" }, h("h2", {}, "Result"), facts([["value", number(it.value)], ["step", it.step], ...Object.entries(it.metrics ?? {}).map(([key, value]) => [key, number(value)]), ["started", clock(it.startTime)], ["took", duration(it.startTime, it.endTime)], ["labels", Object.entries(it.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(", ")], ["reason", it.reason]])),
        h("section", { class: "card" }, h("h2", {}, "Parameters"), facts(Object.entries(it.parameters).map(([key, value]) => [key, typeof value === "number" ? number(value) : text(value)])))),
      curve.length ? h("figure", { class: "card figure" }, h("img", { src: `${place(namespace, name)}/figures/curves.svg?trial=${trial}&n=${it.measurements.length}`, alt: "Learning curve of the trial", onerror: (event) => event.target.parentNode.remove() })) : "",
      h("section", { class: "card" }, h("h2", {}, "Attempts"), it.attempts?.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Attempts" }, h("table", { class: "plain" },
        h("thead", {}, h("tr", {}, ["Attempt", "State", "Started", "Took", "Exit", "Node", "Reason"].map((words) => h("th", { scope: "col" }, words)))),
        h("tbody", {}, it.attempts.map((each) => h("tr", {}, h("td", {}, String(each.number)), h("td", {}, badge(each.state)), h("td", {}, clock(each.startTime)), h("td", {}, duration(each.startTime, each.endTime)), h("td", {}, each.signal ? `signal ${each.signal}` : text(each.exitCode)), h("td", {}, text(each.node)), h("td", {}, each.reason ?? "")))))) : h("p", { class: "small" }, "It was not run here.")),
      curve.length ? h("details", { class: "card", open: opened.has("measurements") }, h("summary", { "data-part": "measurements" }, `Measurements (${curve.length})`), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Measurements" }, h("table", { class: "plain" },
        h("thead", {}, h("tr", {}, ["Step", "Metric", "Value"].map((words) => h("th", { scope: "col" }, words)))),
        h("tbody", {}, curve.slice(-500).map((each) => h("tr", {}, h("td", {}, String(each.step)), h("td", {}, each.metric), h("td", {}, number(each.value)))))))) : "",
      Object.keys(provenance).length ? h("details", { class: "card", open: opened.has("provenance") }, h("summary", { "data-part": "provenance" }, "Provenance"), facts(Object.entries(provenance).filter(([key]) => key !== "parameters").map(([key, value]) => [key, h("span", { class: "mono" }, Array.isArray(value) ? value.join(" ") : text(value))]))) : "",
      it.events.length ? h("section", { class: "card" }, h("h2", {}, "Events"), events(it.events)) : "");
  }
  let before = "";
  const changed = (rows) => {
    const row = JSON.stringify(rows.find(([it]) => it === trial));
    if (row !== undefined && row !== before) {
      before = row;
      load();
    }
  };
  const open = stream(`${place(namespace, name)}/stream`, {
    reset({ rows }) {
      changed(rows);
      if (!rows.some(([it]) => it === trial)) load();
    },
    update: ({ rows }) => changed(rows),
    trouble: ({ message }) => said.trouble(message),
    gone: ({ message }) => { said.trouble(message); open.close(); },
  });
  return () => {
    open.close();
    following?.close();
  };
}

// Trials side by side

function comparePage(namespace, name, numbers) {
  crumbs(`${name}: compare`, [name, address(namespace, name)], [`compare ${numbers.join(", ")}`]);
  const said = notice();
  const place_ = h("div");
  main.replaceChildren(h("h1", {}, `${name}: trials ${numbers.join(", ")}`), h("p", { class: "why" }, "Rows that differ are marked."), said.element, place_);
  let columns = [];
  const rows = new Map();
  function show() {
    const found = numbers.map((each) => rows.get(each)).filter(Boolean);
    place_.replaceChildren(h("div", { class: "scroll card", tabindex: "0", role: "region", "aria-label": "Comparison" }, h("table", { class: "plain" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Trial"), found.map((row) => h("th", { scope: "col" }, h("a", { href: address(namespace, name, "trial", row[0]) }, String(row[0])))))),
      h("tbody", {}, columns.slice(1).map((column, index) => {
        const cells = found.map((row) => row[index + 1]);
        if (cells.every((cell) => cell === null || cell === "")) return null;
        const differs = new Set(cells.map(text)).size > 1;
        return h("tr", { class: differs ? "differs" : null }, h("th", { scope: "row" }, column.title), cells.map((cell) => h("td", {},
          column.key === "state" ? badge(cell) : column.key.endsWith("Time") ? clock(cell) : typeof cell === "number" ? number(cell) : text(cell))));
      })))));
    const missing = numbers.filter((each) => !rows.has(each));
    said.trouble(missing.length ? `${name} has no trial ${missing.join(", ")}` : "");
  }
  const open = stream(`${place(namespace, name)}/stream`, {
    reset(all) {
      columns = all.columns;
      for (const row of all.rows) rows.set(row[0], row);
      show();
    },
    update(some) {
      for (const row of some.rows) rows.set(row[0], row);
      if (some.rows.some(([it]) => numbers.includes(it))) show();
    },
    gone: ({ message }) => { said.trouble(message); open.close(); },
  });
  return () => open.close();
}

addEventListener("hashchange", route);
route();
