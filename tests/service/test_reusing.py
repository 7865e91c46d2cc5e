"""A point whose value is known ends at once with that value; only trials to run are handed out."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from suggest.client import Client
from suggest.errors import LimitReached
from suggest.server.admin import open_store
from suggest.server.limits_file import Limits, Quota
from suggest.server.quota import QuotaStore
from suggest.space import Choice, Parameter, Space
from suggest.studies import StudyService
from suggest.study import Algorithm, StudyName
from suggest.trial import REUSED, Outcome, Trial, TrialState
from tests.service.running import NAME, SPEC, a_server

SMALL = Space((Parameter("a", Choice((1, 2, 3))), Parameter("b", Choice(("x", "y")))))  # 6 points


def search(client: Client, algorithm: Algorithm) -> list[Trial]:
    """Run trials, two at a time, until the space is exhausted."""
    client.create_study(
        NAME, replace(SPEC, space=SMALL, algorithm=algorithm, pruning=None), request_id="create"
    )
    for k in range(30):
        suggestions = client.suggest(
            NAME, 2, client_id="me", request_id=f"request-{k}", labels={"team": "vision"}
        )
        for trial in suggestions.trials:
            client.complete(
                NAME,
                trial.number,
                Outcome(TrialState.SUCCEEDED, 10.0 * float(trial.parameters["a"])),
            )
        if suggestions.exhausted:
            return client.list_trials(NAME)
    raise AssertionError("not exhausted")


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
def test_a_reused_value_costs_no_run_and_names_its_source(tmp_path: Path, algorithm: str) -> None:
    settings = {"duplicates": "reuse"} | ({"startupTrials": 2} if algorithm == "tpe" else {})
    with a_server(tmp_path / "studies.db") as server, Client(server.address) as client:
        trials = search(client, Algorithm(algorithm, 3, settings))
        assert [t.number for t in trials] == list(range(len(trials)))
        run = [t for t in trials if REUSED not in t.labels]
        assert sorted((t.parameters["a"], t.parameters["b"]) for t in run) == [
            (a, b) for a in (1, 2, 3) for b in "xy"
        ]
        assert client.list_trials(NAME, client_id="me") == run, "those handed out"
        reused = [t for t in trials if REUSED in t.labels]
        assert reused
        for trial in reused:
            source = trials[int(trial.labels[REUSED])]
            assert (trial.state, trial.value) == (TrialState.SUCCEEDED, source.value)
            assert (trial.parameters, trial.labels["team"]) == (source.parameters, "vision")
            assert (
                trial.reason
                == f"not run: the value of trial {source.number}, which has the same parameters"
            )
            assert source in run


def test_a_client_knows_all_its_trials_however_full_its_namespace_is(tmp_path: Path) -> None:
    """Reused values come between the trials of a reply, so the quota may end
    among the trials of one proposal.
    """
    spec = replace(
        SPEC, space=SMALL, algorithm=Algorithm("random", 3, {"duplicates": "reuse"}), pruning=None
    )
    limits = [Limits()]
    store = QuotaStore(open_store(f"sqlite:///{tmp_path}/s.db"), lambda: limits[0])
    with closing(store), closing(StudyService(store, address="")) as studies:

        def run_until_full(name: StudyName, known: list[int]) -> None:
            for k in range(12):
                for trial in studies.suggest(name, 4, client_id="me", request_id=f"r{k}").trials:
                    known.append(trial.number)
                    studies.complete(name, trial.number, Outcome(TrialState.SUCCEEDED, 1.0))

        for most in range(1, 12):
            name, known = StudyName(f"team-{most}", "small"), list[int]()
            limits[0] = Limits(quota=Quota(trials=most))
            studies.create_study(name, spec, request_id="create")
            with pytest.raises(LimitReached):
                run_until_full(name, known)
            assert [t.number for t in studies.list_trials(name, client_id="me", limit=99)] == known


def test_resampling_hands_out_every_point_once(tmp_path: Path) -> None:
    with a_server(tmp_path / "studies.db") as server, Client(server.address) as client:
        trials = search(client, Algorithm("random", 3, {"duplicates": "resample"}))
        assert (len(trials), len({repr(t.parameters) for t in trials})) == (6, 6)


@pytest.mark.parametrize(
    "request_id", ["value-of/{}", "tuner.dev/value-of/{}", "tuner.dev/added/value-of/{}"]
)
def test_no_request_id_of_a_client_conflicts_with_a_reused_value(
    tmp_path: Path, request_id: str
) -> None:
    with a_server(tmp_path / "studies.db") as server, Client(server.address) as client:
        algorithm = Algorithm("random", 3, {"duplicates": "reuse"})
        client.create_study(
            NAME, replace(SPEC, space=SMALL, algorithm=algorithm, pruning=None), request_id="create"
        )
        added = [
            client.add_trial(NAME, {"a": 1, "b": "x"}, request_id=request_id.format(20 + k))
            for k in range(20)
        ]
        assert [t.number for t in added] == list(range(20))
        trials = search(client, algorithm)
        assert any(REUSED in t.labels for t in trials)
        for k, trial in enumerate(added):
            assert (
                client.add_trial(
                    NAME, {"a": 1, "b": "x"}, request_id=request_id.format(20 + k)
                ).number
                == trial.number
            )
