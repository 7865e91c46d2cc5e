"""What the sidecar that collects metrics adds to a trial on a real node, and its memory there.

    PYTHONPATH=. python bench/collector_node.py    # as root: see tests/cluster

The same trials run one after the other, with their metric on the standard output and in a file.
What the sidecar adds is the median of the differences between neighbors, whose order alternates, so
that changes of the load cancel. Trials have different lengths, so that they end at any time between
two looks of the kubelet, which looks once a second.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from harness import experiment
from processes import peak_mb
from record import figure, figures, keep, median, verdict

from controller.runtime.kubernetes.labels import EXPERIMENT, TRIAL, TRIAL_CONTAINER, UID
from tests.cluster import images, realnode
from tests.cluster.api import CORE, Object
from tests.cluster.objects import pods
from tests.cluster.realnode import RealNode
from tests.cluster.searcher import Searcher

TRIALS, ROUNDS = 4, 6
ADDED_S, SIDECAR_MB = 0.1, 20.0
WAYS = {
    "on the standard output": ("{}", "echo accuracy=0.5"),
    "in a file": ("{file: m.txt}", "echo accuracy=0.5 > $0"),
}
PARTS = {
    "start": "from the pod's creation to the trial's first line",
    "end": "from the trial's last line to its end in the pod's status",
    "turn": "from there to the next pod's creation",
}


@dataclass(frozen=True, slots=True)
class Timeline:
    """One trial, in seconds since the epoch. shown: when the pod's status
    first said that it had ended.
    """

    created: float
    began: float
    ended: float
    shown: float


def seconds(person: Searcher, name: str, metrics: str, script: str, turn: int) -> float:
    """Return the seconds from the first trial's start to the last one's end, per trial."""
    length = f"1.$(( ($TUNER_TRIAL_NUMBER * 3 + {turn}) % 10 ))"
    script = script.replace("$0", "$TUNER_METRICS_FILE")
    trial = {
        "image": images.DIGITS,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", f"date +%s.%N; sleep {length}; {script}; date +%s.%N"],
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


class PodWatch(threading.Thread):
    """Keeps when each pod was created, and when its status first said that the trial had ended."""

    def __init__(self, node: RealNode) -> None:
        super().__init__(daemon=True)
        self.pods: dict[str, Object] = {}
        self.created: dict[str, float] = {}
        self.shown: dict[str, float] = {}
        self._api = node.api()

    def run(self) -> None:
        with contextlib.suppress(OSError, HTTPException):  # the cluster is closed
            self._follow()

    def _follow(self) -> None:
        for event in self._api.watch(pods("bench"), seconds=3600):
            now, pod = time.time(), event["object"]
            name = pod["metadata"]["name"]
            self.pods[name] = pod
            self.created.setdefault(name, now)
            states = {
                each["name"]: each["state"] for each in pod["status"].get("containerStatuses", ())
            }
            if "terminated" in states.get(TRIAL_CONTAINER, {}):
                self.shown.setdefault(name, now)

    def timelines(self, name: str, state: Path) -> list[Timeline]:
        """Return the trials of an experiment, in order."""
        found = {}
        for pod, about in ((pod, each["metadata"]["labels"]) for pod, each in self.pods.items()):
            if about[EXPERIMENT] == name:
                log = state / "experiments" / about[UID] / "trials" / about[TRIAL] / "1/log.txt"
                times = [float(line) for line in log.read_text().splitlines() if line[:1].isdigit()]
                found[int(about[TRIAL])] = Timeline(
                    self.created[pod], times[0], times[-1], self.shown[pod]
                )
        return [found[number] for number in sorted(found)]


def parts(timelines: list[Timeline]) -> dict[str, float]:
    """Return the median seconds of each part."""
    return {
        "start": median([each.began - each.created for each in timelines]),
        "end": median([each.shown - each.ended for each in timelines]),
        "turn": median([then.created - before.shown for before, then in pairwise(timelines)]),
    }


class SidecarMemory(threading.Thread):
    """Keeps the largest resident size of a sidecar on this machine."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.most_mb = 0.0

    def run(self) -> None:
        while not self.over.wait(0.1):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):  # it has ended
                    if path.read_bytes().startswith(b"/collector\0"):
                        self.most_mb = max(self.most_mb, peak_mb(int(path.parent.name)))


def main() -> None:
    if missing := realnode.missing():
        sys.exit(missing)
    images.digits()
    images.collector()
    node = RealNode()
    memory, watch = SidecarMemory(), PodWatch(node)
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    split: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    try:
        node.load(images.DIGITS)
        node.load(images.COLLECTOR)
        node.api().post(f"{CORE}/namespaces", {"metadata": {"name": "bench"}})
        memory.start()
        watch.start()
        with tempfile.TemporaryDirectory() as folder:
            person = Searcher(Path(folder), node.kubeconfig(namespace="bench"), "bench")
            person.env["TUNER_COLLECTOR_IMAGE"] = images.COLLECTOR
            for turn in range(ROUNDS):
                ways = list(WAYS.items())
                for place, (name, (metrics, script)) in enumerate(ways if turn % 2 else ways[::-1]):
                    run = f"turn-{turn}-{place}"
                    found[name].append(seconds(person, run, metrics, script, turn))
                    split[name].append(parts(watch.timelines(run, person.state)))
            person.close()
    finally:
        memory.over.set()
        memory.join()
        node.close()
    rows = [
        [
            f"seconds per trial, metric {name}",
            f"{median(each):.2f} ({min(each):.2f} to {max(each):.2f})",
            "",
            "",
        ]
        for name, each in found.items()
    ]
    added = _added(*found.values())
    rows.append(
        [
            "added by the sidecar, median of the pairs",
            added[1],
            f"{ADDED_S:g} s",
            verdict(added[0], ADDED_S),
        ]
    )
    for part, what in PARTS.items():
        _, shown = _added(*([each[part] for each in runs] for runs in split.values()))
        rows.append([f"of that, {what}", shown, "", ""])
    rows.append(figure("memory of the sidecar", memory.most_mb, ".1f MB", SIDECAR_MB))
    keep("collector-node", figures(rows))


def _added(plain: list[float], collected: list[float]) -> tuple[float, str]:
    """Return the median of the differences between neighbors, and what is shown of them."""
    differences = [after - before for before, after in zip(plain, collected, strict=True)]
    added = median(differences)
    return added, f"{added:.2f} s ({min(differences):.2f} to {max(differences):.2f})"


if __name__ == "__main__":
    main()
