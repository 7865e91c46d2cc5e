"""Two controllers over one PostgreSQL: whatever happens to the leader or the database, no trial is
lost, and none runs twice.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.kube.fake_kubelet import Script
from tests.kube.replicas import Replicas, installed

TRIALS = 6
NAMES = ["one", "two", "three"]
Claim = Callable[[Replicas], Coroutine[Any, Any, None]]


@pytest.fixture
def replicated(postgres_url: str, tmp_path: Path) -> Callable[[Claim], None]:
    """Return what runs a coroutine with a new installation."""

    def run(claim: Claim) -> None:
        async def main() -> None:
            script = Script(lines=("score=0.5",), seconds=1.0)
            async with installed(postgres_url, tmp_path, script) as installation:
                await claim(installation)

        asyncio.run(main())

    return run


async def begin(installation: Replicas) -> None:
    """Return while trials run, and some have ended."""
    installation.apply(NAMES, parallelism=2, canary="0s", budget={"trials": TRIALS})
    await installation.until(lambda: len(installation.started) >= 2 * len(NAMES) + 1)


async def end(installation: Replicas) -> None:
    await installation.until(lambda: installation.are("succeeded", NAMES))
    installation.assert_nothing_lost_or_twice(NAMES, TRIALS)


def test_a_standby_goes_on_when_the_leader_is_killed(
    replicated: Callable[[Claim], None],
) -> None:
    async def claim(installation: Replicas) -> None:
        leader, standby = await installation.start_two()
        await begin(installation)
        leader.signal(signal.SIGKILL)
        await installation.until(lambda: installation.holder == standby.name)
        await end(installation)

    replicated(claim)


def test_a_leader_that_was_frozen_changes_nothing_when_it_wakes_up(
    replicated: Callable[[Claim], None],
) -> None:
    async def claim(installation: Replicas) -> None:
        leader, standby = await installation.start_two()
        await begin(installation)
        leader.signal(signal.SIGSTOP)
        await installation.until(lambda: installation.holder == standby.name)
        leader.signal(signal.SIGCONT)
        await installation.until(lambda: leader.has_ended)
        assert "another controller holds it now" in leader.log
        await end(installation)

    replicated(claim)


def test_a_standby_goes_on_when_the_leader_does_not_reach_the_api_server(
    replicated: Callable[[Claim], None],
) -> None:
    async def claim(installation: Replicas) -> None:
        leader, standby = await installation.start_two()
        await begin(installation)
        leader.api.cut()
        await installation.until(lambda: installation.holder == standby.name)
        await end(installation)

    replicated(claim)


def test_a_standby_goes_on_when_the_leader_does_not_reach_the_database(
    replicated: Callable[[Claim], None],
) -> None:
    async def claim(installation: Replicas) -> None:
        leader, standby = await installation.start_two()
        await begin(installation)
        for database in leader.databases:
            database.cut()
        await installation.until(lambda: installation.holder == standby.name)
        await end(installation)

    replicated(claim)


def test_a_leader_goes_on_under_a_higher_epoch_when_its_lease_was_deleted(
    replicated: Callable[[Claim], None],
) -> None:
    async def claim(installation: Replicas) -> None:
        leader, standby = await installation.start_two()
        await begin(installation)
        for replica in (leader, standby):
            replica.signal(signal.SIGKILL)
        installation.api.remove("leases", "user1", "tuner-controller")
        await installation.start("third")
        await end(installation)
        assert installation.epoch == 2

    replicated(claim)
