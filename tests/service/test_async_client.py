"""The client for event loops says what the blocking one says; one life of a study through it."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest

from suggest.client import AsyncClient, Client
from suggest.errors import NotFound
from suggest.server import Server
from suggest.trial import Outcome, TrialState
from tests.service.running import NAME, SPEC, score


def test_both_clients_have_the_same_methods_with_the_same_signatures() -> None:
    def methods(kind: type) -> dict[str, str]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: str(inspect.signature(f)) for name, f in found if not name.startswith("_")}

    blocking = methods(Client)
    blocking.pop("study")
    assert methods(AsyncClient) == blocking


def test_a_study_lives_on_the_loop_that_also_runs_the_server(tmp_path: Path) -> None:
    async def life() -> list[str]:
        server = Server(f"sqlite:///{tmp_path}/studies.db", f"unix:{tmp_path}/s.sock")
        await server.start()
        async with AsyncClient(server.address) as client:
            await client.create_study(NAME, SPEC, request_id="create")
            found = await client.suggest(NAME, 2, client_id="c", request_id="r")
            await asyncio.gather(*(client.report(NAME, t.number, [score(0, 0.5)]) for t in found.trials))
            await client.complete(NAME, 0, Outcome(TrialState.SUCCEEDED))
            with pytest.raises(NotFound):
                await client.get_trial(NAME, 7)
            states = [t.state.value for t in await client.list_trials(NAME)]
            assert len(await client.list_measurements(NAME)) == 2
        await server.stop(1)
        await server.stop(1)
        return states

    assert asyncio.run(life()) == ["succeeded", "running"]


def test_what_was_begun_is_finished_when_the_server_stops(tmp_path: Path) -> None:
    async def life() -> int:
        server = Server(f"sqlite:///{tmp_path}/studies.db", f"unix:{tmp_path}/s.sock")
        await server.start()
        async with AsyncClient(server.address) as client:
            await client.create_study(NAME, SPEC, request_id="create")
            asked = asyncio.create_task(client.suggest(NAME, 1000, client_id="c", request_id="r"))
            while not await client.list_trials(NAME):  # noqa: ASYNC110 - so that it has begun
                await asyncio.sleep(0)
            await server.stop(10)
            return len((await asked).trials)

    assert asyncio.run(life()) == 1000
