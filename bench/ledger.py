"""How long the controller's event loop waits while it reads what all namespaces have used.

4,000 attempts run in 40 namespaces. A timer of 1 ms shows by how much the loop is late: with the
look in the loop, in a thread, and without one. The three take turns.

    PYTHONPATH=. python bench/ledger.py
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from controller.core.model import Attempt, AttemptState, Revision
from controller.experiment_store import Changes, Fence, SqlExperimentStore, sqlite_database
from tests.unit.builders import a_spec, an_experiment

NAMESPACES = 40
TICK_S = 0.001
Look = Callable[[], Awaitable[object]]


def filled(store: SqlExperimentStore, attempts: int) -> None:
    """Create an experiment in each namespace, with its share of the running attempts."""
    now = datetime.now(UTC)
    runs = Attempt(0, 1, AttemptState.RUNNING, start_time=now, gpus=1.0, price_per_hour=2.5)
    for index in range(NAMESPACES):
        spec = replace(a_spec(), namespace=f"team-{index}")
        experiment = replace(an_experiment(spec), uid=f"{index:032x}")
        store.create_experiment(experiment, Revision(1, spec, "", now))
        started = [
            replace(runs, trial=number, start_time=now - timedelta(seconds=number))
            for number in range(attempts // NAMESPACES)
        ]
        store.save(experiment.uid, Changes(attempts=started))


async def latest_tick_s(look: Look) -> float:
    """Return by how much the loop was late at most during the look."""
    late_s = [0.0]

    async def tick() -> None:
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            late_s.append(time.perf_counter() - due)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(5 * TICK_S)
    await look()
    await asyncio.sleep(5 * TICK_S)
    ticking.cancel()
    with suppress(asyncio.CancelledError):
        await ticking
    return max(late_s)


async def compare(store: SqlExperimentStore, rounds: int) -> dict[str, float]:
    """Return the median of the longest delays, by where the look is taken."""

    def read() -> object:
        return store.usage_in_month(datetime.now(UTC))

    async def in_loop() -> object:
        return read()

    looks: dict[str, Look] = {
        "no look": lambda: asyncio.sleep(0.05),
        "in the loop": in_loop,
        "in a thread": lambda: asyncio.to_thread(read),
    }
    late_s: dict[str, list[float]] = {name: [] for name in looks}
    for _ in range(rounds):
        for name, look in looks.items():
            late_s[name].append(await latest_tick_s(look))
    return {name: median(each) for name, each in late_s.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = sqlite_database(Path(folder) / "controller.db")
        fence = Fence(1, "bench")
        with closing(SqlExperimentStore(database, lambda _: a_spec(), fence=fence)) as store:
            filled(store, arguments.attempts)
            for name, late_s in asyncio.run(compare(store, arguments.rounds)).items():
                print(f"{name:<12} the loop is late by {1000 * late_s:.1f} ms")


if __name__ == "__main__":
    main()
