"""The database of the controller in the cluster restarts, fails over, hangs, or is away at the
start: no trial is lost, none runs twice, and the leader keeps its lease while it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from controller.operator.status import condition_of
from tests.kube.fake_kubelet import Script
from tests.kube.replicas import Replicas, installed
from tests.postgres import a_postgres

TRIALS = 4
NAMES = [f"e{n}" for n in range(10)]
Claim = Callable[[Replicas], Coroutine[Any, Any, None]]


def run(url: str, folder: Path, claim: Claim) -> None:
    async def main() -> None:
        script = Script(lines=("score=0.5",), seconds=1.0)
        async with installed(url, folder, script) as installation:
            await claim(installation)

    asyncio.run(main())


async def begin(installation: Replicas) -> None:
    """Return while trials of all experiments run, and some have ended."""
    installation.apply(NAMES, parallelism=1, canary="0s", budget={"trials": TRIALS})
    await installation.until(lambda: len(installation.started) > len(NAMES))


async def end(installation: Replicas) -> None:
    await installation.until(lambda: installation.are("succeeded", NAMES), within_s=120)
    installation.assert_nothing_lost_or_twice(NAMES, TRIALS)


def waits(installation: Replicas) -> bool:
    """Return whether the statuses name the database as what is waited for."""
    conditions = [condition_of(installation.status(name), "Running") for name in NAMES]
    return any(
        each.get("reason") == "Waiting" and "postgresql+psycopg://" in each["message"]
        for each in conditions
    )


def test_experiments_go_on_after_the_database_was_restarted(tmp_path: Path) -> None:
    with a_postgres() as postgres:

        async def claim(installation: Replicas) -> None:
            await installation.start_alone()
            await begin(installation)
            await asyncio.to_thread(postgres.stop)
            await installation.until(lambda: waits(installation))
            await asyncio.to_thread(postgres.start)
            await end(installation)

        run(postgres.new_database(), tmp_path, claim)


def test_experiments_go_on_after_the_database_failed_over_to_a_standby(tmp_path: Path) -> None:
    with a_postgres() as primary, a_postgres(primary=primary) as standby:

        async def claim(installation: Replicas) -> None:
            await installation.start_alone()
            await begin(installation)
            await asyncio.to_thread(primary.stop)
            await asyncio.to_thread(standby.promote)
            await end(installation)

        run(primary.new_database(standby), tmp_path, claim)


def test_a_leader_keeps_its_lease_while_the_database_hangs(tmp_path: Path) -> None:
    with a_postgres() as postgres:

        async def claim(installation: Replicas) -> None:
            leader = await installation.start_alone()
            await begin(installation)
            epoch = installation.epoch
            (database,) = leader.databases
            database.cut()
            await installation.until(lambda: waits(installation))
            database.mend()
            await end(installation)
            assert installation.epoch == epoch

        run(postgres.new_database(), tmp_path, claim)


def test_a_controller_waits_for_a_database_that_is_away_at_the_start(tmp_path: Path) -> None:
    with a_postgres() as postgres:

        async def claim(installation: Replicas) -> None:
            await asyncio.to_thread(postgres.stop)
            await installation.start("first")
            installation.apply(NAMES, parallelism=1, canary="0s", budget={"trials": TRIALS})
            await installation.until(lambda: installation.are("pending", NAMES))
            assert "no connection" in installation.status(NAMES[0])["reason"]
            await asyncio.to_thread(postgres.start)
            await end(installation)

        run(postgres.new_database(), tmp_path, claim)
