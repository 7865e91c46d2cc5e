"""Sixteen clients search while their server is killed repeatedly:
acknowledged writes are stored exactly once.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

import suggest.storage.sql_store  # noqa: F401  declares its failpoints
from suggest import failpoints
from tests.conditions import eventually
from tests.service.load import a_client, under_load
from tests.service.running import NAME, SPEC, ServerProcess, a_process

CLIENTS = 16
# The failpoints that a search reaches; test_crashes.py has all others.
POINTS = [
    name
    for name in failpoints.names()
    if name.split(".")[1] in ("hand_out", "add_measurements", "finish_trial")
]


@pytest.fixture(params=["sqlite", "postgres"])
def storage(request: pytest.FixtureRequest, folder: Path) -> Path | str:
    if request.param == "sqlite":
        return folder / "s.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.mark.timeout(600)
@pytest.mark.parametrize("times", [3, pytest.param(50, marks=pytest.mark.soak)])
def test_a_server_killed_at_random_moments_loses_and_duplicates_nothing(
    folder: Path, storage: Path | str, times: int
) -> None:
    moments = random.Random(5)
    with (
        a_process(storage, f"unix:{folder}/s.sock", revive=True) as server,
        a_client(server) as client,
    ):
        client.create_study(NAME, SPEC, request_id="create")
        with under_load([server] * CLIENTS) as load:
            for deaths in range(1, times + 1):
                time.sleep(moments.uniform(0.0, 0.5))
                server.kill()
                eventually(lambda deaths=deaths: len(server.deaths) >= deaths)
                eventually(load.progress())
        load.hold_against(client)
        assert server.deaths == [-9] * times


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", POINTS)
def test_a_server_killed_at_every_write_under_load_loses_and_duplicates_nothing(
    folder: Path, storage: Path | str, point: str
) -> None:
    with (
        a_process(storage, f"unix:{folder}/s.sock", failpoint=f"{point}:40", revive=True) as server,
        a_client(server) as client,
    ):
        client.create_study(NAME, SPEC, request_id="create")
        with under_load([server] * CLIENTS) as load:
            eventually(lambda: server.deaths == [-9])
            eventually(load.progress())
        load.hold_against(client)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_study_under_load_survives_the_death_of_each_owner_in_turn(
    folder: Path, postgres_url: str
) -> None:
    with (
        a_process(postgres_url, f"unix:{folder}/a.sock", revive=True) as first,
        a_process(postgres_url, f"unix:{folder}/b.sock", revive=True) as second,
        a_client(first) as client,
    ):
        client.create_study(NAME, SPEC, request_id="create")
        servers: list[ServerProcess] = [first, second]
        with under_load([servers[k % 2] for k in range(CLIENTS)]) as load:
            for turn in range(10):
                servers[turn % 2].kill()
                eventually(lambda turn=turn: len(servers[turn % 2].deaths) > turn // 2)
                eventually(load.progress())
        load.hold_against(client)
