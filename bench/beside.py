"""One tenant beside another that misbehaves: B's trials alone, and beside each kind of A.

The controller is a process of its own. The API server and the kubelet are the fakes of the tests,
in this process, so that faults can be injected and requests counted. Prints Markdown, a line at a
time. `--only` selects kinds of A, `--seconds` is how long each is measured. Compare lines of one
run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.processes import cpu_s, resident_mb
from tests.kube.fake_api import FakeApi
from tests.kube.fake_kubelet import Script
from tests.kube.operated import KIND, experiment

Raw = dict[str, Any]
A, B = "team-a", "team-b"
DEFAULT = {"name": "default"}
UNIT = {"type": "float", "min": 0, "max": 1}
TRIAL_S, PARALLEL = 1.0, 4
POLL_S = 0.01
PROGRAM = "import sys; from controller.cli.main import main; sys.exit(main())"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=15.0)
    asked = parser.parse_args()
    print("| A | B's trials/s | apply to Job | end to status | requests/s A, B | controller |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for kind in asked.only:
        async with bench() as cluster:
            cluster.apply(B, "steady", parallelism=PARALLEL, canary="0s")
            await cluster.until(lambda: cluster.jobs["steady"] > 2 * PARALLEL)
            alone = await measured(cluster, asked.seconds)
            async with misbehaving(cluster, KINDS[kind]):
                beside = await measured(cluster, asked.seconds)
        print(alone.row(f"before {kind}", alone.rate))
        print(beside.row(kind, alone.rate), flush=True)


@dataclass(slots=True)
class Seen:
    """What was measured of B, and of the controller, in so many seconds."""

    seconds: float
    trials: int = 0
    to_job_s: list[float] = field(default_factory=list)
    to_status_s: list[float] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0
    memory_mb: float = 0.0
    api_cpu_s: float = 0.0
    lease_s: float = 0.0

    @property
    def rate(self) -> float:
        return self.trials / self.seconds

    def row(self, kind: str, alone: float) -> str:
        sent = ", ".join(f"{self.requests[of] / self.seconds:.0f}" for of in (A, B))
        return (
            f"| {kind} | {self.rate:.2f} ({self.rate / alone:.2f}) | {_times(self.to_job_s)} | "
            f"{_times(self.to_status_s)} | {sent} | {self.cpu_s / self.seconds:.2f} cores, "
            f"{self.memory_mb:.0f} MB, API {self.api_cpu_s / self.seconds:.2f} cores, lease at "
            f"most {self.lease_s:.1f} s old |"
        )


def _times(seconds: list[float]) -> str:
    if not seconds:
        return "never"
    return f"{statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s"


class Cluster:
    """The fake API server, the controller's process, and what its Jobs do."""

    def __init__(self, api: FakeApi, process: asyncio.subprocess.Process, log: Path) -> None:
        self.api = api
        self.log = log
        self.scripts: dict[str, Script] = {}  # by the name of the experiment
        self.began: dict[str, float] = {}  # when the first Job of an experiment was created
        self.jobs: Counter[str] = Counter()
        self.pid = process.pid
        api.kubelet.play(self._plan)

    def _plan(self, job: Raw) -> Script:
        name = job["metadata"]["labels"]["tuner.dev/experiment"]
        self.began.setdefault(name, time.monotonic())
        self.jobs[name] += 1
        return self.scripts.get(name, Script(lines=("score=0.5",), seconds=TRIAL_S))

    def apply(self, namespace: str, name: str, **spec: object) -> None:
        resource = experiment(name, **{"budget": {"trials": 100_000}, **spec})
        resource["metadata"]["namespace"] = namespace
        self.api.put("experiments", resource)

    def status(self, namespace: str, name: str) -> Raw:
        return dict(self.api.get("experiments", namespace, name).get("status") or {})

    async def until(self, condition: Callable[[], object], within_s: float = 60) -> None:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - what is awaited has no event
                await asyncio.sleep(POLL_S)


