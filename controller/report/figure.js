// Draws a figure of controller/report/figures.py as wide as its place. For the page and for HTML reports.

const TEXT = { light: "#566073", dark: "#a3adbf" };
const LINES = { light: "#e4e7ee", dark: "#2b3240" };
const AXES = 130; // around a chart that is part of a figure: axis, padding and legend
const SMALL = 260; // the least width of one of several charts side by side

// The figure as wide as given, without its title: pages have headings. Charts side by side become fewer in a row.
export function fitted(spec, width) {
  const { title, $schema, ...rest } = spec;
  if (spec.concat) {
    const columns = Math.max(1, Math.min(spec.columns ?? 3, spec.concat.length, Math.floor(width / SMALL)));
    const each = Math.max(120, Math.floor(width / columns) - 75);
    return { ...rest, columns, concat: spec.concat.map((chart) => ({ ...chart, width: each })) };
  }
  if (spec.vconcat) {
    const each = Math.max(120, width - AXES);
    return { ...rest, vconcat: spec.vconcat.map((chart) => ({ ...chart, width: each })) };
  }
  return { ...rest, width: Math.max(160, width), autosize: { type: "fit-x", contains: "padding" } };
}

function config(scheme) {
  const text = { labelColor: TEXT[scheme], titleColor: TEXT[scheme] };
  return {
    background: "transparent",
    font: "system-ui, sans-serif",
    view: { stroke: null },
    axis: { ...text, gridColor: LINES[scheme], domainColor: LINES[scheme], tickColor: LINES[scheme], titleFontWeight: 500, labelFontSize: 11, titleFontSize: 11 },
    legend: { ...text, labelFontSize: 11, titleFontSize: 11, titleFontWeight: 500 },
    header: text,
  };
}

// The darkest colors of the scale would not be seen on a dark page.
const BRIGHT = { name: "plasma", extent: [0.35, 0.95] };

function colored({ data, ...spec }, scheme) {
  const change = (key, value) => {
    if (scheme !== "dark") return value;
    if (key === "scheme") return BRIGHT;
    return typeof value === "string" ? (spec.usermeta.onDark[value] ?? value) : value;
  };
  return { data, ...JSON.parse(JSON.stringify(spec, change)) };
}

// Draws with Vega-Embed, which must be loaded. The interpreter needs no eval, which the page's policy forbids.
export function draw(place, spec, { dark, tooltip = true }) {
  const scheme = dark ? "dark" : "light";
  return vegaEmbed(place, colored(fitted(spec, place.clientWidth), scheme), {
    mode: "vega-lite", actions: false, ast: true, renderer: "canvas", defaultStyle: false, config: config(scheme),
    tooltip: tooltip ? { disableDefaultStyle: true } : false,
  });
}
