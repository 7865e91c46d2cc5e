// The figures of reports in the page: drawn again when trials have changed, when the place is resized, and for dark mode.
import { h } from "./dom.js";
import { get } from "./wire.js";
import { draw } from "./figure.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const SPARE = 5; // a figure is drawn for at most a sixth of the time,
const LEAST_MS = 500; // but seldom enough to be looked at,
const MOST_MS = 5000; // and often enough to be believed: pauses between two drawings
let library = null;

function loaded() {
  library ??= new Promise((resolve, reject) => {
    const failed = () => {
      library = null; // the server may only be away
      reject(new Error("the server could not make the JavaScript of figures"));
    };
    document.head.append(h("script", { src: "/static/vega.js", onload: resolve, onerror: failed }));
  });
  return library;
}

const passed = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Figure {
  // address(): of the figure's specification. choose(trial): called when a person clicks a trial. tell(empty): called
  // when it is known whether there is something to draw.
  constructor({ label, address, choose = null, tell = () => {} }) {
    this.tell = tell;
    this.address = address;
    this.choose = choose;
    this.place = h("div", { class: "canvas", role: "img", "aria-label": label });
    this.words = h("p", { class: "small empty", hidden: true });
    this.note = h("p", { class: "small note" });
    this.element = h("div", { class: "figure" }, this.place, this.note, this.words);
    this.version = null; // that is drawn
    this.wanted = null;
    this.next = 0; // not earlier
    this.width = 0;
    this.redraw = () => this.spec && this.embed();
    dark.addEventListener("change", this.redraw);
    this.resized = new ResizeObserver(() => {
      if (this.spec && Math.abs(this.place.clientWidth - this.width) > 4) this.embed();
    });
    this.resized.observe(this.place);
  }

  // Draw again unless that version is drawn. One that comes meanwhile is drawn next; one that failed is tried again.
  async show(version) {
    this.wanted = version;
    if (this.drawing) return;
    this.drawing = true;
    while (this.wanted !== this.version && !this.closed) {
      await passed(this.next - performance.now());
      if (!this.closed) await this.follow();
    }
    this.drawing = false;
  }

  // Draw what the address is now.
  again() {
    const version = this.wanted;
    this.version = null;
    this.next = 0;
    this.show(version);
  }

  async follow() {
    const began = performance.now();
    const version = this.wanted;
    let pause = MOST_MS;
    try {
      await loaded();
      await this.take(await get(this.address()));
      this.version = version;
      pause = Math.min(MOST_MS, Math.max(LEAST_MS, SPARE * (performance.now() - began)));
    } catch (error) {
      this.tell(false);
      this.words.hidden = false;
      this.words.textContent = error.message;
    }
    this.next = performance.now() + pause;
  }

  async take(spec) {
    const { values } = spec.data;
    this.tell(!values.length);
    this.words.hidden = values.length > 0;
    this.place.hidden = !values.length;
    this.words.textContent = spec.usermeta.empty;
    this.note.textContent = values.length ? spec.usermeta.note : "";
    if (!values.length) return;
    const shape = JSON.stringify({ ...spec, data: null, title: null, usermeta: null });
    this.spec = { ...spec, data: { name: "rows", values } };
    if (this.view && shape === this.shape) {
      await this.view.data("rows", values).runAsync(); // what was chosen in it stays
      return;
    }
    await this.embed();
    this.shape = shape;
  }

  async embed() {
    this.width = this.place.clientWidth;
    if (!this.width) return;
    this.view?.finalize();
    const { view } = await draw(this.place, this.spec, { dark: dark.matches });
    this.view = view;
    if (this.choose) {
      view.addEventListener("click", (event, item) => {
        const trial = item?.datum?.trial;
        if (trial !== undefined) this.choose(trial);
      });
    }
  }

  close() {
    this.closed = true;
    this.resized.disconnect();
    dark.removeEventListener("change", this.redraw);
    this.view?.finalize();
  }
}

// A figure of curves, with a choice of the metric where there are several. at: the address of the search. query: its end.
export class Curves extends Figure {
  constructor({ at, query, ...more }) {
    super({ ...more, address: () => `${at}/figures/curves.json?${query()}&metric=${encodeURIComponent(this.metric.value)}` });
    this.metric = h("select", { "aria-label": "Metric of the curves", hidden: true, onchange: () => this.again() });
  }

  take(spec) {
    const { metrics } = spec.usermeta;
    const chosen = this.metric.value || metrics[0];
    if (metrics.join("\n") !== [...this.metric.options].map((option) => option.value).join("\n")) {
      this.metric.replaceChildren(...metrics.map((metric) => h("option", { value: metric }, metric)));
      if (metrics.includes(chosen)) this.metric.value = chosen;
    }
    this.metric.hidden = metrics.length < 2;
    return super.take(spec);
  }
}
