"""The client for event loops has the methods and errors
of the blocking one, and runs a whole study.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from suggest import deadline
from suggest.client import AsyncClient, Client
from suggest.errors import FailedPrecondition, InvalidArgument, NotFound, TunerError, Unavailable
from suggest.server import Server
from suggest.studies import StudyService
from suggest.study import Algorithm
from suggest.trial import Outcome, TrialState
from tests.service.running import NAME, SPEC, score


def test_both_clients_have_the_same_methods_with_the_same_signatures() -> None:
    def methods(kind: type) -> dict[str, str]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: str(inspect.signature(f)) for name, f in found if not name.startswith("_")}

    blocking = methods(Client)
    blocking.pop("study")
    assert methods(AsyncClient) == blocking


@pytest.fixture(params=["socket", "inside"])
def client_of(request: pytest.FixtureRequest) -> Callable[[Server], AsyncClient]:
    """Create a client over the server's socket, or one in the server's own loop."""
    if request.param == "socket":
        return lambda server: AsyncClient(server.address)
    return lambda server: AsyncClient(server.address, inside=server.inside())


ClientOf = Callable[[Server], AsyncClient]


@asynccontextmanager
async def a_server(folder: Path) -> AsyncIterator[Server]:
    server = Server(f"sqlite:///{folder}/studies.db", f"unix:{folder}/s.sock")
    await server.start()
    try:
        yield server
    finally:
        await server.stop(1)
        await server.stop(1)


def test_a_study_runs_from_start_to_end_on_the_servers_own_loop(
    tmp_path: Path, client_of: ClientOf
) -> None:
    async def life() -> list[str]:
        async with a_server(tmp_path) as server, client_of(server) as client:
            await client.create_study(NAME, SPEC, request_id="create")
            found = await client.suggest(NAME, 2, client_id="c", request_id="r")
            await asyncio.gather(
                *(client.report(NAME, t.number, [score(0, 0.5)]) for t in found.trials)
            )
            await client.complete(NAME, 0, Outcome(TrialState.SUCCEEDED))
            states = [t.state.value for t in await client.list_trials(NAME)]
            assert len(await client.list_measurements(NAME)) == 2
            return states

    assert asyncio.run(life()) == ["succeeded", "running"]


def test_calls_in_progress_are_finished_when_the_server_stops(
    tmp_path: Path, client_of: ClientOf
) -> None:
    async def life() -> int:
        async with a_server(tmp_path) as server, client_of(server) as client:
            await client.create_study(NAME, SPEC, request_id="create")
            asked = asyncio.create_task(client.suggest(NAME, 1000, client_id="c", request_id="r"))
            while not await client.list_trials(NAME):  # noqa: ASYNC110 - so that it has begun
                await asyncio.sleep(0)
            await server.stop(10)
            return len((await asked).trials)

    assert asyncio.run(life()) == 1000


def test_both_clients_raise_the_same_error(tmp_path: Path, client_of: ClientOf) -> None:
    async def life() -> None:
        async with a_server(tmp_path) as server, client_of(server) as client:
            await client.create_study(NAME, SPEC, request_id="create")
            with pytest.raises(NotFound, match=re.escape(f"{NAME} has no trial 7")):
                await client.get_trial(NAME, 7)
            with pytest.raises(InvalidArgument) as raised:
                await client.validate(replace(SPEC, algorithm=Algorithm("nosuch")))
            assert [problem.path for problem in raised.value.problems] == ["spec.algorithm.name"]
            await client.suggest(NAME, 1, client_id="c", request_id="r")
            await client.complete(NAME, 0, Outcome(TrialState.FAILED))
            with pytest.raises(FailedPrecondition, match="trial 0 is failed"):
                await client.report(NAME, 0, [score(0, 0.5)])

    asyncio.run(life())


def test_a_bug_of_the_server_is_reported_by_its_id(
    tmp_path: Path, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(StudyService, "study", broken)

    async def life() -> None:
        async with a_server(tmp_path) as server, client_of(server) as client:
            with pytest.raises(
                TunerError, match="this is a bug of the server; its log has the details under"
            ):
                await client.get_study(NAME)

    asyncio.run(life())


def test_a_call_ends_at_its_deadline(tmp_path: Path, client_of: ClientOf) -> None:
    """The call is a write that waits while another program has locked the file."""

    async def life() -> None:
        async with a_server(tmp_path) as server, client_of(server) as client:
            client._timeout_s = 0.3
            with closing(sqlite3.connect(tmp_path / "studies.db", isolation_level=None)) as another:
                another.execute("BEGIN IMMEDIATE")
                with pytest.raises(Unavailable):
                    await client.create_study(NAME, SPEC, request_id="create")
                another.execute("ROLLBACK")
            client._timeout_s = 10
            assert (await client.create_study(NAME, SPEC, request_id="create")).name == NAME

    asyncio.run(life())


def test_the_context_of_a_call_does_not_leak(tmp_path: Path, client_of: ClientOf) -> None:
    """A later call in the same task does not inherit its deadline."""

    async def life() -> float | None:
        async with a_server(tmp_path) as server, client_of(server) as client:
            await client.create_study(NAME, SPEC, request_id="create")
            return deadline._END.get()

    assert asyncio.run(life()) is None
