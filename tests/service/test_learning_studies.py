"""Studies that learn from earlier ones, with a real server: what is stored, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from suggest.client import Client
from suggest.errors import AlreadyExists, InvalidArgument, NotFound
from suggest.space import Assignment, Float, Parameter, Space
from suggest.study import (
    RERUNS_OF,
    Algorithm,
    Belief,
    Direction,
    EarlierStudy,
    Objective,
    StudyName,
    StudySpec,
)
from suggest.trial import NO_LABELS, Outcome, TrialState
from tests.service.running import NAME, SPEC, a_server

SPEC_LEARNING = replace(
    SPEC,
    algorithm=Algorithm("default", seed=7),
    pruning=None,
    learn_from=(EarlierStudy("parabola", 0.5),),
)
LATER = StudyName("default", "later")


def finish_parabola(
    client: Client,
    *,
    name: StudyName = NAME,
    trials: int = 20,
    points: Sequence[Assignment] = (),
    labels: Mapping[str, str] = NO_LABELS,
) -> None:
    """Create a study with its optimum at x = 3, kind = a. points: instead of proposed ones."""
    client.create_study(name, SPEC, request_id="create", labels=labels)
    for number, point in enumerate(points):
        client.add_trial(name, point, request_id=str(number))
    wanted = len(points) or trials
    for trial in client.suggest(name, wanted, client_id="c", request_id="r").trials:
        x, worse = float(trial.parameters["x"]), trial.parameters["kind"] == "b"
        client.complete(
            name, trial.number, Outcome(TrialState.SUCCEEDED, -((x - 3) ** 2) - 5 * worse)
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


def sources_of(client: Client, name: str, spec: StudySpec = SPEC_LEARNING) -> list[str]:
    """Return the studies that were found for a new study."""
    similar = replace(spec, learn_from=(EarlierStudy("-"),))
    study = client.create_study(StudyName("default", name), similar, request_id=name)
    return [earlier.study for earlier in study.spec.learn_from]


def test_similar_studies_are_found_the_most_recent_first(client: Client) -> None:
    assert sources_of(client, "none-yet") == []
    names = [StudyName("default", f"old-{number:02}") for number in range(10)]
    for name in names:
        finish_parabola(client, name=name, trials=12)
    elsewhere = StudyName("other", "old")
    finish_parabola(client, name=elsewhere, trials=12)
    found = sources_of(client, "later")
    assert found == [name.study for name in reversed(names)][:8]
    for name in names:
        client.delete_study(name)
    again = client.create_study(
        StudyName("default", "later"),
        replace(SPEC_LEARNING, learn_from=(EarlierStudy("-"),)),
        request_id="later",
    )
    assert [earlier.study for earlier in again.spec.learn_from] == found
    with pytest.raises(AlreadyExists, match="exists, created by another request"):
        client.create_study(
            StudyName("default", "later"),
            replace(SPEC_LEARNING, learn_from=(EarlierStudy("-"),)),
            request_id="another",
        )


def test_what_is_no_finished_search_of_the_same_kind_is_not_similar(client: Client) -> None:
    finish_parabola(client, name=StudyName("default", "short"), trials=9)
    running = StudyName("default", "running")
    finish_parabola(client, name=running)
    client.suggest(running, 1, client_id="c", request_id="more")
    finish_parabola(
        client, name=StudyName("default", "one-point"), points=[{"x": 3, "kind": "a"}] * 12
    )
    again = StudyName("default", "parabola-confirm")
    finish_parabola(client, name=again, labels={RERUNS_OF: "parabola"})
    finish_parabola(client)
    metric = replace(SPEC_LEARNING, objectives=(Objective("loss", Direction.MAXIMIZE),))
    assert sources_of(client, "other-metric", metric) == []
    direction = replace(
        SPEC_LEARNING, objectives=(replace(SPEC.objective, direction=Direction.MINIMIZE),)
    )
    assert sources_of(client, "other-direction", direction) == []
    space = Space((*SPEC.space.parameters, Parameter("more", Float(0, 1))))
    assert sources_of(client, "other-space", replace(SPEC_LEARNING, space=space)) == []
    assert sources_of(client, "later") == ["parabola"]


def test_named_and_similar_sources_can_be_combined(client: Client) -> None:
    finish_parabola(client)
    finish_parabola(client, name=StudyName("default", "other"))
    both = replace(SPEC_LEARNING, learn_from=(EarlierStudy("-", 0.5), EarlierStudy("parabola")))
    study = client.create_study(LATER, both, request_id="create")
    assert study.spec.learn_from == (EarlierStudy("parabola"), EarlierStudy("other", 0.5))


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
