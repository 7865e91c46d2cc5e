// What runs and what waits in each namespace, in the order of admission, and what its quota leaves.
import { h, badge, when } from "./dom.js";
import { stream } from "./wire.js";
import { main, address, crumbs, grid, notice } from "./parts.js";

export function queuePage() {
  crumbs("Queue", ["queue and quota"]);
  const said = notice();
  const place = h("div");
  main.replaceChildren(h("h1", {}, "Queue and quota"), h("p", { class: "why" }, "Running and waiting trials of all unfinished experiments."), said.element, place);
  const open = stream(() => "/api/queue", {
    queue({ namespaces, trouble }) {
      said.trouble(trouble);
      place.replaceChildren(...namespaces.map(section));
      if (!namespaces.length) place.replaceChildren(h("p", { class: "empty" }, "Nothing runs and nothing waits."));
    },
  });
  return () => open.close();
}

function section({ namespace, quotas, quotaTrouble, trials, more }) {
  return h("section", { class: "card" }, h("h2", {}, namespace),
    quotas.length ? h("ul", { class: "chips", role: "list" }, quotas.map((each) => h("li", {}, h("span", { class: "key" }, each.resource), " ", h("b", {}, `${each.used} of ${each.allowed}`), h("span", { class: "key" }, ` quota ${each.quota}`)))) : "",
    quotaTrouble ? h("p", { class: "small" }, `quota unknown: ${quotaTrouble}`) : "",
    trials.length ? grid(`Trials in ${namespace}`, ["Experiment", "Trial", "State", "Since", "Node", "Reason"], trials.map((each) => [
      h("a", { href: address(namespace, each.experiment) }, each.experiment), h("a", { href: address(namespace, each.experiment, "trial", each.number) }, String(each.number)),
      badge(each.state), when(each.startTime), each.node || "–", each.reason || "–"])) : h("p", { class: "small" }, "no trial runs or waits"),
    more ? h("p", { class: "small" }, `and ${more} more`) : "");
}
