"""An experiment read while its controller exits is shown as finished,
never as running without a controller.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from controller.app.local_experiments import LocalExperiments
from controller.app.query import gather
from controller.app.state_directory import StateDirectory
from controller.app.workspace import Workspace
from controller.core.model import ExperimentState, Revision
from controller.experiment_store import Changes
from controller.report.record import ExperimentRecord
from controller.report.text_tables import shown_state
from controller.spec import read
from tests.e2e.cli import experiment
from tests.unit.builders import START, an_experiment


def test_a_run_that_has_just_ended_is_not_shown_without_a_controller(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    state.make()
    running = an_experiment(read(experiment(trials=1), source="tiny.yaml").spec)
    with closing(LocalExperiments(state)) as experiments:
        lease = experiments.lease(running.uid, running.name)
        experiments.create_experiment(running, Revision(1, running.spec, "", START))

        def shown() -> str:
            async def look() -> ExperimentRecord:
                async with Workspace(state).connected("") as client:
                    return await gather(experiments, running, client)  # with the state read before

            return shown_state(asyncio.run(look()))

        assert shown() == "running"
        experiments.save(
            running.uid, Changes(replace(running, state=ExperimentState.SUCCEEDED, reason="done"))
        )
        lease.release()
        assert shown() == "succeeded"
