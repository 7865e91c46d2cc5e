// All experiments, or all studies of a server.
import { h, badge, number, prose, when } from "./dom.js";
import { IN_CLUSTER, KIND, SIGNS_OUT, post, stream } from "./wire.js";
import { main, address, counts, crumbs, done, notice, progress } from "./parts.js";

const EMPTY = {
  experiments: ["No experiments yet. Start one with ", h("code", {}, "tuner run experiment.yaml"), ", or in Python with ", h("code", {}, "tuner.minimize"), "."],
  cluster: ["No experiments yet, or none that you may see. Start one with ", h("code", {}, "kubectl apply -f experiment.yaml"), "."],
  studies: ["No studies yet, or none that you may read."],
};

export function listPage() {
  crumbs("");
  const said = notice();
  const list = h("ul", { class: "list", role: "list" });
  const where = h("p", { class: "small" });
  main.replaceChildren(
    h("div", { class: "head" }, h("h1", {}, KIND === "experiments" ? "Experiments" : "Studies"),
      h("div", { class: "actions" }, KIND === "experiments" && !IN_CLUSTER ? h("a", { class: "button", href: "#/queue" }, "Queue and quota") : null,
        SIGNS_OUT ? h("button", { type: "button", onclick: signOut }, "Sign out") : null)),
    where, said.element, list);
  const open = stream(() => "/api/stream", {
    list({ searches, trouble, source }) {
      said.trouble(trouble);
      where.replaceChildren(...source.split("\n").map((line) => h("div", {}, line)));
      const focused = document.activeElement?.getAttribute("href");
      list.replaceChildren(...searches.map(item));
      if (!searches.length) list.replaceChildren(h("li", { class: "empty" }, h("p", {}, EMPTY[IN_CLUSTER ? "cluster" : KIND])));
      if (focused) list.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    },
  });
  return () => open.close();
}

async function signOut() {
  await post("/api/sign-out");
  location.reload();
}

function item(it) {
  return h("li", {},
    h("div", {},
      h("a", { class: "name", href: address(it.namespace, it.name) }, it.name), it.state ? badge(it.state) : null,
      IN_CLUSTER ? h("span", { class: "small" }, " in ", h("b", {}, it.namespace)) : null,
      h("div", { class: "small" }, ...prose(it.why))),
    h("div", {},
      h("div", { class: "small" }, `best ${it.metric}`),
      h("div", { class: "big" }, number(it.best?.value)),
      it.best ? h("div", { class: "small" }, `trial ${it.best.number}`) : null),
    h("div", {}, h("div", { class: "line" }, h("b", {}, done(it)), h("span", { class: "small" }, ...(it.startTime ? ["started ", when(it.startTime)] : []))), progress(it), h("div", { class: "small" }, counts(it))));
}
