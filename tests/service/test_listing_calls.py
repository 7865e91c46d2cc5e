"""What a list of trials asks of the service: a number of calls that does not grow with the trials that run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from controller.cli.admission import Desk
from controller.cli.embedded import SessionClient
from controller.cli.facts import gather
from controller.cli.home import Home
from controller.search import study_name, study_spec
from controller.spec import from_document, read
from controller.store import SqlStore
from suggest.trial import Measurement
from tests.e2e.somebody import experiment
from tests.service.running import a_server

RUNNING = 40


class Counting(SessionClient):
    """Remembers what it sent."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.sent: list[str] = []

    async def _send(self, call: Any) -> Any:  # Any: as generic as what it overrides
        self.sent.append(call.method)
        return await super()._send(call)


def test_the_figures_of_all_running_trials_come_with_one_call(tmp_path: Path) -> None:
    home = Home(tmp_path / "state")
    home.make()
    store = SqlStore(home.controller_db, from_document)
    desk = Desk(home, store)
    document = read(experiment(trials=RUNNING), source="tiny.yaml")
    admitted = desk.create(document, tmp_path, desk.reserve("tiny"), service="", context="")
    admitted.lock.release()
    known = admitted.experiment

    async def look(address: str) -> None:
        name = study_name(known)
        async with SessionClient(address) as client:
            await client.create_study(name, study_spec(known.spec), request_id="r")
            found = await client.suggest(name, RUNNING, client_id=known.uid, request_id="s")
            for trial in found.trials:
                reports = [Measurement(1, "score", 3, 0.5), Measurement(1, "loss", 3, float(trial.number))]
                await client.report(name, trial.number, reports)
        async with Counting(address) as client:
            record = await gather(home, store, known, client, latest=True)
            assert client.sent == ["ListTrials", "ListMeasurements"]
        assert record.metrics == {number: {"loss": float(number)} for number in range(RUNNING)}

    with a_server(tmp_path / "s.db") as server:
        asyncio.run(look(server.address))
    store.close()
