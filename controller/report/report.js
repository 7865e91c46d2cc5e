const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
function drawAll() {
  for (const [name, spec] of Object.entries(figures)) {
    const place = document.getElementById("figure-" + name);
    draw(place, spec, {dark: dark.matches}).catch(error => { place.textContent = String(error); });
  }
}
drawAll();
dark.addEventListener("change", drawAll);
let width = document.body.clientWidth, resized;
addEventListener("resize", () => {
  if (document.body.clientWidth === width) return;
  width = document.body.clientWidth;
  clearTimeout(resized);
  resized = setTimeout(drawAll, 200);
});
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("th").forEach((head, place) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => row.cells[place].textContent;
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
      return down ? -order : order;
    });
    table.tBodies[0].append(...rows);
  }));
}
