"""Whatever happens to the controllers, the API server or the database, and whenever: no trial is
lost, none runs twice, and every experiment ends.

Some seeds run with every change, with shorter leases. All of them take more than an hour:
`make soak TESTS=tests/kube/test_seeded_faults.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from tests.kube.replicas import BRISK
from tests.kube.seeded_faults import (
    Fault,
    any_killed,
    api_away,
    commits_unanswered,
    database_failed_over,
    hold,
    leader_cut_off,
    leader_frozen,
)
from tests.postgres import a_postgres

LONG_S = 60.0
KILLS = 5  # in one scenario


def test_a_kill_and_a_partition_lose_and_repeat_nothing(postgres_url: str, tmp_path: Path) -> None:
    faults = [any_killed, leader_cut_off]
    asyncio.run(hold(postgres_url, tmp_path, faults, seed=1, program=BRISK))


def test_commits_whose_answers_are_lost_lose_and_repeat_nothing(
    postgres_url: str, tmp_path: Path
) -> None:
    faults = [partial(commits_unanswered, for_s=4.0), any_killed]
    asyncio.run(hold(postgres_url, tmp_path, faults, seed=1, program=BRISK))


def test_a_controller_without_a_standby_loses_and_repeats_nothing(tmp_path: Path) -> None:
    faults: list[Fault] = [any_killed, partial(api_away, for_s=3.0)]
    asyncio.run(hold("", tmp_path, faults, seed=1, replicas=1, program=BRISK))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
def test_50_kills_at_random_moments_lose_and_repeat_nothing(
    seed: int, postgres_url: str, tmp_path: Path
) -> None:
    asyncio.run(hold(postgres_url, tmp_path, [any_killed] * KILLS, seed=seed))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_20_kills_of_a_controller_without_a_standby_lose_and_repeat_nothing(
    seed: int, tmp_path: Path
) -> None:
    asyncio.run(hold("", tmp_path, [any_killed] * KILLS, seed=seed, replicas=1))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
def test_freezes_for_a_minute_lose_and_repeat_nothing(
    seed: int, postgres_url: str, tmp_path: Path
) -> None:
    frozen = partial(leader_frozen, for_s=LONG_S)
    asyncio.run(hold(postgres_url, tmp_path, [frozen], seed=seed))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(10))
def test_an_api_server_that_is_away_for_a_minute_loses_and_repeats_nothing(
    seed: int, postgres_url: str, tmp_path: Path
) -> None:
    away = partial(api_away, for_s=LONG_S)
    asyncio.run(hold(postgres_url, tmp_path, [away], seed=seed))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("fault", [leader_frozen, api_away])
def test_a_minute_without_a_standby_loses_and_repeats_nothing(
    fault: Callable[..., Awaitable[None]], seed: int, tmp_path: Path
) -> None:
    asyncio.run(hold("", tmp_path, [partial(fault, for_s=LONG_S)], seed=seed, replicas=1))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_10_partitions_lose_and_repeat_nothing(
    seed: int, postgres_url: str, tmp_path: Path
) -> None:
    asyncio.run(hold(postgres_url, tmp_path, [leader_cut_off] * 2, seed=seed))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_failovers_of_the_database_lose_and_repeat_nothing(seed: int, tmp_path: Path) -> None:
    with a_postgres() as primary, a_postgres(primary=primary) as standby:
        url = primary.new_database(standby)
        faults = [database_failed_over, any_killed]
        asyncio.run(hold(url, tmp_path, faults, seed=seed, postgres=(primary, standby)))