@contextlib.asynccontextmanager
async def bench() -> AsyncIterator[Cluster]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with FakeApi() as api:
            api.define(*KIND)
            for namespace in (A, B):
                api.put("namespaces", {"metadata": {"name": namespace}})
            (folder / "kubeconfig").write_text(json.dumps(api.kubeconfig()))
            log = folder / "log"
            with log.open("wb") as output:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-c",
                    PROGRAM,
                    "controller",
                    "--log-format=json",
                    f"--state-dir={folder / 'state'}",
                    "--log-limit=16Mi",
                    stdout=output,
                    stderr=output,
                    env=os.environ | {"KUBECONFIG": str(folder / "kubeconfig")},
                )
            try:
                yield Cluster(api, process, log)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


Misbehaviour = Callable[[Cluster], Awaitable[None]]


@contextlib.asynccontextmanager
async def misbehaving(cluster: Cluster, how: Misbehaviour) -> AsyncIterator[None]:
    doing = asyncio.create_task(_done(how(cluster)))
    try:
        yield
    finally:
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)


async def measured(cluster: Cluster, seconds: float) -> Seen:
    seen = Seen(seconds)
    jobs, before_s, api_cpu_s = cluster.jobs["steady"], cpu_s(cluster.pid), time.process_time()
    sent = len(cluster.api.requests)
    watching = asyncio.create_task(_watch_lease(cluster, seen))
    probing = asyncio.create_task(_probe(cluster, seen))
    await asyncio.sleep(seconds)
    seen.trials = cluster.jobs["steady"] - jobs
    seen.cpu_s, seen.api_cpu_s = cpu_s(cluster.pid) - before_s, time.process_time() - api_cpu_s
    seen.memory_mb = resident_mb(cluster.pid)
    for _, path, _ in cluster.api.requests[sent:]:
        seen.requests[next((each for each in (A, B) if f"/{each}/" in path), "")] += 1
    for task in (watching, probing):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return seen


async def _done(misbehaving: Awaitable[None]) -> None:
    try:
        await misbehaving
    except Exception as error:
        print(f"A cannot misbehave: {error!r}")
        raise


async def _probe(cluster: Cluster, seen: Seen) -> None:
    """Apply one small experiment after the other, and note when its Job comes and its end shows."""
    while True:
        name = f"probe-{len(cluster.began)}"
        cluster.scripts[name] = Script(lines=("score=0.5",), seconds=0.2)
        applied = time.monotonic()
        cluster.apply(B, name, budget={"trials": 1}, parallelism=1)
        await _noted(seen.to_job_s, applied, cluster.until(partial(_has_begun, cluster, name)))
        ended = cluster.began[name] + 0.2
        await _noted(seen.to_status_s, ended, cluster.until(partial(_has_ended, cluster, name)))
        await asyncio.sleep(0.3)


async def _noted(seconds: list[float], since: float, awaited: Awaitable[None]) -> None:
    """Note how long it took, also if the measurement ends before."""
    try:
        await awaited
    finally:
        seconds.append(time.monotonic() - since)


def _has_begun(cluster: Cluster, name: str) -> bool:
    return name in cluster.began


def _has_ended(cluster: Cluster, name: str) -> bool:
    return cluster.status(B, name).get("state") == "succeeded"


async def _watch_lease(cluster: Cluster, seen: Seen) -> None:
    """Note the longest time between two renewals of the controller's lease."""
    record, since = None, time.monotonic()
    while True:
        now = cluster.api.all("leases")
        if now != record:
            record, since = now, time.monotonic()
        seen.lease_s = max(seen.lease_s, time.monotonic() - since)
        await asyncio.sleep(0.1)


# The kinds of A


async def many(cluster: Cluster) -> None:
    """500 experiments at once."""
    for n in range(500):
        cluster.scripts[f"a{n}"] = Script(forever=True)
        cluster.apply(A, f"a{n}", parallelism=1)


async def refused(cluster: Cluster) -> None:
    """A template that admission refuses a thousand times."""
    budget = {"trials": 1000, "failedTrials": "none"}
    for n in range(10):
        cluster.apply(A, f"a{n}", parallelism=20, breaker="off", canary="0s", budget=budget)
    await cluster.until(lambda: all(cluster.jobs[f"a{n}"] for n in range(10)))
    cluster.api.refuse = lambda plural, obj: (
        "no such image here" if plural == "jobs" and obj["metadata"]["namespace"] == A else ""
    )


