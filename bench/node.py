"""Benchmarks on one real node: wall time, idle time of slots,
time to the first pod, and writes per trial.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster_probe import OURS, Containers, Ran, Watcher, ends_of_pods
from harness import THEIRS, Harness, Run, experiment
from record import figure, figures, median, quantile, table, verdict

from tests.cluster import images, realnode
from tests.cluster.objects import pods
from tests.cluster.realnode import RealNode

OVER_BARE, NEXT_CREATE_MS, FIRST_POD_S, MORE_WRITES, OUR_WRITES = 1.05, 50.0, 1.2, 3.0, 2.0
AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Seen:
    """A run, the containers of its trials, and the times when its pods were seen to end."""

    run: Run
    ran: list[Ran]
    pod_ends: list[float]

    @property
    def empty_s(self) -> list[float]:
        """Return the seconds from the end of each container to the start
        of its successor, in order.
        """
        return _gaps(sorted(ran.end for ran in self.ran), sorted(ran.start for ran in self.ran))

    @property
    def next_create_s(self) -> list[float]:
        return _gaps(self.pod_ends, self.run.times("create", "jobs", OURS, THEIRS))


def _gaps(ends: Sequence[float], begins: Sequence[float]) -> list[float]:
    return [begin - end for end, begin in zip(ends, begins[AT_ONCE:], strict=False)]


def trial(script: str) -> dict[str, Any]:
    return {
        "image": images.DIGITS,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": {"cpu": "200m"},
    }


class Bench:
    def __init__(self, harness: Harness, containers: Containers) -> None:
        self._harness = harness
        self._containers = containers

    def ours(self, script: str, trials: int, *, canary: str = "0s", **spec: Any) -> Seen:
        namespace = self._harness.namespace()
        file = experiment(
            namespace,
            trials=trials,
            parallelism=AT_ONCE,
            canary=canary,
            trial=trial(script),
            **spec,
        )
        watcher = Watcher(self._harness.api, pods(namespace))
        return self._seen(self._harness.ours([file]), watcher)

    def bare(self, script: str, trials: int, *, by: str = "jobs") -> Seen:
        namespace = self._harness.namespace()
        file = experiment(namespace, trials=trials, parallelism=AT_ONCE, trial=trial(script))
        watcher = Watcher(self._harness.api, pods(namespace))
        return self._seen(self._harness.bare(file, trials, AT_ONCE, by=by), watcher)

    def _seen(self, run: Run, watcher: Watcher) -> Seen:
        seen = Seen(run, self._containers.take(), ends_of_pods(watcher.stop()))
        print(
            f"  {run.namespace}: {run.wall_s:.1f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr
        )
        return seen


def measured(*, quick: bool) -> str:
    """Run all benchmarks and return two tables."""
    if lacking := realnode.missing():
        sys.exit(lacking)
    images.digits()
    harness = Harness(lambda flags: RealNode(flags=flags))
    try:
        assert isinstance(harness.cluster, RealNode)
        harness.cluster.load(images.DIGITS)
        containers = Containers(harness.cluster.folder / "containerd.sock", images.DIGITS)
        try:
            return _measured(Bench(harness, containers), quick=quick)
        finally:
            containers.close()
    finally:
        harness.close()


def _measured(bench: Bench, *, quick: bool) -> str:
    trials = 6 if quick else 20
    bench.bare("true", 4)  # warm up: the first containers of an image on a node take longer
    rows, others, all_ours = [], [], []
    for pause in (1,) if quick else (1, 5):
        script = f"sleep {pause}; echo accuracy=0.5"
        bare, alone, pods_too, canary = (
            bench.bare(script, trials),
            bench.ours(script, trials),
            bench.bare(script, trials, by="pods"),
            bench.ours(script, trials, canary="10s"),
        )
        others.append((bare, alone, pods_too))
        all_ours += [alone, canary]
        for who, seen in (
            ("bare Jobs", bare),
            ("tuner run, canary off", alone),
            ("tuner run, default canary", canary),
            ("bare Jobs, by their pods' ends", pods_too),
        ):
            over = seen.run.wall_s / bare.run.wall_s
            claim = verdict(over, OVER_BARE) if seen is alone else ""
            rows.append([f"`sleep {pause}`", who, f"{seen.run.wall_s:.1f}", f"{over:.2f}", claim])
    at_once = bench.ours("echo accuracy=0.5", 4)
    learning = bench.ours(
        "sleep 5; echo accuracy=0.5", trials, algorithm={"name": "tpe", "seed": 1}
    )
    all_ours += [at_once, learning]
    walls = table(
        ["trial", "who", f"seconds for {trials}, {AT_ONCE} at a time", "over bare", "at most 1.05"],
        rows,
    )
    return f"{walls}\n\n{_figures(others, all_ours, at_once, learning)}"


def _figures(
    others: list[tuple[Seen, Seen, Seen]], all_ours: list[Seen], at_once: Seen, learning: Seen
) -> str:
    created_ms = [1e3 * gap for _, ours, _ in others for gap in ours.next_create_s]
    learned_ms = [1e3 * gap for gap in learning.next_create_s]
    bare_ms = [1e3 * gap for _, _, by_pods in others for gap in by_pods.next_create_s]
    bare_s, ours_s, pods_s = (
        [gap for each in others for gap in each[who].empty_s] for who in range(3)
    )
    first_s = [seen.run.times("create", "pods")[0] - seen.run.began for seen in all_ours]
    bare_writes, all_writes = (
        sum(len(each[who].run.writes) for each in others)
        / sum(each[who].run.trials for each in others)
        for who in (0, 1)
    )
    own = [
        sum(write.who == OURS for _, seen, _ in others for write in seen.run.writes),
        sum(seen.run.trials for _, seen, _ in others),
    ]
    most_writes = bare_writes + MORE_WRITES
    runs = len(others)
    # The first write of a run creates the owner of the other objects, so it belongs to no trial.
    per_trial = (own[0] - runs) / own[1]
    rows = [
        figure(
            "a pod's end on the bench's own watch, to our next create at the API server, median",
            median(created_ms),
            ".0f ms",
            NEXT_CREATE_MS,
        ),
        figure("the same, 90 % of them", quantile(created_ms, 0.9), ".0f ms"),
        figure(
            "the same of a search that learns, which needs the trial's last line first: TPE, "
            "`sleep 5`, median",
            median(learned_ms),
            ".0f ms",
            NEXT_CREATE_MS,
        ),
        figure(
            "the same of bare Jobs by their pods' ends, which need nothing",
            median(bare_ms),
            ".0f ms",
        ),
        [
            "a container's end to the next one's start, median",
            f"{median(ours_s):.2f} s",
            f"{median(bare_s):.2f} s (bare)",
            verdict(median(ours_s), median(bare_s)),
        ],
        figure("the same of bare Jobs by their pods' ends", median(pods_s), ".2f s"),
        figure(
            "from the command to the first pod's creation, median",
            median(first_s),
            ".2f s",
            FIRST_POD_S,
        ),
        [
            "writes at the API server per trial, of all clients",
            f"{all_writes:.1f}",
            f"{most_writes:.1f} (bare {bare_writes:.1f})",
            verdict(all_writes, most_writes),
        ],
        figure("of these our own, and one a run", per_trial, ".2f", OUR_WRITES),
        figure("trials that print and end at once, succeeded of 4", at_once.run.trials, "d"),
    ]
    return figures(rows)
