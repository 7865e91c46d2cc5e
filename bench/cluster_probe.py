"""Independent observation of a cluster: the audit log, containerd's events,
a watch on pods, and /proc.

Times are seconds since the epoch. All parts of the cluster run on this machine and share its clock.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bare import has_ended
from processes import cpu_s

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
# The users whose reads are counted: those of `tuner run`, and of the controller in the cluster.
OURS, HOSTED = "ours", "tuner-controller"
_WRITES = ("create", "update", "patch", "delete", "deletecollection")
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
        {"level": "Metadata", "verbs": list(_WRITES)},
        {
            "level": "Metadata",
            "users": [
                f"system:serviceaccount:default:{OURS}",
                f"system:serviceaccount:tuner-system:{HOSTED}",
            ],
        },
        {"level": "None"},
    ],
}


@dataclass(frozen=True, slots=True)
class Write:
    """A request, which changes something unless all of a user are asked for.

    `who` is the user, or the program if several share the administrator's user.
    """

    time: float
    who: str
    verb: str
    what: str  # resource, or resource/subresource


class Audit:
    """The audit log of the API server, without leases and dry runs."""

    def __init__(self, folder: Path) -> None:
        self._log, policy = folder / "audit.log", folder / "policy.json"
        policy.write_text(json.dumps(_POLICY))
        # In one file: with the usual rotation at 100 MB, the longest runs would be incomplete.
        self.flags = (
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self._log}",
            "--audit-log-maxsize=10000",
        )

    def of(self, namespace: str) -> list[Write]:
        """Return the writes of a namespace in the order in which the server received them."""
        writes = (each for each in self._read(namespace) if each.verb in _WRITES)
        return sorted(writes, key=lambda write: write.time)

    def requests(self, namespace: str, who: str) -> int:
        """Return how many requests of that user concerned the namespace, reads included."""
        return sum(each.who == who for each in self._read(namespace))

    def _read(self, namespace: str) -> Iterator[Write]:
        mark = f'"namespace":"{namespace}"'  # cheaper than parsing the lines of other runs
        with self._log.open() as lines:
            for line in lines:
                if mark in line and line.endswith("\n"):
                    entry = json.loads(line)
                    about = entry.get("objectRef") or {}
                    if about.get("namespace") != namespace or "dryRun=" in entry["requestURI"]:
                        continue
                    what = "/".join(
                        about[key] for key in ("resource", "subresource") if key in about
                    )
                    user = entry["user"]["username"]
                    who = (
                        entry["userAgent"].partition("/")[0]
                        if user == "admin"
                        else user.rpartition(":")[2]
                    )
                    yield Write(
                        seconds(entry["requestReceivedTimestamp"]), who, entry["verb"], what
                    )


@dataclass(frozen=True, slots=True)
class Ran:
    """The times of a trial's container on its node."""

    start: float
    end: float


class Containers:
    """Follows containerd's events from its construction on. `image` is the image of the trials."""

    def __init__(self, socket: Path, image: str) -> None:
        self._image = image
        self._starts: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._wanted: set[str] = set()
        self._process = subprocess.Popen(
            ["ctr", "--address", str(socket), "--namespace", "k8s.io", "events"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def take(self) -> list[Ran]:
        """Return the containers that have run since the last call."""
        time.sleep(0.3)  # for the events of the last container
        names = sorted(
            self._wanted & self._ends.keys() & self._starts.keys(),
            key=lambda name: self._starts[name],
        )
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
            moment, topic, about = (
                seconds(found[1].replace(" ", "T")),
                found[2],
                json.loads(found[3]),
            )
            match topic:
                case "/containers/create" if about["image"] == self._image:
                    self._wanted.add(about["id"])
                case "/tasks/start":
                    self._starts[about["container_id"]] = moment
                case "/tasks/exit":
                    self._ends[about["container_id"]] = seconds(about["exited_at"])


class Watcher(threading.Thread):
    """Watches objects on a separate connection.

    `seen` gets (when, event) for each event until `stop`.
    """

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
        self._stopped = True  # the thread ends with its watch, or with this process
        return list(self.seen)


def ends_of_pods(seen: list[tuple[float, Object]]) -> list[float]:
    """Return the time of the first event that shows the end of each pod."""
    first: dict[str, float] = {}
    for moment, event in seen:
        if has_ended(event["object"]):
            first.setdefault(event["object"]["metadata"]["uid"], moment)
    return sorted(first.values())


def memory_mb(pid: int) -> float:
    """Return the present memory of a process, including its share of shared memory."""
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def control_plane_s(cluster: ControlPlane) -> float:
    return sum(cpu_s(cluster.processes.pid(name)) for name in CONTROL_PLANE)


def seconds(moment: str) -> float:
    """Parse an RFC 3339 time in UTC with up to nanoseconds."""
    whole, _, part = moment.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{part or 0}")
