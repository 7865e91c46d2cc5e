// Ask before anything is changed.
import { h } from "./dom.js";

// The answer of `send`, or null if the person chose not to. send(values): called with the values of the fields by name. If
// it fails, the dialog says why and stays, with what was written. fields: elements with a name, in labels.
export function ask({ title, words, action, danger = false, fields = [], send }) {
  return new Promise((resolve) => {
    const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
    const yes = h("button", { class: danger ? "danger" : "main" }, action);
    const form = h("form", {},
      h("h2", { id: "question" }, title),
      words ? h("p", {}, words) : null,
      fields,
      trouble,
      h("div", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), yes));
    const dialog = h("dialog", { "aria-labelledby": "question" }, form);
    let answer = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      yes.disabled = true;
      try {
        answer = await send(Object.fromEntries(new FormData(form)));
        dialog.close();
      } catch (error) {
        trouble.hidden = false;
        trouble.textContent = error.message;
        yes.disabled = false;
        (form.querySelector("input, textarea") ?? yes).focus();
      }
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
