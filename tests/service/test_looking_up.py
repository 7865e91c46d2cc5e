"""What is read of an experiment while its controller leaves: its end, never a run without a controller."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from controller.cli.embedded import Access, SessionClient
from controller.cli.facts import gather, with_client
from controller.cli.home import ControllerLock, Home
from controller.core.model import ExperimentState, Revision
from controller.report.record import ExperimentRecord
from controller.report.tables import shown_state
from controller.store import Changes, SqlStore
from tests.unit.builders import START, a_spec, an_experiment


def test_a_run_that_has_just_ended_is_not_shown_as_left_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.make()
    running = an_experiment()
    folder = home.folders(running.uid).root
    folder.mkdir()
    with closing(SqlStore(home.controller_db, lambda _document: a_spec())) as store:
        store.create_experiment(running, Revision(1, running.spec, "", START))
        lock = ControllerLock(folder)
        lock.take(running.name)

        def shown() -> str:
            async def look(client: SessionClient) -> ExperimentRecord:
                return await gather(home, store, running, client)  # as it was read before

            return shown_state(with_client("", home, look, access=Access()))

        assert shown() == "running"
        store.save(running.uid, Changes(replace(running, state=ExperimentState.SUCCEEDED, reason="done")))
        lock.release()
        assert shown() == "succeeded"
