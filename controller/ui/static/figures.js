// The figures of reports in the page: drawn again when trials have ended, when the place is resized, and for dark mode.
import { h } from "./dom.js";
import { get } from "./wire.js";
import { draw } from "./figure.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const SPARE = 10; // a figure takes at most a tenth of the time
let library = null;

function loaded() {
  library ??= new Promise((resolve, reject) => {
    const script = h("script", { src: "/static/vega.js", onload: resolve, onerror: () => reject(new Error("the server could not make the JavaScript of figures")) });
    document.head.append(script);
  });
  return library;
}

export class Figure {
  // address(): of the figure's specification. choose(trial): called when a person clicks a trial. tell(empty): called
  // when it is known whether there is something to draw.
  constructor({ label, address, choose = null, tell = () => {} }) {
    this.tell = tell;
    this.address = address;
    this.choose = choose;
    this.place = h("div", { class: "canvas", role: "img", "aria-label": label });
    this.words = h("p", { class: "small empty", hidden: true });
    this.element = h("div", { class: "figure" }, this.place, this.words);
    this.version = null;
    this.wanted = null;
    this.next = 0;
    this.width = 0;
    this.redraw = () => this.spec && this.embed();
    dark.addEventListener("change", this.redraw);
    this.resized = new ResizeObserver(() => {
      if (this.spec && Math.abs(this.place.clientWidth - this.width) > 4) this.embed();
    });
    this.resized.observe(this.place);
  }

  // Draw again unless that version is shown.
  async show(version) {
    this.wanted = version;
    if (this.busy || this.closed || version === this.version) return;
    this.busy = true;
    const began = performance.now();
    try {
      await loaded();
      await new Promise((resolve) => setTimeout(resolve, Math.max(0, this.next - performance.now())));
      if (this.closed) return;
      this.version = this.wanted;
      await this.take(await get(this.address()));
    } catch (error) {
      this.words.hidden = false;
      this.words.textContent = error.message;
    } finally {
      this.busy = false;
      this.next = performance.now() + Math.max(1000, SPARE * (performance.now() - began));
    }
    if (this.wanted !== this.version) this.show(this.wanted);
  }

  async take(spec) {
    const { values } = spec.data;
    this.tell(!values.length);
    this.words.hidden = values.length > 0;
    this.place.hidden = !values.length;
    this.words.textContent = spec.usermeta.empty;
    if (!values.length) return;
    const shape = JSON.stringify({ ...spec, data: null, title: null });
    this.spec = { ...spec, data: { name: "rows", values } };
    if (this.view && shape === this.shape) {
      await this.view.data("rows", values).runAsync(); // what was chosen in it stays
      return;
    }
    this.shape = shape;
    await this.embed();
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
