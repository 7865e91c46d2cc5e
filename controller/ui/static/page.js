// Which page the address asks for.
import { refreshTimes } from "./dom.js";
import { listPage } from "./list.js";
import { experimentPage } from "./experiment.js";
import { trialPage } from "./trial.js";
import { comparePage } from "./compare.js";
import { queuePage } from "./queue.js";

const main = document.getElementById("main");
let leave = () => {};

function route() {
  leave();
  const [kind, namespace, name, what, which] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  if (kind === "search" && name) {
    if (what === "trial" && /^\d+$/.test(which)) leave = trialPage(namespace, name, Number(which));
    else if (what === "compare" && /^\d+(,\d+)*$/.test(which)) leave = comparePage(namespace, name, which.split(",").map(Number));
    else leave = experimentPage(namespace, name);
  } else if (kind === "queue") leave = queuePage();
  else leave = listPage();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

addEventListener("hashchange", route);
setInterval(refreshTimes, 5000);
route();
