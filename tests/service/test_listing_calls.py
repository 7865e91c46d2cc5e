"""Listing trials takes a number of calls that does not grow with the number of running trials."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from controller.app.experiment_service import ExperimentService
from controller.app.local_experiments import LocalExperiments
from controller.app.query import gather
from controller.app.state_directory import StateDirectory
from controller.app.suggestion_service import SessionClient
from controller.search import study_name, study_spec
from controller.spec import read
from suggest.trial import Measurement
from tests.e2e.cli import experiment
from tests.service.running import a_server

RUNNING = 40


class Counting(SessionClient):
    """Records the calls that it sends."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.sent: list[str] = []

    # the overridden method is generic
    async def _send(self, method: str, *rest: Any, **options: Any) -> Any:
        self.sent.append(method)
        return await super()._send(method, *rest, **options)


def test_one_call_returns_the_metrics_of_all_running_trials(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "state")
    state.make()
    experiments = LocalExperiments(state)
    to = ExperimentService(experiments)
    document = read(experiment(trials=RUNNING), source="tiny.yaml")
    admitted = to.create(document, tmp_path, to.reserve("tiny"), service="", context="")
    admitted.lease.release()
    known = admitted.experiment

    async def look(address: str) -> None:
        name = study_name(known)
        async with SessionClient(address) as client:
            await client.create_study(name, study_spec(known.spec), request_id="r")
            found = await client.suggest(name, RUNNING, client_id=known.uid, request_id="s")
            for trial in found.trials:
                reports = [
                    Measurement(1, "score", 3, 0.5),
                    Measurement(1, "loss", 3, float(trial.number)),
                ]
                await client.report(name, trial.number, reports)
        async with Counting(address) as client:
            record = await gather(experiments, known, client, latest=True)
            assert client.sent == ["ListTrials", "ListMeasurements"]
        assert record.metrics == {number: {"loss": float(number)} for number in range(RUNNING)}

    with a_server(tmp_path / "s.db") as server:
        asyncio.run(look(server.address))
    experiments.close()
