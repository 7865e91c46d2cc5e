"""The controller in the cluster over SQLite and over PostgreSQL: CPU for each trial. On the tests'
small API server; requires PostgreSQL's programs.

Prints Markdown. `--trials`, of ten experiments together.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.processes import cpu_s
from tests.kube.fake_kubelet import Script
from tests.kube.replicas import REAL, installed
from tests.postgres import a_postgres

NAMES = [f"e{n}" for n in range(10)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400)
    asked = parser.parse_args()
    print("| store | CPU for each trial |", "| --- | --- |", sep="\n")
    for name, storage in (("SQLite", ""), ("PostgreSQL", None)) * 2:
        with a_store(storage) as url:
            ms = asyncio.run(cpu_per_trial(url, asked.trials))
        print(f"| {name} | {ms:.1f} ms |", flush=True)


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


if __name__ == "__main__":
    main()
