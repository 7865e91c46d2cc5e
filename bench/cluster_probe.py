"""What happened on a cluster, seen by nobody who takes part: its audit log, its containers, the pods' watch, /proc.

Times are seconds since the epoch; all parts of the cluster run on this machine and share its clock.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bare import has_ended

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
_TICKS = os.sysconf("SC_CLK_TCK")
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None"},
    ],
}


@dataclass(frozen=True, slots=True)
class Write:
    """One request that changes something. who: the user, or the program where several share the administrator's."""

    time: float
    who: str
    verb: str
    what: str  # resource, or resource/subresource


class Audit:
    """The API server's own log of who wrote what. Leases are left out, and what was only rehearsed."""

    def __init__(self, folder: Path) -> None:
        self._log, policy = folder / "audit.log", folder / "policy.json"
        policy.write_text(json.dumps(_POLICY))
        # In one file: what is moved away at the usual 100 MB would be missing from the longest runs.
        self.flags = (
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self._log}",
            "--audit-log-maxsize=10000",
        )

    def of(self, namespace: str) -> list[Write]:
        """In the order in which the server got them."""
        return sorted(self._read(namespace), key=lambda write: write.time)

    def _read(self, namespace: str) -> Iterator[Write]:
        mark = f'"namespace":"{namespace}"'  # cheaper than to parse what other runs left
        with self._log.open() as lines:
            for line in lines:
                if mark in line and line.endswith("\n"):
                    entry = json.loads(line)
                    about = entry.get("objectRef") or {}
                    if about.get("namespace") != namespace or "dryRun=" in entry["requestURI"]:
                        continue
                    what = "/".join(about[key] for key in ("resource", "subresource") if key in about)
                    user = entry["user"]["username"]
                    who = entry["userAgent"].partition("/")[0] if user == "admin" else user.rpartition(":")[2]
                    yield Write(seconds(entry["requestReceivedTimestamp"]), who, entry["verb"], what)


@dataclass(frozen=True, slots=True)
class Ran:
    """A trial's container, as its node ran it."""

    start: float
    end: float


class Containers:
    """Follows containerd's events from the moment this is made. `image`: of the trials."""

    def __init__(self, socket: Path, image: str) -> None:
        self._image = image
        self._starts: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._wanted: set[str] = set()
        self._process = subprocess.Popen(
            ["ctr", "--address", str(socket), "--namespace", "k8s.io", "events"], stdout=subprocess.PIPE, text=True
        )
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def take(self) -> list[Ran]:
        """Those that have run since the last time."""
        time.sleep(0.3)  # the events of the last one are on their way
        names = sorted(self._wanted & self._ends.keys() & self._starts.keys(), key=lambda name: self._starts[name])
        self._wanted -= set(names)
        return [Ran(self._starts[name], self._ends[name]) for name in names]

    def close(self) -> None:
        self._process.kill()
        self._thread.join(10)
        self._process.communicate()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = re.match(r"(\S+ \S+) \+0000 UTC \S+ (\S+) (\{.*)$", line)
            if found is None:
                continue
            moment, topic, about = seconds(found[1].replace(" ", "T")), found[2], json.loads(found[3])
            match topic:
                case "/containers/create" if about["image"] == self._image:
                    self._wanted.add(about["id"])
                case "/tasks/start":
                    self._starts[about["container_id"]] = moment
                case "/tasks/exit":
                    self._ends[about["container_id"]] = seconds(about["exited_at"])


class Watcher(threading.Thread):
    """Looks at objects on a connection of its own; `seen` gets (when, event) of each until `stop`."""

    def __init__(self, api: Api, path: str) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, Object]] = []
        self._api = api
        self._path = path
        self._stopped = False
        self.start()

    def run(self) -> None:
        version = self._api.get(self._path, limit="1")["metadata"]["resourceVersion"]
        for event in self._api.watch(self._path, seconds=600, resourceVersion=version):
            if self._stopped:
                return
            self.seen.append((time.time(), event))

    def stop(self) -> list[tuple[float, Object]]:
        self._stopped = True  # its thread ends with its watch, or with us
        return list(self.seen)


def ends_of_pods(seen: list[tuple[float, Object]]) -> list[float]:
    """When the first event came that shows a pod ended, of each pod."""
    first: dict[str, float] = {}
    for moment, event in seen:
        if has_ended(event["object"]):
            first.setdefault(event["object"]["metadata"]["uid"], moment)
    return sorted(first.values())


def cpu_s(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mb(pid: int) -> float:
    """Its own and its share of what it shares with others, now."""
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def control_plane_s(cluster: ControlPlane) -> float:
    return sum(cpu_s(cluster.processes.pid(name)) for name in CONTROL_PLANE)


def seconds(moment: str) -> float:
    """RFC 3339, in UTC, down to nanoseconds."""
    whole, _, part = moment.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{part or 0}")
