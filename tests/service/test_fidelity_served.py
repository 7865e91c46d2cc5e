"""Trials with a fidelity over gRPC: paused, promoted, repeated, expired and stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from suggest.client import Client
from suggest.errors import FailedPrecondition
from suggest.replies import Suggestions
from suggest.study import Fidelity
from suggest.trial import Outcome, RungResult, Trial, TrialState
from tests.service.running import NAME, SPEC, a_server, score

STEPS = replace(SPEC, fidelity=Fidelity("epochs", 1, 9, 3), pruning=None)
PAUSED, RUNNING, SUCCEEDED, PRUNED = (
    TrialState.PAUSED,
    TrialState.RUNNING,
    TrialState.SUCCEEDED,
    TrialState.PRUNED,
)
OTHER = replace(NAME, study="other")
SILENT_S = 0.2  # the lease of a client that dies


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "studies.db"


@pytest.fixture
def client(storage: Path) -> Iterator[Client]:
    with a_server(storage) as server, Client(server.address) as client:
        client.create_study(NAME, STEPS, request_id="create")
        yield client


def ask(client: Client, request: str, count: int = 1, **more: object) -> Suggestions:
    return client.suggest(NAME, count, client_id="c", request_id=request, **more)  # type: ignore[arg-type]


def end(client: Client, number: int, value: float) -> Trial:
    return client.complete(NAME, number, Outcome(SUCCEEDED, value))


def promoted(client: Client) -> Trial:
    """Run three trials, of which the last is promoted."""
    for trial in ask(client, "first", 3).trials:
        assert end(client, trial.number, float(trial.number)).state is PAUSED
    (trial,) = ask(client, "second").trials
    assert trial.number == 2
    return trial


def test_a_trial_pauses_continues_and_succeeds(client: Client) -> None:
    trial = promoted(client)
    assert (trial.state, trial.fidelity, trial.value, trial.tries) == (RUNNING, 3, None, 2)
    paused = end(client, 2, 7.0)
    assert (paused.state, paused.value, paused.end_time) == (PAUSED, 7.0, None)
    assert paused.rungs == (RungResult(1, 2.0), RungResult(3, 7.0))
    assert "epochs 3 of 9" in paused.reason
    (trial,) = ask(client, "third", paused_only=True).trials
    assert (trial.number, trial.fidelity, trial.reason) == (2, 9, "")
    done = end(client, 2, 8.0)
    assert (done.state, done.value, done.rungs) == (SUCCEEDED, 8.0, paused.rungs)
    assert ask(client, "fourth", 5, paused_only=True) == Suggestions(
        (), exhausted=True, independent=False
    )
    assert [t.number for t in client.optimal_trials(NAME)] == [2]


def test_repeated_calls_change_nothing(client: Client) -> None:
    (first, *_) = ask(client, "first", 3).trials
    once = client.complete(NAME, first.number, Outcome(SUCCEEDED), measurements=[score(0, 0.5)])
    again = client.complete(NAME, first.number, Outcome(SUCCEEDED), measurements=[score(0, 0.5)])
    assert once == again
    assert once.state is PAUSED
    with pytest.raises(FailedPrecondition, match=r"is paused \(0.5\)"):
        end(client, first.number, 0.7)
    with pytest.raises(
        FailedPrecondition, match="is paused; it accepts reports again once it continues"
    ):
        client.report(NAME, first.number, [score(1, 0.9)])
    assert client.report(NAME, first.number, [score(0, 0.5)]).should_stop
    for number in (1, 2):
        end(client, number, 0.1)
    assert ask(client, "second") == ask(client, "second")


def test_a_paused_trial_may_end_as_pruned_or_cancelled(client: Client) -> None:
    promoted(client)
    pruned = client.complete(NAME, 1, Outcome(PRUNED, reason="enough"))
    assert (pruned.state, pruned.value, pruned.reason, pruned.rungs) == (
        PRUNED,
        1.0,
        "enough",
        (RungResult(1, 1.0),),
    )
    cancelled = client.complete(NAME, 0, Outcome(TrialState.CANCELLED, reason="stop"))
    assert (cancelled.state, cancelled.value) == (TrialState.CANCELLED, None)


def test_a_restarted_server_knows_the_rungs(storage: Path) -> None:
    with a_server(storage) as server, Client(server.address) as client:
        client.create_study(NAME, STEPS, request_id="create")
        trial = promoted(client)
        end(client, trial.number, 9.0)
        trials = client.list_trials(NAME)
    with a_server(storage) as server, Client(server.address) as client:
        assert client.list_trials(NAME) == trials
        assert client.get_study(NAME).spec == STEPS
        (trial,) = ask(client, "third", paused_only=True).trials
        assert (trial.number, trial.fidelity) == (2, 9)


def test_a_promoted_trial_whose_client_died_continues_at_the_same_fidelity(client: Client) -> None:
    for trial in ask(client, "first", 3).trials:
        end(client, trial.number, float(trial.number))
    for k in range(3):  # three silent clients; a run that paused does not count as one
        given = ()
        while not given:
            given = ask(client, f"dies-{k}", paused_only=True, lease_s=SILENT_S).trials
        assert (given[0].number, given[0].fidelity) == (2, 3)
    while client.get_trial(NAME, 2).state is not TrialState.FAILED:
        ask(client, "looks", paused_only=True)
    assert client.get_trial(NAME, 2).rungs == (RungResult(1, 2.0),)
