// The table of trials: only the rows in sight are elements, so ten thousand are as fast as ten.
// Filtering and sorting of many rows are put off, so that they take at most a quarter of the time.
import { h, badge, count, number, text, when, redraw } from "./dom.js";
import { STATES, conditions } from "./filter.js";

const HEIGHT = 35; // of a row, with its line: page.css
const TALL = 560; // of the table, at most: page.css
const MORE = 8; // rows above and below those in sight
const SPARE = 4;
const FRESH_MS = 1500; // how long a changed row is marked
const HIDDEN = new Set(["step", "attempts", "labels", "endTime"]);

export class TrialTable {
  // link(number): the address of a trial. choose(numbers): called when the ticked trials change.
  constructor({ link, choose }) {
    this.link = link;
    this.choose = choose;
    this.columns = [];
    this.rows = new Map();
    this.fresh = new Map();
    this.sort = { key: "number", down: true };
    this.ticked = new Set();
    this.best = null;
    this.hidden = null;
    this.filter = h("input", { type: "search", "aria-label": "Filter trials", "aria-describedby": "wrong-filter", placeholder: "Filter: failed, lr<0.01, value>=0.9 …", oninput: () => this.select(true) });
    this.state = h("select", { "aria-label": "State", onchange: () => this.select(true) }, h("option", { value: "" }, "all states"),
      STATES.map((state) => h("option", { value: state }, state)));
    this.choices = h("div");
    this.count = h("span", { class: "count", role: "status" });
    this.wrong = h("p", { class: "wrong", id: "wrong-filter", role: "status" });
    this.wanted = []; // conditions of the last filter without a mistake
    this.head = h("tr");
    this.body = h("tbody");
    this.grid = h("table", { "aria-label": "Trials" }, h("thead", {}, this.head), this.body);
    this.scroll = h("div", { class: "scroll rows", tabindex: "0", role: "region", "aria-label": "Trials, scrollable", onscroll: () => this.draw() }, this.grid);
    this.tools = h("div", { class: "tools" }, this.filter, this.state, h("details", {}, h("summary", {}, "Columns"), this.choices), this.count);
    this.element = h("div", {}, this.tools, this.wrong, this.scroll);
    this.widths = new Map();
    this.next = 0;
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.scroll);
  }

  close() {
    this.resized.disconnect();
    clearTimeout(this.timer);
  }

  // rows: by number. The table keeps the map, which its owner changes before it calls update().
  reset(columns, rows) {
    const before = this.columns.map((column) => column.key).join("\n");
    this.columns = columns;
    this.at = new Map(columns.map((column, index) => [column.key, index]));
    this.rows = rows;
    if (this.hidden === null) this.hidden = new Set(columns.filter((column) => HIDDEN.has(column.key) || column.hidden).map((column) => column.key));
    if (before !== columns.map((column) => column.key).join("\n")) this.heading();
    this.select();
  }

  update(rows, removed) {
    const now = performance.now();
    if (rows.length < 100) for (const row of rows) this.fresh.set(row[0], now);
    if (this.timer) return;
    if (this.keepsOrder(rows, removed)) {
      this.tell();
      this.draw(true);
      return;
    }
    this.timer = setTimeout(() => redraw(() => {
      this.timer = 0;
      this.select();
    }), Math.max(0, this.next - now));
  }

  heading() {
    this.choices.replaceChildren(...this.columns.slice(1).map((column) =>
      h("label", {}, h("input", { type: "checkbox", checked: !this.hidden.has(column.key), onchange: (event) => {
        if (event.target.checked) this.hidden.delete(column.key);
        else this.hidden.add(column.key);
        this.heading();
        this.draw(true);
      } }), ` ${column.title}`)));
    this.widths.clear();
    this.shown = this.columns.map((column, index) => ({ ...column, index })).filter((column) => !this.hidden.has(column.key));
    this.head.replaceChildren(
      h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Compare")),
      ...this.shown.map((column) => h("th", {
        scope: "col",
        class: column.number ? "number" : null,
        "aria-sort": this.sort.key === column.key ? (this.sort.down ? "descending" : "ascending") : null,
      }, h("button", { type: "button", onclick: () => this.order(column.key) }, column.title))));
  }

  order(key) {
    this.sort = { key, down: this.sort.key === key ? !this.sort.down : false };
    const at = this.shown.findIndex((column) => column.key === key);
    this.heading();
    this.select(true);
    this.head.querySelectorAll("button")[at]?.focus();
  }

  // Return whether the rows need no sorting: changed ones keep their places, and new ones were added to the list here.
  keepsOrder(rows, removed) {
    if (!this.list || removed.length || this.filter.value.trim() || this.state.value || this.sort.key !== "number") return false;
    const { down } = this.sort;
    const newest = this.list.at(down ? 0 : -1) ?? -1;
    const added = rows.map((row) => row[0]).filter((trial) => trial > newest).sort((one, other) => one - other);
    if (this.list.length + added.length !== this.rows.size) return false;
    if (down) this.list.unshift(...added.reverse());
    else this.list.push(...added);
    return true;
  }

  // Which rows are shown, in which order: the numbers of the trials.
  select(top = false) {
    const began = performance.now();
    this.read();
    const { wanted } = this;
    const state = this.state.value;
    const key = this.at?.get(this.sort.key) ?? 0;
    const sign = this.sort.down ? -1 : 1;
    let list = [...this.rows.values()];
    if (state || wanted.length) list = list.filter((row) => (!state || row[1] === state) && wanted.every((holds) => holds(row)));
    if (key === 0) list.sort((one, other) => sign * (one[0] - other[0]));
    else list.sort((one, other) => sign * compare(one[key], other[key], sign) || one[0] - other[0]);
    this.list = list.map((row) => row[0]);
    this.tell();
    if (top) this.scroll.scrollTop = 0;
    this.draw(true);
    this.next = performance.now() + SPARE * (performance.now() - began);
  }

  tell() {
    const all = this.rows.size;
    const words = this.list.length === all ? `${count(all)} trial${all === 1 ? "" : "s"}` : `${count(this.list.length)} of ${count(all)} trials`;
    if (this.count.textContent !== words) this.count.textContent = words;
  }

  // While the filter has a mistake, which is said, the rows are those of the last one without.
  read() {
    let mistake = "";
    try {
      this.wanted = conditions(this.filter.value, this.columns);
    } catch (error) {
      mistake = error.message;
    }
    if (this.wrong.textContent !== mistake) this.wrong.textContent = mistake;
    this.filter.setAttribute("aria-invalid", String(mistake !== ""));
  }

  draw(always = false) {
    if (!this.list || !this.shown) return;
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / HEIGHT) - MORE);
    const last = Math.min(this.list.length, first + Math.ceil(TALL / HEIGHT) + 2 * MORE);
    if (!always && first === this.first && last === this.last) return;
    [this.first, this.last] = [first, last];
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const space = (rows) => {
      const cell = h("td", { colspan: this.shown.length + 1 });
      cell.style.height = `${rows * HEIGHT}px`;
      return h("tr", { class: "space", "aria-hidden": "true" }, cell);
    };
    this.grid.setAttribute("aria-rowcount", this.list.length + 1);
    const now = performance.now();
    const there = this.list.slice(first, last).map((trial) => this.rows.get(trial)).filter(Boolean); // some may be deleted since
    const rows = there.map((row, index) => this.row(row, first + index, now));
    this.body.replaceChildren(...(first ? [space(first)] : []), ...rows, ...(last < this.list.length ? [space(this.list.length - last)] : []));
    if (focused) this.body.querySelector(`[data-key="${focused}"]`)?.focus({ preventScroll: true });
    this.keepWidths();
  }

  // Columns only grow: other rows in sight must not move them.
  keepWidths() {
    for (const [index, column] of this.shown.entries()) {
      const head = this.head.children[index + 1];
      const width = Math.max(head.offsetWidth, this.widths.get(column.key) ?? 0);
      if (width === this.widths.get(column.key)) continue;
      this.widths.set(column.key, width);
      head.style.minWidth = `${width}px`;
    }
  }

  row(row, index, now) {
    const [trial] = row;
    const fresh = now - (this.fresh.get(trial) ?? -Infinity) < FRESH_MS;
    const tick = h("input", {
      type: "checkbox", checked: this.ticked.has(trial), "aria-label": `Compare trial ${trial}`, "data-key": `tick${trial}`,
      onchange: (event) => {
        if (event.target.checked) this.ticked.add(trial);
        else this.ticked.delete(trial);
        this.choose([...this.ticked]);
      },
    });
    return h("tr", { class: [trial === this.best ? "best" : "", fresh ? "fresh" : ""].join(" ").trim() || null, "aria-rowindex": index + 2 },
      h("td", {}, tick), this.shown.map((column) => this.cell(column, row)));
  }

  cell(column, row) {
    const value = row[column.index];
    switch (column.key) {
      case "number": return h("td", {}, h("a", { href: this.link(value), "data-key": `link${value}` }, String(value)), value === this.best ? " ★" : null);
      case "state": return h("td", {}, badge(value));
      case "startTime": case "endTime": return h("td", {}, when(value));
      case "reason": case "labels": return h("td", { title: value || null }, value);
      default: {
        const words = typeof value === "number" ? number(value) : text(value);
        const whole = typeof value === "number" ? String(value) : words;
        return h("td", { class: typeof value === "number" || value === null ? "number" : null, title: whole !== words || words.length > 24 ? whole : null }, words);
      }
    }
  }
}

// Missing values last in either order; sign is the order's.
function compare(one, other, sign) {
  if (one === other) return 0;
  if (one === null || one === undefined) return sign;
  if (other === null || other === undefined) return -sign;
  if (typeof one === "number" && typeof other === "number") return one - other;
  return text(one) < text(other) ? -1 : 1;
}