async def slow_webhook(cluster: Cluster) -> None:
    """Each create of a Job takes 5 s."""
    for n in range(20):
        cluster.apply(A, f"a{n}", parallelism=50, canary="0s")
    await cluster.until(lambda: all(cluster.jobs[f"a{n}"] for n in range(20)))
    cluster.api.delay_s = lambda method, path: (
        5.0 if method == "POST" and path.endswith(f"/{A}/jobs") else 0.0
    )


async def wide(cluster: Cluster) -> None:
    """A space of 300 parameters, the default algorithm, 50 trials at once."""
    parameters = dict.fromkeys(["x", *(f"x{n}" for n in range(299))], UNIT)
    cluster.apply(A, "a", parallelism=50, parameters=parameters, algorithm=DEFAULT, canary="0s")


async def models(cluster: Cluster) -> None:
    """20 experiments with Gaussian processes over 100 parameters."""
    parameters = dict.fromkeys(["x", *(f"x{n}" for n in range(99))], UNIT)
    for n in range(20):
        algorithm = {"name": "gp"}
        cluster.apply(
            A, f"a{n}", parallelism=10, parameters=parameters, algorithm=algorithm, canary="0s"
        )


async def long_logs(cluster: Cluster) -> None:
    """Trials that print 500 MB each."""
    cluster.api.log_bytes = lambda namespace, pod: 500 << 20 if namespace == A else 0
    cluster.scripts["a"] = Script(seconds=5)
    cluster.apply(A, "a", parallelism=20, canary="0s")


async def short(cluster: Cluster) -> None:
    """A thousand trials of 1 s, as many at once as an experiment may have."""
    cluster.apply(A, "a", parallelism=1000, budget={"trials": 1000}, canary="0s")


async def conflicts(cluster: Cluster) -> None:
    """Another one changes each status: each write gets 409."""
    _refuse_statuses(cluster, 409)
    for n in range(50):
        cluster.apply(A, f"a{n}", parallelism=2)


async def refused_statuses(cluster: Cluster) -> None:
    """The API server has an error for each status."""
    _refuse_statuses(cluster, 500)
    for n in range(50):
        cluster.apply(A, f"a{n}", parallelism=2)


def _refuse_statuses(cluster: Cluster, code: int) -> None:
    def fails(method: str, path: str) -> int:
        is_status = method == "PATCH" and path.endswith("/status") and f"/{A}/" in path
        return code if is_status else 0

    cluster.api.fails = fails


async def edits(cluster: Cluster) -> None:
    """20 experiments are edited ten times a second."""
    for n in range(20):
        cluster.apply(A, f"a{n}", parallelism=2)
    for number in range(100_000):
        for n in range(20):
            cluster.api.change("experiments", A, f"a{n}", _edit(2 + number % 2))
        await asyncio.sleep(0.1)


def _edit(parallelism: int) -> Callable[[Raw], None]:
    def change(resource: Raw) -> None:
        resource["spec"]["parallelism"] = parallelism
        resource["metadata"]["generation"] += 1

    return change


async def deleted(cluster: Cluster) -> None:
    """200 running experiments are deleted at once."""
    for n in range(200):
        cluster.scripts[f"a{n}"] = Script(forever=True)
        cluster.apply(A, f"a{n}", parallelism=2)
    await cluster.until(lambda: sum(cluster.jobs[f"a{n}"] > 1 for n in range(200)) == 200, 600)
    for n in range(200):
        cluster.api.change(
            "experiments",
            A,
            f"a{n}",
            lambda each: each["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
        )


KINDS: dict[str, Misbehaviour] = {
    "many": many,
    "refused": refused,
    "slow-webhook": slow_webhook,
    "wide": wide,
    "models": models,
    "long-logs": long_logs,
    "short": short,
    "conflicts": conflicts,
    "refused-statuses": refused_statuses,
    "edits": edits,
    "deleted": deleted,
}

if __name__ == "__main__":
    asyncio.run(main())
