"""What the sidecar that collects metrics adds to a trial on a real node, and its memory there.

    PYTHONPATH=. python bench/collector_node.py    # as root: see tests/cluster

The same trials run one after the other, with their metric on the standard output and in a file. What the sidecar adds
is the median of the differences between neighbors, whose order alternates, so that changes of the load cancel.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml  # type: ignore[import-untyped]
from harness import experiment
from record import keep, machine, median, table, verdict

from controller.runtime.kubernetes.labels import COLLECTOR_CONTAINER, TRIAL_CONTAINER
from tests.cluster import images, realnode
from tests.cluster.api import CORE
from tests.cluster.objects import pods
from tests.cluster.realnode import RealNode
from tests.cluster.searcher import Searcher

TRIALS, TURNS = 3, 12
ADDED_S, SIDECAR_MB = 0.1, 20.0
WAYS = {"on the standard output": ("{}", "echo accuracy=0.5"), "in a file": ("{file: m.txt}", "echo accuracy=0.5 > $0")}


def seconds(person: Searcher, name: str, metrics: str, script: str) -> float:
    """Return the seconds from the first trial's start to the last one's end, per trial."""
    trial = {
        "image": images.DIGITS,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", f"sleep 1; {script.replace('$0', '$TUNER_METRICS_FILE')}"],
        "resources": {"cpu": "200m", "memory": "64Mi"},
    }
    spec = {"metrics": yaml.safe_load(metrics)}
    file = experiment(person.namespace, name, trials=TRIALS, parallelism=1, trial=trial, **spec)
    path = person.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(file))
    began = time.monotonic()
    code, _, err = person.tuner("run", path)
    assert code == 0, err
    return (time.monotonic() - began) / TRIALS


class Watcher(threading.Thread):
    """Keeps the largest resident size of a sidecar on this machine, and the last state of each pod with one."""

    def __init__(self, node: RealNode) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.most_mb = 0.0
        self._node = node
        self._pods: dict[str, Any] = {}

    def between(self, event: str, first: str, then: str) -> float:
        """Return the mean seconds between an event of two containers. Times of containers are whole seconds."""
        gaps = []
        for pod in self._pods.values():
            status = pod["status"]
            states = {
                each["name"]: each["state"] for each in (*status["initContainerStatuses"], *status["containerStatuses"])
            }
            times = [states[name].get("terminated", {}).get(event) for name in (first, then)]
            if all(times):
                begin, end = map(datetime.fromisoformat, times)
                gaps.append((end - begin).total_seconds())
        return fmean(gaps)

    def run(self) -> None:
        while not self.over.wait(0.1):
            for pod in self._node.api().items(pods("bench")):
                if "initContainerStatuses" in pod["status"]:
                    self._pods[pod["metadata"]["name"]] = pod
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    if path.read_bytes().startswith(b"/collector\0"):
                        status = path.with_name("status").read_text()
                        kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
                        self.most_mb = max(self.most_mb, int(kib) / 1024)
                except (OSError, StopIteration):
                    continue  # it has ended


def main() -> None:
    if missing := realnode.missing():
        sys.exit(missing)
    images.digits()
    images.collector()
    node = RealNode()
    seen = Watcher(node)
    try:
        node.load(images.DIGITS)
        node.load(images.COLLECTOR)
        node.api().post(f"{CORE}/namespaces", {"metadata": {"name": "bench"}})
        seen.start()
        found: dict[str, list[float]] = {name: [] for name in WAYS}
        with tempfile.TemporaryDirectory() as folder:
            person = Searcher(Path(folder), node.kubeconfig(namespace="bench"), "bench")
            person.env["TUNER_COLLECTOR_IMAGE"] = images.COLLECTOR
            for turn in range(TURNS):
                ways = list(WAYS.items())
                for place, (name, (metrics, script)) in enumerate(ways if turn % 2 else ways[::-1]):
                    found[name].append(seconds(person, f"turn-{turn}-{place}", metrics, script))
            person.close()
    finally:
        seen.over.set()
        seen.join()
        node.close()
    rows = [
        [f"seconds per trial, metric {name}", f"{median(each):.2f} ({min(each):.2f} to {max(each):.2f})", "", ""]
        for name, each in found.items()
    ]
    plain, collected = found.values()
    differences = [after - before for before, after in zip(plain, collected, strict=True)]
    added = median(differences)
    shown = f"{added:.2f} s ({min(differences):.2f} to {max(differences):.2f})"
    rows.append(["added by the sidecar, median of the pairs", shown, f"{ADDED_S:g} s", verdict(added, ADDED_S)])
    started = seen.between("startedAt", COLLECTOR_CONTAINER, TRIAL_CONTAINER)
    ended = seen.between("finishedAt", TRIAL_CONTAINER, COLLECTOR_CONTAINER)
    rows.append(["of that, the sidecar's start to the trial's, mean", f"{started:.2f} s", "", ""])
    rows.append(["of that, the trial's end to the sidecar's, mean", f"{ended:.2f} s", "", ""])
    mb = seen.most_mb
    rows.append(["memory of the sidecar", f"{mb:.1f} MB", f"{SIDECAR_MB:g} MB", verdict(mb, SIDECAR_MB)])
    keep("collector-node", f"{table(['figure', 'measured', 'at most', 'met'], rows)}\n\n{machine()}")


if __name__ == "__main__":
    main()
