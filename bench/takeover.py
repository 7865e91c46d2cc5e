"""How long a standby takes to lead, beside two busy loops, with 50 running experiments: from the
fault to its lease, to its first Job, and to the first Job of each experiment; and the processor
time that it takes from its lease on.

On the tests' small API server; requires PostgreSQL's programs. Prints Markdown. `--rounds` of each
fault, `--experiments`, `--busy` loops.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.processes import cpu_s
from tests.kube.fake_kubelet import Script
from tests.kube.replicas import REAL, Replica, Replicas, installed
from tests.postgres import a_postgres

# Shorter than the lease: when the standby leads, each experiment has a Job to create.
TRIAL_S = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--experiments", type=int, default=50)
    parser.add_argument("--busy", type=int, default=2)
    asked = parser.parse_args()
    heads = (
        "fault of the leader",
        "the lease",
        "first Job",
        "a Job of each experiment",
        "processor to the first Job",
        "processor to a Job of each",
    )
    print("| ", " | ".join(heads), " |\n", "| --- " * len(heads), "|", sep="")
    with busy(asked.busy):
        for name, fault in FAULTS.items():
            seen = [asyncio.run(takeover(fault, asked.experiments)) for _ in range(asked.rounds)]
            print("| ", " | ".join([name, *columns(seen)]), " |", sep="", flush=True)


@dataclass(frozen=True, slots=True)
class Takeover:
    """Seconds since the fault, and of the standby's processor since its lease."""

    lease_s: float
    first_s: float
    all_s: float
    first_cpu_s: float
    all_cpu_s: float


def columns(seen: list[Takeover]) -> Iterator[str]:
    for values in (
        [each.lease_s for each in seen],
        [each.first_s for each in seen],
        [each.all_s for each in seen],
        [each.first_cpu_s for each in seen],
        [each.all_cpu_s for each in seen],
    ):
        yield f"{statistics.median(values):.1f} s, {max(values):.1f} s"


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Run processes that compute, meanwhile."""
    computing = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(loops)]
    for each in computing:
        each.start()
    try:
        yield
    finally:
        for each in computing:
            each.kill()


def _compute() -> None:
    while True:
        pass


def killed(leader: Replica) -> None:
    leader.signal(signal.SIGKILL)


def frozen(leader: Replica) -> None:
    leader.signal(signal.SIGSTOP)


def without_api(leader: Replica) -> None:
    leader.api.cut()


FAULTS: dict[str, Callable[[Replica], None]] = {
    "kill -9": killed,
    "freeze": frozen,
    "partition": without_api,
}


async def takeover(fault: Callable[[Replica], None], count: int) -> Takeover:
    names = [f"e{n}" for n in range(count)]
    script = Script(lines=("score=0.5",), seconds=TRIAL_S)
    with a_postgres() as postgres, tempfile.TemporaryDirectory() as folder:
        url = postgres.new_database()
        async with installed(url, Path(folder), script) as installation:
            leader, standby = await installation.start_two(REAL)
            installation.apply(names, parallelism=1, canary="0s", budget={"trials": 100_000})
            await installation.until(lambda: len(started(installation)) == count, within_s=120)
            await asyncio.sleep(5)
            fault(leader)
            began_s = time.monotonic()
            await installation.until(lambda: installation.holder == standby.name)
            lease_s, before_s = time.monotonic() - began_s, cpu_s(standby.pid)
            installation.started.clear()
            await installation.until(lambda: installation.started)
            first_s, first_cpu_s = time.monotonic() - began_s, cpu_s(standby.pid) - before_s
            await installation.until(lambda: len(started(installation)) == count)
            all_s, all_cpu_s = time.monotonic() - began_s, cpu_s(standby.pid) - before_s
            return Takeover(lease_s, first_s, all_s, first_cpu_s, all_cpu_s)


def started(installation: Replicas) -> set[str]:
    """Return the experiments with a new Job."""
    return {job.partition("-")[0] for job in installation.started}


if __name__ == "__main__":
    main()
