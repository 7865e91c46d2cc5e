"""The same pods without Tuner: a minimal client, in its own process,
that keeps n Jobs running at a time.

It watches on one connection and writes on another: when a Job ends, it creates the next one and
then deletes the old one. It reads its input as JSON from standard input: server, authority (PEM),
token, namespace, jobs (manifests), atOnce, and by: "jobs" (a Job has ended when its status says so,
as for such clients) or "pods" (when its containers have ended, seconds earlier). It prints when it
began and ended, in seconds since the epoch. Standard library only.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import ssl
import sys
import threading
import time
from typing import Any

LABEL = "bench"
_JOB_NAME = "batch.kubernetes.io/job-name"


class Server:
    """A persistent connection to the API server."""

    def __init__(self, orders: dict[str, Any]) -> None:
        trusted = ssl.create_default_context(cadata=orders["authority"])
        self._connection = http.client.HTTPSConnection(
            orders["server"].removeprefix("https://"), context=trusted, timeout=600
        )
        self._headers = {
            "Authorization": f"Bearer {orders['token']}",
            "Content-Type": "application/json",
        }

    def open(self, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
        sent = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, body=sent, headers=self._headers)
        response = self._connection.getresponse()
        if response.status >= 300 and response.status != 404:
            sys.exit(f"{method} {path}: {response.status} {response.read().decode()}")
        return response

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return json.loads(self.open(method, path, body).read())


def has_ended(pod: dict[str, Any]) -> bool:
    """Return whether the containers have ended, which may be visible seconds
    before the pod's phase changes.
    """
    status = pod.get("status", {})
    containers = status.get("containerStatuses") or ()
    over = bool(containers) and all("terminated" in one["state"] for one in containers)
    return over or status.get("phase") in ("Succeeded", "Failed")


def ended_job(shown: dict[str, Any], *, by_pods: bool) -> str:
    """Return the name of a Job that has ended according to the pod or Job,
    "" if it has not ended.
    """
    if by_pods:
        return str(shown["metadata"]["labels"][_JOB_NAME]) if has_ended(shown) else ""
    held = [
        one["type"]
        for one in shown.get("status", {}).get("conditions") or ()
        if one["status"] == "True"
    ]
    return str(shown["metadata"]["name"]) if {"Complete", "Failed"} & set(held) else ""


def follow(orders: dict[str, Any], watched: str, told: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass on every state; runs in a thread.

    If a busy server ends the watch, list everything again.
    """
    while True:
        with contextlib.suppress(http.client.HTTPException, OSError, ValueError):
            listed = Server(orders).ask("GET", f"{watched}?labelSelector={LABEL}")
            for item in listed["items"]:
                told.put(item)
            version = listed["metadata"]["resourceVersion"]
            query = f"?watch=true&labelSelector={LABEL}&resourceVersion={version}"
            for line in Server(orders).open("GET", watched + query):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    break
                told.put(event["object"])


def keep(orders: dict[str, Any]) -> None:
    """Keep `atOnce` of the Jobs running until all have ended and are deleted."""
    by_pods = orders["by"] == "pods"
    space = f"namespaces/{orders['namespace']}"
    jobs = f"/apis/batch/v1/{space}/jobs"
    watched = f"/api/v1/{space}/pods" if by_pods else jobs
    server = Server(orders)
    told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=follow, args=(orders, watched, told), daemon=True).start()
    waiting = iter(orders["jobs"])
    left = {job["metadata"]["name"] for job in orders["jobs"]}
    for _, job in zip(range(orders["atOnce"]), waiting, strict=False):
        server.ask("POST", jobs, job)
    while left:
        name = ended_job(told.get(timeout=600), by_pods=by_pods)
        if name not in left:
            continue
        left.discard(name)
        job = next(waiting, None)
        if job is not None:
            server.ask("POST", jobs, job)
        server.ask("DELETE", f"{jobs}/{name}", {"propagationPolicy": "Background"})


if __name__ == "__main__":
    began = time.time()
    keep(json.load(sys.stdin))
    print(json.dumps({"began": began, "ended": time.time()}))
