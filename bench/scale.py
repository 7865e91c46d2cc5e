"""Scale benchmarks on fake nodes, where a pod costs only its API objects:
many experiments, trials and logs at once.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from cluster_probe import (
    HOSTED,
    OURS,
    Watcher,
    control_plane_s,
    ends_of_pods,
    memory_mb,
    seconds,
)
from harness import THEIRS, Harness, Run, experiment
from processes import cpu_s
from record import median, quantile, table, verdict

from tests.cluster import binaries
from tests.cluster.controlplane import ControlPlane
from tests.cluster.objects import pods, quota
from tests.cluster.waiting import eventually

LEAST_RATE, MOST_CPU, CORES, MEMORY_MB = 0.9, 1.2, 0.5, 300.0


def trial(*, run: str, log: str = "accuracy=0.5", **env: str) -> dict[str, Any]:
    """Return a pod that occupies a node and prints `log`.

    `env` has further variables for kwok.py.
    """
    given = {"KWOK_RUN": run, "KWOK_LOG": log, **env}
    return {"image": "tiny:1", "command": ["train"], "env": given, "resources": {"cpu": "100m"}}


def measured(part: str, quick: bool, whole: bool) -> str:
    if lacking := binaries.missing(binaries.LEVEL_B):
        sys.exit(lacking)
    harness = Harness(lambda flags: ControlPlane(fake_nodes=4, flags=flags))
    try:
        match part:
            case "rate":
                return rate(harness, quick=quick)
            case "quotas":
                return quotas(harness, quick=quick, whole=whole)
            case _:
                return logs(harness, running=20 if quick else 1000 if whole else 200)
    finally:
        harness.close()


@contextmanager
def control_plane_used(harness: Harness, namespaces: Sequence[str]) -> Iterator[list[float]]:
    """Measure the CPU seconds of etcd, API server, controllers and scheduler
    until all objects are cleaned up.
    """
    before, used = control_plane_s(harness.cluster), [0.0]
    yield used
    for namespace in namespaces:
        eventually(lambda of=namespace: not harness.api.items(pods(of)), within_s=120, every_s=0.5)
    used[0] = control_plane_s(harness.cluster) - before


def rate(harness: Harness, *, quick: bool) -> str:
    """Compare experiments in ten namespaces at once, as commands and as resources of the controller
    in the cluster, with one bare client that keeps as many Jobs running.

    Trials of 1 s leave no processor idle, so everybody's work counts; those of 20 s do.
    """
    if quick:
        return _rate(harness, "1s", experiments=2, parallelism=5, trials=20, turns=1)
    tables = (
        _rate(harness, run, experiments=10, parallelism=20, trials=600, turns=turns)
        for run, turns in (("1s", 3), ("20s", 2))
    )
    return "\n\n".join(tables)


def _rate(
    harness: Harness, run_for: str, *, experiments: int, parallelism: int, trials: int, turns: int
) -> str:
    each = trials // experiments

    def file(namespace: str) -> dict[str, Any]:
        return experiment(
            namespace, trials=each, parallelism=parallelism, canary="10s", trial=trial(run=run_for)
        )

    ways: dict[str, Callable[[list[dict[str, Any]]], Run]] = {
        THEIRS: lambda files: harness.bare(files[0], trials, experiments * parallelism),
        OURS: harness.ours,
        HOSTED: harness.hosted,
    }
    seen: dict[str, list[tuple[Run, float]]] = {who: [] for who in ways}
    for who in tuple(ways) * turns:
        namespaces = [harness.namespace() for _ in range(experiments)]
        files = [file(namespace) for namespace in namespaces]
        with control_plane_used(harness, namespaces) as used:
            run = ways[who](files)
        seen[who].append((run, used[0]))
    at_work_s = {who: sum(run.at_work_s for run, _ in runs) for who, runs in seen.items()}
    over = {who: at_work_s[THEIRS] / spent_s for who, spent_s in at_work_s.items()}
    cpu = {who: _control_s(seen[who]) / _control_s(seen[THEIRS]) for who in (OURS, HOSTED)}
    names = {THEIRS: "bare Jobs", OURS: "tuner run", HOSTED: "the controller in the cluster"}
    rows = [_rate_row(names[who], runs, trials, over=over[who]) for who, runs in seen.items()]
    header = [
        "who",
        "trials a minute",
        "over bare",
        "start to end",
        "control-plane CPU per trial",
        "writes per trial",
        "requests of Tuner per trial",
        "CPU of Tuner per trial",
    ]
    claims = "; ".join(
        f"{names[who]}: {over[who]:.2f}, {'yes' if over[who] >= LEAST_RATE else '**no**'}, "
        f"control-plane CPU {cpu[who]:.2f}, {verdict(cpu[who], MOST_CPU)}"
        for who in (OURS, HOSTED)
    )
    return (
        f"{experiments} namespaces, an experiment of {parallelism} at a time in each, {trials} "
        f"trials of {run_for} (fake nodes), by turns, {turns} of each; bare Jobs in one "
        f"namespace:\n\n"
        f"{table(header, rows)}\n\n"
        f"Claims: at least {LEAST_RATE:g} of the bare rate, control-plane CPU at most "
        f"{MOST_CPU:g} x bare. {claims}. All share {os.cpu_count()} cores."
    )


def _rate_row(
    name: str, runs: Sequence[tuple[Run, float]], trials: int, *, over: float
) -> list[str]:
    """Return the row of all turns of one contestant together."""
    done = trials * len(runs)
    wall_s = sum(run.wall_s for run, _ in runs) / len(runs)
    writes = sum(len(run.writes) for run, _ in runs) / done
    rate = 60 * done / sum(run.at_work_s for run, _ in runs)
    own_s = sum(used.cpu_s for run, _ in runs for used in run.used)
    return [
        name,
        f"{rate:.0f}",
        f"{over:.2f}",
        f"{wall_s:.1f} s",
        f"{1e3 * _control_s(runs) / done:.0f} ms",
        f"{writes:.1f}",
        f"{sum(run.requests for run, _ in runs) / done:.1f}",
        f"{1e3 * own_s / done:.0f} ms",
    ]


def _control_s(runs: Sequence[tuple[Run, float]]) -> float:
    return sum(used_s for _, used_s in runs)


def quotas(harness: Harness, *, quick: bool, whole: bool) -> str:
    """Run experiments in namespaces whose quotas admit less than requested.

    Each tenth trial fails.
    """
    people, each, parallelism, admitted = (
        (20, 500, 60, 50) if whole else (2, 20, 6, 5) if quick else (5, 200, 60, 50)
    )
    spaces = [
        harness.namespace(("resourcequotas", quota("room", pods=str(admitted))))
        for _ in range(people)
    ]
    files = [
        experiment(
            space,
            trials=each,
            parallelism=parallelism,
            trial=trial(run="2s", KWOK_EXIT="${code}"),
            parameters={"code": {"type": "int", "min": 0, "max": 1}},
            initial=[{"code": int(number % 10 == 9)} for number in range(each)],
        )
        for space in spaces
    ]
    watcher = Watcher(harness.api, pods(spaces[0]))
    run = harness.ours(files, apart=True)
    ours, theirs = _delays(watcher, replace(run, writes=harness.audit.of(spaces[0])), admitted)
    cores, memory = (
        sum(used.cpu_s for used in run.used) / run.wall_s,
        sum(used.memory_mb for used in run.used),
    )
    rows = [
        ["trials a minute, commands from start to end", f"{60 * people * each / run.wall_s:.0f}"],
        ["trials that succeeded, of all", f"{run.trials} of {people * each}"],
        [
            "a pod's end to the creation of the Job that takes its room in the quota, median",
            f"{median(ours):.2f} s",
        ],
        ["the same, 90 % of them", f"{quantile(ours, 0.9):.2f} s"],
        [
            "from there to its pod, which is the Job controller's and the quota's own affair, "
            "median",
            f"{median(theirs):.2f} s",
        ],
        [f"the {people} controllers, mean", f"{cores:.2f} cores"],
        ["the same, peak of each, summed", f"{memory:.0f} MB ({memory / people:.0f} MB each)"],
    ]
    return (
        f"{people} namespaces with a quota of {admitted} pods, {each} trials of 2 s in each, "
        f"{parallelism} at a time "
        f"asked for, each tenth fails (fake nodes):\n\n{table(['figure', 'measured'], rows)}"
    )


def _delays(watcher: Watcher, run: Run, admitted: int) -> tuple[list[float], list[float]]:
    """Return the delays from the end of each pod to the creation of the next Job,
    and from each Job to its pod.
    """
    ends, jobs, made = (
        ends_of_pods(watcher.stop()),
        run.times("create", "jobs", OURS),
        run.times("create", "pods"),
    )
    ours = [max(0.0, job - end) for end, job in zip(ends, jobs[admitted:], strict=False)]
    return ours, [pod - job for job, pod in zip(jobs, made, strict=False)]


def logs(harness: Harness, *, running: int) -> str:
    """Run an experiment whose pods print a line per second,
    without pruning and with a rule that needs each line.
    """
    # long enough to start all pods and to read their logs
    rows, lasts = [], "30s" if running <= 200 else "60s"
    for pruning in (None, {"name": "median", "warmupSteps": 10**6}):
        namespace = harness.namespace()
        spec: dict[str, Any] = {
            "metrics": {"step": "epoch"},
            **({"pruning": pruning} if pruning else {}),
        }
        file = experiment(
            namespace,
            trials=running,
            parallelism=running,
            trial=trial(run=lasts, log="epoch={n} accuracy=0.{n}", KWOK_LOG_EVERY="1s"),
            **spec,
        )
        listener = Listener(harness, namespace, running)
        harness.ours([file], meanwhile=listener.listen)
        what = "with a pruner" if pruning else "without a pruner"
        late = listener.late_s
        rows.append(
            [
                what,
                f"{listener.cores:.2f}",
                f"{listener.memory_mb:.0f} MB",
                f"{median(late):.2f} s",
                f"{quantile(late, 0.9):.2f} s",
            ]
        )
    header = [
        f"{running} trials, a line a second each",
        "cores of the controller",
        "its memory",
        "line to stored measurement, median",
        "90 %",
    ]
    return (
        f"{running} logs followed at once (fake nodes):\n\n{table(header, rows)}\n\n"
        f"Aim at 1,000 running: under {CORES:g} cores and {MEMORY_MB:g} MB."
    )


class Listener:
    """Observes a run: the resources of its controller,
    and when the lines of its pods reach the study.
    """

    def __init__(self, harness: Harness, namespace: str, running: int) -> None:
        self._harness = harness
        self._namespace = namespace
        self._running = running
        self.cores = self.memory_mb = 0.0
        self.late_s: list[float] = []

    def listen(self, pids: list[int]) -> None:
        (pid,) = pids
        study = self._harness.folder / self._namespace / "state" / "studies.db"

        def all_run() -> bool:
            shown = self._harness.api.items(pods(self._namespace))
            return sum(pod["status"]["phase"] == "Running" for pod in shown) == self._running

        eventually(all_run, within_s=60, every_s=0.3)
        time.sleep(3)  # skip the lines of the start, which are read late
        began, used_s = time.monotonic(), cpu_s(pid)
        with closing(sqlite3.connect(f"file:{study}?mode=ro", uri=True)) as database:
            arrived = _arrivals(database, for_s=12)
        self.cores = (cpu_s(pid) - used_s) / (time.monotonic() - began)
        self.memory_mb = memory_mb(pid)
        for pod in self._harness.api.items(pods(self._namespace))[:20]:
            trial = int(pod["metadata"]["labels"]["tuner.dev/trial"])
            output = self._harness.api.logs(
                self._namespace, pod["metadata"]["name"], timestamps="true"
            )
            for line in output.splitlines():
                moment, _, text = line.partition(" ")
                step = int(text.split()[0].removeprefix("epoch="))
                if (trial, step) in arrived:
                    self.late_s.append(arrived[trial, step] - seconds(moment))


def _arrivals(database: sqlite3.Connection, *, for_s: float) -> dict[tuple[int, int], float]:
    """Return when the measurement of each (trial, step) was stored, with a precision of 20 ms."""
    (last,) = database.execute("SELECT coalesce(max(id), 0) FROM measurements").fetchone()
    found: dict[tuple[int, int], float] = {}
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        rows = database.execute(
            "SELECT id, trial, step FROM measurements WHERE id > ? ORDER BY id", (last,)
        ).fetchall()
        now = time.time()
        for number, trial, step in rows:
            last, found[trial, step] = number, now
        time.sleep(0.02)
    return found
