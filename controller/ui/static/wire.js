// Requests to the server that gave this page, and streams that come back after it was restarted.
import { redraw } from "./dom.js";

const meta = (name) => document.querySelector(`meta[name=${name}]`).content;
const token = meta("page-token");
const shown = document.getElementById("connection");

// What the server has: "experiments" with their controllers, or only "studies".
export const KIND = meta("page-kind");

// Whether people sign in with tokens, and so can sign out.
export const SIGNS_OUT = meta("page-sign-in") === "token";

// In a cluster, where people sign in, there is no queue.
export const IN_CLUSTER = KIND === "experiments" && meta("page-sign-in") !== "link";

export const place = (namespace, name) => `/api/${KIND}/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;

export async function get(path) {
  return answered(await fetch(path));
}

export async function post(path, body = {}) {
  return answered(await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", "x-tuner-token": token },
    body: JSON.stringify(body),
  }));
}

async function answered(response) {
  const body = await response.text();
  let document = {};
  try {
    document = JSON.parse(body);
  } catch {
    document = { error: body };
  }
  if (!response.ok) throw new Error(document.error || `the server answered ${response.status}`);
  return document;
}

function connection(state, words) {
  shown.className = state;
  if (shown.textContent !== words) shown.textContent = words;
}

// Calls handlers[event](data, id) until close(). A hidden page has none open: a browser allows six for all its tabs.
// path(): with the position from which the stream continues, where it has one. opened(): called at each connection.
export function stream(path, handlers, { quiet = false, opened = () => {} } = {}) {
  let source = null;
  let timer = 0;
  let closed = false;
  function open() {
    if (closed || document.hidden || source) return;
    source = new EventSource(path());
    source.onopen = () => {
      if (!quiet) connection("live", "live");
      opened();
    };
    source.onerror = () => {
      if (!quiet) connection("lost", "reconnecting…");
      if (source && source.readyState === EventSource.CLOSED) again();
    };
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => redraw(() => closed || handle(JSON.parse(event.data), event.lastEventId)));
    }
  }
  async function again() {
    end();
    try {
      // An EventSource does not tell why it was refused, so ask once more.
      const asked = new AbortController();
      const answer = await fetch(path(), { signal: asked.signal });
      if (answer.status === 403 && !quiet) connection("lost", "signed out: open the link of tuner ui");
      if (answer.status === 429 && !quiet) connection("lost", (await answer.json()).error);
      if (answer.status === 503 && !quiet) connection("lost", await answer.text());
      if (answer.status === 401) location.reload();
      asked.abort();
    } catch {
      // The server is away; the next try says so again.
    }
    timer = setTimeout(open, 1000);
  }
  function end() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }
  function look() {
    if (document.hidden) end();
    else open();
  }
  document.addEventListener("visibilitychange", look);
  open();
  return {
    close() {
      closed = true;
      end();
      document.removeEventListener("visibilitychange", look);
    },
  };
}
