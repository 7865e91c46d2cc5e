// Ask before anything is changed.
import { h } from "./dom.js";

// What the person chose: the values of the fields by name, or null. fields: elements with a name, in labels.
export function ask({ title, words, action, danger = false, fields = [] }) {
  return new Promise((resolve) => {
    const form = h("form", { method: "dialog" },
      h("h2", { id: "question" }, title),
      words ? h("p", {}, words) : null,
      fields,
      h("div", { class: "buttons" },
        h("button", { value: "no", formnovalidate: true }, "Cancel"),
        h("button", { value: "yes", class: danger ? "danger" : "main" }, action)));
    const dialog = h("dialog", { "aria-labelledby": "question" }, form);
    // Enter in a field would press the first button.
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target.tagName === "INPUT") {
        event.preventDefault();
        form.requestSubmit(form.querySelector("button[value=yes]"));
      }
    });
    dialog.addEventListener("close", () => {
      const chosen = dialog.returnValue === "yes" ? Object.fromEntries(new FormData(form)) : null;
      dialog.remove();
      resolve(chosen);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
