"""The controller in the cluster over SQLite and over PostgreSQL: CPU for each trial, and how long a
standby takes to lead. On the tests' small API server; requires PostgreSQL's programs.

Prints Markdown. `--trials`, of ten experiments together; `--rounds` of each fault.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kube.fake_kubelet import Script
from tests.kube.replicas import REAL, Replica, installed
from tests.postgres import a_postgres

NAMES = [f"e{n}" for n in range(10)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    print("| store | CPU for each trial |", "| --- | --- |", sep="\n")
    for name, storage in (("SQLite", ""), ("PostgreSQL", None)) * 2:
        with a_store(storage) as url:
            ms = asyncio.run(cpu_per_trial(url, asked.trials))
        print(f"| {name} | {ms:.1f} ms |", flush=True)
    print("", "| fault of the leader | until the standby leads |", "| --- | --- |", sep="\n")
    for name, fault in FAULTS.items():
        seconds = []
        for _ in range(asked.rounds):
            with a_store(None) as url:
                seconds.append(asyncio.run(takeover(url, fault)))
        print(f"| {name} | {statistics.median(seconds):.1f} s, {max(seconds):.1f} s |", flush=True)


@contextmanager
def a_store(storage: str | None) -> Iterator[str]:
    if storage is not None:
        yield storage
        return
    with a_postgres() as postgres:
        yield postgres.new_database()


async def cpu_per_trial(storage: str, trials: int) -> float:
    """Return milliseconds."""
    script = Script(lines=("score=0.5",), seconds=0.2)
    with tempfile.TemporaryDirectory() as folder:
        async with installed(storage, Path(folder), script) as installation:
            leader = await installation.start_alone(REAL)
            await asyncio.sleep(2)
            before = cpu_s(leader.pid)
            budget = {"trials": trials // len(NAMES)}
            installation.apply(NAMES, parallelism=4, canary="0s", budget=budget)
            await installation.until(lambda: installation.are("succeeded", NAMES), within_s=600)
            return (cpu_s(leader.pid) - before) / trials * 1000


def cpu_s(process: int) -> float:
    """Return the processor time of a process, in user and system mode."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def killed(leader: Replica) -> None:
    leader.signal(signal.SIGKILL)


def frozen(leader: Replica) -> None:
    leader.signal(signal.SIGSTOP)


def without_api(leader: Replica) -> None:
    leader.api.cut()


def without_database(leader: Replica) -> None:
    for database in leader.databases:
        database.cut()


FAULTS: dict[str, Callable[[Replica], None]] = {
    "kill -9": killed,
    "freeze": frozen,
    "no API server": without_api,
    "no database": without_database,
}


async def takeover(storage: str, fault: Callable[[Replica], None]) -> float:
    """Return the seconds from the fault until the standby creates a Job."""
    script = Script(lines=("score=0.5",), seconds=1.0)
    with tempfile.TemporaryDirectory() as folder:
        async with installed(storage, Path(folder), script) as installation:
            leader, standby = await installation.start_two(REAL)
            installation.apply(NAMES, parallelism=1, canary="0s", budget={"trials": 1000})
            await installation.until(lambda: len(installation.started) > len(NAMES))
            fault(leader)
            began_s = time.monotonic()
            await installation.until(lambda: installation.holder == standby.name)
            before = installation.started.total()
            await installation.until(lambda: installation.started.total() > before)
            return time.monotonic() - began_s


if __name__ == "__main__":
    main()
