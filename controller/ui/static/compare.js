// Trials side by side.
import { h, badge, number, when, text } from "./dom.js";
import { Curves } from "./figures.js";
import { Search } from "./search.js";
import { place as searchPlace } from "./wire.js";
import { main, address, crumbs, notice } from "./parts.js";

export function comparePage(namespace, name, numbers) {
  crumbs(`${name}: compare`, [name, address(namespace, name)], [`compare ${numbers.join(", ")}`]);
  const said = notice();
  const absent = h("p", { class: "wrong", role: "status" });
  const place = h("div");
  const curves = new Curves({
    label: "Learning curves of these trials", at: searchPlace(namespace, name),
    query: () => `trials=${numbers.filter((each) => it.rows.has(each)).join(",")}`, tell: (empty) => { card.hidden = empty; },
  });
  const card = h("section", { class: "card", hidden: true, "data-figure": "curves" },
    h("div", { class: "head" }, h("h2", {}, "Learning curves"), curves.metric), curves.element);
  main.replaceChildren(h("h1", {}, `${name}: trials ${numbers.join(", ")}`), h("p", { class: "why" }, "Rows that differ are marked."), said.element, absent, place, card);
  const it = new Search(namespace, name, numbers);
  function show() {
    const found = numbers.map((each) => it.rows.get(each)).filter(Boolean);
    place.replaceChildren(h("div", { class: "scroll card", tabindex: "0", role: "region", "aria-label": "Comparison" }, h("table", { class: "plain compare" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Trial"), found.map((row) => h("th", { scope: "col" }, h("a", { href: address(namespace, name, "trial", row[0]) }, String(row[0])))))),
      h("tbody", {}, it.columns.slice(1).map((column, index) => {
        const cells = found.map((row) => row[index + 1]);
        if (cells.every((cell) => cell === null || cell === "")) return null;
        // Times always differ.
        const differs = !column.key.endsWith("Time") && new Set(cells.map(text)).size > 1;
        return h("tr", { class: differs ? "differs" : null }, h("th", { scope: "row" }, column.title), cells.map((cell) => h("td", {}, shown(column, cell))));
      })))));
    if (it.summary.loaded && found.length) curves.show(it.position);
    const missing = numbers.filter((each) => !it.rows.has(each));
    absent.textContent = it.summary.loaded && missing.length ? `${name} has no trial ${missing.join(", ")}` : "";
  }
  const open = it.follow({ reset: show, update: show, trouble: (message) => said.trouble(message), gone: (message) => said.trouble(message) });
  return () => {
    open.close();
    curves.close();
  };
}

function shown(column, cell) {
  if (column.key === "state") return badge(cell);
  if (column.key.endsWith("Time")) return when(cell);
  return typeof cell === "number" ? number(cell) : text(cell);
}
