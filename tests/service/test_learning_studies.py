"""Studies that learn from earlier ones, with a real server: what is stored, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from suggest.client import Client
from suggest.errors import AlreadyExists, InvalidArgument, NotFound
from suggest.study import (
    Algorithm,
    Belief,
    Direction,
    EarlierStudy,
    Objective,
    StudyName,
    StudySpec,
)
from suggest.trial import Outcome, TrialState
from tests.service.running import NAME, SPEC, a_server

SPEC_LEARNING = replace(
    SPEC,
    algorithm=Algorithm("default", seed=7),
    pruning=None,
    learn_from=(EarlierStudy("parabola", 0.5),),
)
LATER = StudyName("default", "later")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with a_server(tmp_path / "studies.db") as server, Client(server.address) as client:
        yield client


def finish_parabola(client: Client, *, trials: int = 20) -> None:
    """Create a study with its optimum at x = 3, kind = a."""
    client.create_study(NAME, SPEC, request_id="create")
    for trial in client.suggest(NAME, trials, client_id="c", request_id="r").trials:
        x, worse = float(trial.parameters["x"]), trial.parameters["kind"] == "b"
        client.complete(
            NAME, trial.number, Outcome(TrialState.SUCCEEDED, -((x - 3) ** 2) - 5 * worse)
        )


def first_x(client: Client, name: StudyName, spec: StudySpec = SPEC_LEARNING) -> float:
    client.create_study(name, spec, request_id="create")
    (trial,) = client.suggest(name, 1, client_id="c", request_id="r").trials
    return float(trial.parameters["x"])


def test_a_deleted_source_changes_nothing_of_a_study_that_learned_from_it(tmp_path: Path) -> None:
    points = []
    for deletes in (False, True):
        file = tmp_path / f"{deletes}.db"
        with a_server(file) as server, Client(server.address) as client:
            finish_parabola(client)
            client.create_study(LATER, SPEC_LEARNING, request_id="create")
            if deletes:
                client.delete_study(NAME)
        with a_server(file) as server, Client(server.address) as client:
            again = client.create_study(LATER, SPEC_LEARNING, request_id="create")
            assert again.spec.learn_from == (EarlierStudy("parabola", 0.5),)
            trials = client.suggest(LATER, 3, client_id="c", request_id="r").trials
            points.append([trial.parameters for trial in trials])
    assert points[0] == points[1]
    assert abs(float(points[0][0]["x"]) - 3) < 2


def test_a_check_without_creating_reads_the_sources(client: Client) -> None:
    finish_parabola(client)
    client.create_study(LATER, SPEC_LEARNING, request_id="create", validate_only=True)
    with pytest.raises(NotFound):
        client.get_study(LATER)
    unknown = replace(SPEC_LEARNING, learn_from=(EarlierStudy("parabole"),))
    with pytest.raises(InvalidArgument) as refused:
        client.create_study(LATER, unknown, request_id="create", validate_only=True)
    assert [(p.path, p.message) for p in refused.value.problems] == [
        (
            "spec.learn_from[0].study",
            "there is no study parabole in default; name a finished one",
        )
    ]


def test_an_unfinished_source_is_refused(client: Client) -> None:
    finish_parabola(client)
    client.suggest(NAME, 2, client_id="c", request_id="more")
    with pytest.raises(InvalidArgument, match="parabola is not finished: trials that still run: 2"):
        client.create_study(LATER, SPEC_LEARNING, request_id="create")


def test_every_source_with_a_problem_is_named(client: Client) -> None:
    finish_parabola(client)
    other = replace(
        SPEC_LEARNING,
        objectives=(Objective("score", Direction.MINIMIZE),),
        learn_from=(EarlierStudy("none"), EarlierStudy("parabola")),
    )
    with pytest.raises(InvalidArgument) as refused:
        client.create_study(LATER, other, request_id="create")
    assert [p.path for p in refused.value.problems] == [
        "spec.learn_from[0].study",
        "spec.learn_from[1].study",
    ]
    assert "parabola is to maximize score, and this search is to minimize it" in str(refused.value)


def test_a_client_waits_for_the_first_point_instead_of_getting_a_random_one(client: Client) -> None:
    finish_parabola(client)
    best = sorted(abs(float(t.parameters["x"]) - 3) for t in client.list_trials(NAME))[:3]
    unseeded = replace(SPEC_LEARNING, algorithm=Algorithm("default"))
    for number in range(3):
        name = StudyName("default", f"later-{number}")
        assert abs(first_x(client, name, unseeded) - 3) <= best[-1]


def test_the_names_of_the_sources_are_part_of_what_a_request_asks_for(client: Client) -> None:
    finish_parabola(client)
    assert abs(first_x(client, LATER) - 3) < 2
    with pytest.raises(AlreadyExists, match="exists, created by another request"):
        client.create_study(LATER, SPEC_LEARNING, request_id="another")
    with pytest.raises(AlreadyExists, match="with other learnFrom"):
        client.create_study(LATER, replace(SPEC_LEARNING, learn_from=()), request_id="create")


def test_a_prior_reaches_the_service_and_is_part_of_what_a_request_asks_for(client: Client) -> None:
    beliefs = (Belief("x", 3, 0.5), Belief("kind", "a", 0.8))
    spec = replace(SPEC_LEARNING, learn_from=(), prior=beliefs)
    client.create_study(LATER, spec, request_id="create")
    assert client.get_study(LATER).spec.prior == beliefs
    (first,) = client.suggest(LATER, 1, client_id="c", request_id="r").trials
    assert first.parameters == {**first.parameters, "x": 3, "kind": "a"}
    with pytest.raises(AlreadyExists, match="with other prior"):
        client.create_study(LATER, replace(spec, prior=()), request_id="create")
    unknown = replace(spec, prior=(Belief("y", 3, 0.5), Belief("kind", "a", 1)))
    with pytest.raises(InvalidArgument) as refused:
        client.create_study(StudyName("default", "other"), unknown, request_id="create")
    assert [p.path for p in refused.value.problems] == ["spec.prior.y", "spec.prior.kind.sure"]
