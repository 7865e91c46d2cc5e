// An experiment or a study as the server streams it. What is known stays while other pages of this tab are shown, so
// that a person who comes back sees it at once, and the server sends only what has changed since.
import { place, stream } from "./wire.js";

const MOST_KEPT = 3;
const kept = new Map();

export function search(namespace, name) {
  const key = `${namespace}/${name}`;
  const found = kept.get(key) ?? new Search(namespace, name);
  kept.delete(key);
  kept.set(key, found); // the newest last
  if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  return found;
}

export class Search {
  // only: numbers of the trials that are wanted; null for all.
  constructor(namespace, name, only = null) {
    this.at = place(namespace, name);
    this.key = `${namespace}/${name}`;
    this.only = only;
    this.position = "";
    this.summary = null;
    this.columns = [];
    this.rows = new Map();
  }

  // see.reset(): everything is new. see.update(rows, removed): what has changed. see.trouble(message), see.gone(message).
  follow(see) {
    if (this.summary) see.reset();
    const open = stream(() => `${this.at}/stream?after=${this.position}${this.only ? `&only=${this.only.join(",")}` : ""}`, {
      reset: ({ summary, columns, rows }, id) => {
        [this.summary, this.columns, this.position] = [summary, columns, id];
        this.rows = new Map(rows.map((row) => [row[0], row]));
        see.reset();
      },
      update: ({ summary, rows, removed = [] }, id) => {
        if (id) this.position = id;
        if (summary) this.summary = summary;
        for (const row of rows) this.rows.set(row[0], row);
        for (const number of removed) this.rows.delete(number);
        see.update(rows, removed);
      },
      trouble: ({ message }) => see.trouble(message),
      gone: ({ message }) => {
        kept.delete(this.key);
        open.close();
        see.gone(message);
      },
    }, { opened: () => see.trouble("") }); // the server says again what is still wrong
    return open;
  }
}
