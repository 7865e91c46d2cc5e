// One trial: its result, parameters, learning curve, attempts, artifacts, provenance, and its log while it grows.
import { h, badge, number, prose, when, duration, text, events } from "./dom.js";
import { KIND, get, post, place, stream } from "./wire.js";
import { ask } from "./dialog.js";
import { Search } from "./search.js";
import { Curves } from "./figures.js";
import { main, address, crumbs, definitions, grid, inOrder, notice, showState, stateAndWhy } from "./parts.js";

const MOST_LINES = 400; // parts of a log that stay in the page
const MOST_MEASUREMENTS = 500;

export function trialPage(namespace, name, trial) {
  crumbs(`${name}/${trial}`, [name, address(namespace, name)], [`trial ${trial}`]);
  const at = `${place(namespace, name)}/trials/${trial}`;
  const said = notice();
  const { state, why } = stateAndWhy();
  const parts = h("div");
  const rest = h("div");
  const log = h("pre", { class: "log", tabindex: "0", role: "log", "aria-label": "Log", "aria-live": "off" });
  const choice = h("select", { "aria-label": "Attempt", onchange: () => follow(Number(choice.value)) });
  const logCard = h("section", { class: "card", hidden: true }, h("div", { class: "head" }, h("h2", {}, "Log"), choice), log);
  const curve = new Curves({ label: "Learning curve of the trial", at: place(namespace, name), query: () => `trials=${trial}` });
  const curveCard = h("section", { class: "card", hidden: true, "data-figure": "curve" },
    h("div", { class: "head" }, h("h2", {}, "Learning curve"), curve.metric), curve.element);
  const relabeling = h("button", { type: "button", onclick: relabel, hidden: true }, "Labels");
  const retrying = h("button", { type: "button", onclick: retry, hidden: true }, "Retry");
  const steps = h("nav", { class: "steps", "aria-label": "Neighboring trials" },
    trial > 0 ? h("a", { class: "button", href: address(namespace, name, "trial", trial - 1), "aria-label": "Previous trial" }, "←") : "",
    h("a", { class: "button", href: address(namespace, name, "trial", trial + 1), "aria-label": "Next trial" }, "→"));
  main.replaceChildren(
    h("div", { class: "head" }, h("h1", {}, `${name}, trial ${trial}`), state, h("div", { class: "actions" }, retrying, relabeling, steps)),
    why, said.element, parts, curveCard, logCard, rest);
  const watched = new Search(namespace, name, [trial]);
  let following = null;
  let attempt = 0;
  let shown = null;
  function follow(which) {
    attempt = which;
    following?.close();
    log.replaceChildren();
    let read = "";
    following = stream(() => `${at}/log?attempt=${which}&after=${read}`, {
      lines({ text: added, first, skipped }, id) {
        read = id;
        const end = log.scrollTop + log.clientHeight >= log.scrollHeight - 40;
        if (first) log.replaceChildren(skipped ? `… ${skipped} bytes before\n` : "");
        log.append(added);
        while (log.childNodes.length > MOST_LINES) log.firstChild.remove();
        if (end) log.scrollTop = log.scrollHeight;
      },
    }, { quiet: true });
  }
  async function asked(question) {
    const answer = await ask(question);
    if (!answer) return;
    said.say(answer.message);
    await load();
  }
  function relabel() {
    const value = Object.entries(shown?.labels ?? {}).map(([key, of]) => `${key}=${of}`).join("\n");
    return asked({
      title: `Labels of trial ${trial}`, words: "One label per line: name=value.", action: "Save",
      fields: [h("label", {}, "Labels", h("textarea", { name: "labels", value }))],
      send: ({ labels }) => post(`${at}/labels`, { labels: pairs(labels) }),
    });
  }
  function retry() {
    return asked({
      title: `Retry trial ${trial}?`, words: "It runs again with the same parameters, and the search continues. A controller is started on this machine.",
      action: "Retry", send: () => post(`${at}/retry`),
    });
  }
  async function load() {
    try {
      shown = await get(at);
    } catch (error) {
      said.trouble(error.message);
      return;
    }
    said.trouble("");
    const it = shown;
    relabeling.hidden = !it.actions.labels;
    retrying.hidden = !it.actions.retry;
    showState(state, it.state);
    why.replaceChildren(...prose(it.why));
    const numbers = (it.attempts ?? []).map((each) => each.number);
    if (numbers.length && choice.options.length !== numbers.length) {
      choice.replaceChildren(...numbers.map((each) => h("option", { value: each }, `attempt ${each}`)));
      choice.value = numbers.at(-1);
      follow(numbers.at(-1));
    }
    logCard.hidden = !numbers.length;
    const newest = it.measurements.at(-1)?.attempt;
    const measured = it.measurements.filter((each) => each.attempt === newest);
    curveCard.hidden = measured.length < 2;
    if (!curveCard.hidden) curve.show(watched.position);
    showParts(it);
    showRest(it, measured);
  }
  function showParts(it) {
    const metrics = Object.entries(it.metrics ?? {}).map(([key, value]) => [key, number(value)]);
    const labels = Object.entries(it.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(", ");
    parts.replaceChildren(h("div", { class: "two" },
      h("section", { class: "card" }, h("h2", {}, "Result"), h("div", { class: "value" }, number(it.value)),
        definitions([["step", it.step], ...metrics, ["started", when(it.startTime)], ["took", duration(it.startTime, it.endTime)], ["client", it.clientId], ["labels", labels], ["reason", it.reason]])),
      h("section", { class: "card" }, h("h2", {}, "Parameters"), definitions(inOrder(it.parameters, watched.summary?.parameters).map(([key, value]) => [key, typeof value === "number" ? number(value) : text(value)])))));
  }
  function showRest(it, measured) {
    const opened = new Set([...rest.querySelectorAll("details[open]")].map((each) => each.dataset.part));
    const folded = (part, words, ...children) => h("details", { class: "card", open: opened.has(part), "data-part": part }, h("summary", {}, words), children);
    const provenance = Object.entries(it.provenance?.[attempt] ?? {}).filter(([key]) => key !== "parameters");
    rest.replaceChildren(
      KIND === "experiments" ? h("section", { class: "card" }, h("h2", {}, "Attempts"), it.attempts?.length
        ? grid("Attempts", ["Attempt", "State", "Started", "Took", "Exit", "Node", "Reason"], it.attempts.map((each) => [
          String(each.number), badge(each.state), when(each.startTime), duration(each.startTime, each.endTime),
          each.signal ? `signal ${each.signal}` : text(each.exitCode), text(each.node),
          [each.reason, each.logGap && `gap in its log: ${each.logGap}`, each.valueDoubt].filter(Boolean).join("; ")]))
        : h("p", { class: "small" }, "It was not run here.")) : "",
      it.artifacts?.length ? h("section", { class: "card" }, h("h2", {}, "Artifacts"), grid("Artifacts", ["File", "Bytes"], it.artifacts.map((each) => [
        h("a", { href: `${at}/artifacts/${each.attempt}/${each.path.split("/").map(encodeURIComponent).join("/")}`, download: "" }, each.path), String(each.bytes)]))) : "",
      measured.length ? folded("measurements", `Measurements (${measured.length})`, grid("Measurements", ["Step", "Metric", "Value"], measured.slice(-MOST_MEASUREMENTS).map((each) => [String(each.step), each.metric, number(each.value)]))) : "",
      provenance.length ? folded("provenance", "Provenance", definitions(provenance.map(([key, value]) => [key, h("span", { class: "mono" }, Array.isArray(value) ? value.join(" ") : text(value))]))) : "",
      it.events?.length ? h("section", { class: "card" }, h("h2", {}, "Events"), events(it.events)) : "");
  }
  const open = watched.follow({
    reset: load,
    update: (rows) => rows.length && load(),
    trouble: (message) => said.trouble(message),
    gone: (message) => said.trouble(message),
  });
  return () => {
    open.close();
    following?.close();
    curve.close();
  };
}

// Lines of name=value.
function pairs(lines) {
  return Object.fromEntries(lines.split("\n").filter((line) => line.trim()).map((line) => {
    const [key, ...words] = line.split("=");
    return [key.trim(), words.join("=").trim()];
  }));
}
