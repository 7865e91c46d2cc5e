"""A server that is killed at each named write and restarted loses nothing and duplicates nothing."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import suggest.storage.sql_store  # noqa: F401  declares its failpoints
from suggest import failpoints
from suggest.client import Client, FinishedTrial
from suggest.errors import Unavailable
from suggest.space import Float, Parameter, Space
from suggest.study import StudyName
from suggest.trial import Outcome, TrialState
from tests.conditions import eventually
from tests.service.running import NAME, SPEC, a_process, a_server, score

OTHER = StudyName("default", "other")
NAMING = StudyName("default", "naming")  # whose trials name their parameters
# No call of a client makes a schema, or copies a study as `tuner pack` does.
POINTS = [
    name
    for name in failpoints.names()
    if name.startswith("store.") and not ("make_schema" in name or "copy_study" in name)
]


def a_history(client: Client) -> dict[str, Any]:
    """Do every kind of write at least once. Return the contents at the end, without times."""
    client.create_study(NAME, SPEC, request_id="create")
    client.create_study(OTHER, SPEC, request_id="create")
    client.update_study(NAME, labels={"a": "b"})
    client.add_trial(NAME, {"x": 2.5}, request_id="enqueue")
    client.add_trial(
        NAME,
        {"x": 1.5, "kind": "a"},
        request_id="import",
        outcome=Outcome(TrialState.SUCCEEDED),
        measurements=[score(0, 0.5)],
    )
    client.suggest(NAME, 3, client_id="c", request_id="r1")
    client.report(NAME, 0, [score(0, 0.25), score(1, 0.75)])
    client.complete(NAME, 0, Outcome(TrialState.SUCCEEDED), measurements=[score(2, 0.5)])
    client.complete(NAME, 2, Outcome(TrialState.FAILED, reason="why", failure_class="mine"))
    client.reopen_trials(NAME, [2])
    client.complete(NAME, 2, Outcome(TrialState.FAILED, reason="why", failure_class="mine"))
    client.update_trial(NAME, 0, labels={"best": "yes"})
    client.suggest(NAME, 1, client_id="c", request_id="r2")
    client.suggest(NAME, 1, client_id="c", request_id="r3", lease_s=0.1)
    eventually(
        lambda: client.suggest(NAME, 1, client_id="d", request_id="r4", expired_only=True).trials
    )
    elsewhere = FinishedTrial(
        {"x": 99.0, "kind": "b"}, Outcome(TrialState.SUCCEEDED), [score(0, 0.125)]
    )
    client.import_trials(
        NAME, [elsewhere, replace(elsewhere, source_id="7")], source="notes", request_id="notes"
    )
    client.create_study(
        NAMING, replace(SPEC, space=Space(()), define_by_run=True), request_id="create"
    )
    client.suggest(NAMING, 1, client_id="c", request_id="r1")
    client.decide_parameter(NAMING, 0, Parameter("met", Float(0.0, 1.0)))
    client.delete_trial(NAME, 2)
    client.delete_study(OTHER)
    return what_is_there(client)


def what_is_there(client: Client) -> dict[str, Any]:
    return {
        "studies": [
            replace(s, uid="", create_time=None, owner_epoch=0, owner_address="")
            for s in client.list_studies()
        ],
        "trials": [
            replace(t, create_time=None, end_time=None)
            for t in (*client.list_trials(NAME), *client.list_trials(NAMING))
        ],
        "measurements": client.list_measurements(NAME),
    }


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as name,
        a_server(Path(name, "s.db")) as server,
        Client(server.address) as client,
    ):
        return a_history(client)


@pytest.mark.parametrize("point", POINTS)
def test_a_server_killed_at_any_write_loses_and_duplicates_nothing(
    point: str, folder: Path, undisturbed: dict[str, Any]
) -> None:
    with (
        a_process(folder / "s.db", f"unix:{folder}/s.sock", failpoint=point, revive=True) as server,
        Client(server.address, timeout_s=30) as client,
    ):
        assert a_history(client) == undisturbed
        assert server.deaths == [-9], "the point was reached, and once"


def test_acknowledged_writes_survive_a_kill(folder: Path) -> None:
    with (
        a_process(folder / "s.db", f"unix:{folder}/s.sock", revive=True) as server,
        Client(server.address, timeout_s=30) as client,
    ):
        before = a_history(client)
        server.kill()
        assert what_is_there(client) == before
        suggestions = client.suggest(NAME, 3, client_id="c", request_id="r1")
        assert [(t.number, t.state.value) for t in suggestions.trials] == [
            (0, "succeeded"),
            (2, "cancelled"),
            (3, "running"),
        ]


def test_only_one_server_writes_a_study_and_the_other_takes_over_when_it_dies(folder: Path) -> None:
    with (
        a_process(folder / "s.db", f"unix:{folder}/a.sock") as first,
        a_server(folder / "s.db", f"unix:{folder}/b.sock") as second,
        Client(first.address) as a,
        Client(second.address) as b,
    ):
        a.create_study(NAME, SPEC, request_id="create")
        a.suggest(NAME, 1, client_id="c", request_id="r")
        assert b.get_study(NAME).owner_address == first.address
        assert b.list_trials(NAME) == a.list_trials(NAME), "reading needs no ownership"
        followed = b.suggest(NAME, 1, client_id="c", request_id="r2").trials[0]
        assert (followed.number, b.get_study(NAME).owner_epoch) == (1, 1), (
            "the second said who owns it"
        )
        b.create_study(OTHER, SPEC, request_id="create")
        b.suggest(OTHER, 1, client_id="c", request_id="r")
        first.kill()
        first.stop()
        assert b.suggest(NAME, 1, client_id="c", request_id="r3").trials[0].number == 2
        study = b.get_study(NAME)
        assert (study.owner_address, study.owner_epoch) == (second.address, 2)


def test_a_server_that_is_stopped_releases_its_studies(folder: Path) -> None:
    with a_process(folder / "s.db", f"unix:{folder}/s.sock") as server:
        with Client(server.address) as client:
            client.create_study(NAME, SPEC, request_id="create")
            client.suggest(NAME, 1, client_id="c", request_id="r")
            assert client.get_study(NAME).owner_address == server.address
        assert server.stop() == 143
        assert not Path(folder, "s.sock").exists()
        assert not list(folder.glob("s.db-*")), "the write-ahead log is folded in"
    with a_server(folder / "s.db") as other, Client(other.address) as client:
        assert client.get_study(NAME).owner_address == ""


def test_a_server_that_is_gone_is_reported_as_such(folder: Path) -> None:
    with a_process(folder / "s.db", f"unix:{folder}/s.sock") as server:
        with Client(server.address) as client:
            client.algorithms()
        server.kill()
        server.stop()
        with (
            Client(server.address, timeout_s=1) as client,
            pytest.raises(
                Unavailable, match=f"no suggestion service answers at unix:{folder}/s.sock"
            ),
        ):
            client.algorithms()
