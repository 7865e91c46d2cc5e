"""The service with a real server and the blocking client: effects,
repetition and errors of each method.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suggest.client import Client
from suggest.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from suggest.space import Assignment, Choice, Float, Parameter, Space
from suggest.study import Algorithm, Pruning, Study, StudyName, StudySpec, ValueRule
from suggest.trial import IMPORTED_FROM, REUSED, Measurement, Outcome, StopAdvice, Trial, TrialState
from tests.service.running import NAME, SPEC, a_server, score

SUCCEEDED = Outcome(TrialState.SUCCEEDED)
CANCELLED = Outcome(TrialState.CANCELLED)
POINT: Assignment = {"x": 1.5, "kind": "a"}


@pytest.fixture
def study(client: Client) -> Study:
    return client.create_study(NAME, SPEC, request_id="create")


def one(client: Client, request_id: str = "one", **labels: str) -> Trial:
    [trial] = client.suggest(NAME, 1, client_id="c", request_id=request_id, labels=labels).trials
    return trial


def test_a_study_is_created_read_listed_and_deleted(client: Client) -> None:
    made = client.create_study(NAME, SPEC, request_id="create", labels={"team": "vision"})
    assert (made.name, made.spec, made.seed, dict(made.labels)) == (
        NAME,
        SPEC,
        7,
        {"team": "vision"},
    )
    assert client.get_study(NAME) == made
    assert client.list_studies() == client.list_studies("default") == [made]
    assert client.list_studies("other") == []
    client.delete_study(NAME)
    assert client.list_studies() == []
    with pytest.raises(NotFound, match="namespaces/default/studies/parabola does not exist"):
        client.get_study(NAME)
    with pytest.raises(NotFound):
        client.delete_study(NAME)


def test_repeating_a_create_request_returns_the_same_study(client: Client, study: Study) -> None:
    assert client.create_study(NAME, SPEC, request_id="create") == study
    client.update_study(NAME, pruning=None)
    assert client.create_study(NAME, SPEC, request_id="create").uid == study.uid, (
        "also after an update"
    )


def test_a_name_in_use_is_refused_with_the_difference_of_the_specs(
    client: Client, study: Study
) -> None:
    other = replace(
        SPEC, algorithm=Algorithm("grid"), space=Space((Parameter("kind", Choice(("a",))),))
    )
    with pytest.raises(
        AlreadyExists, match="with other parameters and algorithm; use another name"
    ):
        client.create_study(NAME, other, request_id="create")
    with pytest.raises(AlreadyExists, match="exists, created by another request"):
        client.create_study(NAME, SPEC, request_id="another")


def test_a_create_request_with_other_labels_is_not_a_repetition(client: Client) -> None:
    labels = {"team": "vision"}
    study = client.create_study(NAME, SPEC, request_id="create", labels=labels)
    assert client.create_study(NAME, SPEC, request_id="create", labels=labels) == study
    with pytest.raises(AlreadyExists, match="with other labels; change them by UpdateStudy"):
        client.create_study(NAME, SPEC, request_id="create", labels={"team": "speech"})


def test_true_and_1_are_different_specs(client: Client) -> None:
    def choosing(value: bool | int) -> StudySpec:
        return replace(SPEC, space=Space((Parameter("c", Choice((value, "b"))),)))

    client.create_study(NAME, choosing(True), request_id="create")
    with pytest.raises(AlreadyExists):
        client.create_study(NAME, choosing(1), request_id="create")


def test_all_problems_of_a_spec_are_reported_at_once_with_paths(client: Client) -> None:
    space = Space((Parameter("x", Float(10.0, 1.0)), Parameter("kind", Choice(()))))
    bad = replace(
        SPEC, space=space, algorithm=Algorithm("random", seed=-1), pruning=Pruning("medin")
    )
    with pytest.raises(InvalidArgument) as refused:
        client.validate(bad)
    assert [p.path for p in refused.value.problems] == [
        "spec.parameters.x.min",
        "spec.parameters.kind.values",
        "spec.pruning.name",
        "spec.algorithm.seed",
    ]
    with pytest.raises(InvalidArgument) as again:
        client.create_study(NAME, bad, request_id="create")
    assert again.value.problems == refused.value.problems
    client.validate(SPEC)


def test_a_hundred_problems_fit_into_a_reply(client: Client) -> None:
    space = Space(tuple(Parameter(f"parameter{i}", Float(10.0, 1.0)) for i in range(300)))
    with pytest.raises(InvalidArgument, match=r"and .* more problems"):
        client.validate(replace(SPEC, space=space))


def test_pruning_and_labels_are_all_that_an_update_changes(client: Client, study: Study) -> None:
    assert client.update_study(NAME, labels={"a": "b"}).labels == {"a": "b"}
    changed = client.update_study(NAME, pruning=None)
    assert (changed.spec.pruning, dict(changed.labels)) == (None, {"a": "b"})
    assert client.get_study(NAME) == changed
    with pytest.raises(InvalidArgument, match="update_mask"):
        client.update_study(NAME)
    with pytest.raises(InvalidArgument, match=r"spec\.pruning\.name"):
        client.update_study(NAME, pruning=Pruning("medin"))


def test_suggestions_are_numbered_running_and_inside_the_space(
    client: Client, study: Study
) -> None:
    found = client.suggest(NAME, 3, client_id="me", request_id="r", labels={"a": "b"})
    assert not found.exhausted
    assert [(t.number, t.state, t.client_id, t.request_id) for t in found.trials] == [
        (n, TrialState.RUNNING, "me", "r") for n in range(3)
    ]
    assert all(not SPEC.space.point_problems(t.parameters, partial=False) for t in found.trials)
    assert [dict(t.labels) for t in client.list_trials(NAME)] == [{"a": "b"}] * 3


def test_a_repeated_request_gets_the_same_trials_in_their_present_state(
    client: Client, study: Study
) -> None:
    first = client.suggest(NAME, 2, client_id="c", request_id="r")
    assert client.suggest(NAME, 2, client_id="c", request_id="r") == first
    done = client.complete(NAME, 0, Outcome(TrialState.SUCCEEDED, 0.5))
    assert client.suggest(NAME, 2, client_id="another", request_id="r").trials == (
        done,
        first.trials[1],
    )
    assert one(client, "new").number == 2


def test_a_finite_search_reports_that_it_is_exhausted(client: Client) -> None:
    space = Space((Parameter("kind", Choice(("a", "b", "c"))),))
    client.create_study(
        NAME, replace(SPEC, space=space, algorithm=Algorithm("grid")), request_id="create"
    )
    found = client.suggest(NAME, 5, client_id="c", request_id="r")
    assert ([t.parameters["kind"] for t in found.trials], found.exhausted) == (
        ["a", "b", "c"],
        True,
    )
    assert client.suggest(NAME, 1, client_id="c", request_id="more").trials == ()


@pytest.mark.parametrize("count", [0, -1, 1001])
def test_counts_have_limits(client: Client, study: Study, count: int) -> None:
    with pytest.raises(InvalidArgument, match=r"count: .* ask for 1 to 1000"):
        client.suggest(NAME, count, client_id="c", request_id="r")


def test_suggest_requires_a_client_id_and_a_request_id(client: Client, study: Study) -> None:
    with pytest.raises(InvalidArgument, match="request_id"):
        client.suggest(NAME, 1, client_id="c", request_id="")
    with pytest.raises(InvalidArgument, match="client_id"):
        client.suggest(NAME, 1, client_id="", request_id="r")
    with pytest.raises(InvalidArgument, match="request_id"):
        client.add_trial(NAME, POINT, request_id="")


def test_enqueued_points_are_handed_out_first_and_completed(client: Client, study: Study) -> None:
    whole = client.add_trial(NAME, POINT, request_id="a", labels={"from": "me"})
    partial = client.add_trial(NAME, {"x": 2.5}, request_id="b")
    assert (whole.state, partial.state, dict(partial.parameters)) == (TrialState.QUEUED,) * 2 + (
        {"x": 2.5},
    )
    first, second, third = client.suggest(
        NAME, 3, client_id="c", request_id="r", labels={"to": "you"}
    ).trials
    assert (first.number, first.parameters, dict(first.labels)) == (
        0,
        POINT,
        {"from": "me", "to": "you"},
    )
    assert (second.number, second.parameters["x"], second.parameters["kind"] in ("a", "b")) == (
        1,
        2.5,
        True,
    )
    assert third.number == 2
    assert client.add_trial(NAME, POINT, request_id="a") == first, (
        "a repetition, though it was handed out since"
    )


def test_a_finished_trial_is_imported_with_its_measurements(client: Client, study: Study) -> None:
    reports = [score(0, 0.25), score(1, 0.75)]
    trial = client.add_trial(NAME, POINT, request_id="a", outcome=SUCCEEDED, measurements=reports)
    assert (trial.state, trial.value, trial.step) == (TrialState.SUCCEEDED, 0.75, 1)
    assert (
        client.add_trial(NAME, POINT, request_id="a", outcome=SUCCEEDED, measurements=reports)
        == trial
    )
    assert client.list_measurements(NAME) == [(0, m) for m in reports]
    assert client.optimal_trials(NAME) == [trial]


OTHER_CONTENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another point": ({}, {"parameters": {"x": 2.5, "kind": "a"}}),
    "a point of fewer parameters": ({}, {"parameters": {"x": POINT["x"]}}),
    "a point outside the space": ({}, {"parameters": {"x": 1e9, "kind": "a"}}),
    "an unknown parameter": ({}, {"parameters": {**POINT, "y": 1.0}}),
    "other labels": ({"labels": {"by": "me"}}, {"labels": {"by": "you"}}),
    "an outcome": ({}, {"outcome": Outcome(TrialState.SUCCEEDED, 0.5)}),
    "no outcome": ({"outcome": Outcome(TrialState.SUCCEEDED, 0.5)}, {"outcome": None}),
    "another value": (
        {"outcome": Outcome(TrialState.SUCCEEDED, 0.5)},
        {"outcome": Outcome(TrialState.SUCCEEDED, 0.75)},
    ),
    "another state": (
        {"outcome": Outcome(TrialState.SUCCEEDED, 0.5)},
        {"outcome": Outcome(TrialState.PRUNED, 0.5)},
    ),
    "another measurement": (
        {"outcome": SUCCEEDED, "measurements": [score(0, 0.5)]},
        {"measurements": [score(0, 0.75)]},
    ),
    "one measurement more": (
        {"outcome": SUCCEEDED, "measurements": [score(0, 0.25), score(2, 0.5)]},
        {"measurements": [score(0, 0.25), score(1, 0.75), score(2, 0.5)]},
    ),
}


@pytest.mark.parametrize("name", OTHER_CONTENT)
def test_a_request_id_adds_one_trial_and_another_one_is_refused(
    client: Client, study: Study, name: str
) -> None:
    first, change = OTHER_CONTENT[name]
    sent: dict[str, Any] = {"parameters": POINT, **first}
    trial = client.add_trial(NAME, request_id="a", **sent)
    assert client.add_trial(NAME, request_id="a", **sent) == trial
    with pytest.raises(
        AlreadyExists, match="request_id 'a' has added trial 0, which is another one"
    ):
        client.add_trial(NAME, request_id="a", **{**sent, **change})
    assert client.list_trials(NAME) == [trial]


def test_an_enqueued_trial_is_the_same_after_it_has_ended(client: Client, study: Study) -> None:
    client.add_trial(NAME, {"x": 2.5}, request_id="a")
    [trial] = client.suggest(NAME, 1, client_id="c", request_id="r").trials
    ended = client.complete(NAME, trial.number, Outcome(TrialState.SUCCEEDED, 0.5))
    assert client.add_trial(NAME, {"x": 2.5}, request_id="a") == ended
    with pytest.raises(AlreadyExists):
        client.add_trial(NAME, {"x": 3.5}, request_id="a")
    other = client.add_trial(NAME, POINT, request_id="b")
    cancelled = client.complete(NAME, other.number, CANCELLED)
    assert client.add_trial(NAME, POINT, request_id="b") == cancelled


@pytest.mark.parametrize(
    ("parameters", "outcome", "path"),
    [
        ({"x": 11.0, "kind": "a"}, None, r"parameters\.x"),
        ({"x": 1.0, "kind": "c"}, None, r"parameters\.kind"),
        ({"y": 1.0}, None, r"parameters\.y"),
        ({"x": 1.0}, CANCELLED, r"parameters\.kind"),
        ({"x": math.nan}, None, r"parameters\.x"),
    ],
)
def test_points_outside_the_space_are_refused(
    client: Client, study: Study, parameters: Assignment, outcome: Outcome | None, path: str
) -> None:
    with pytest.raises(InvalidArgument, match=path):
        client.add_trial(NAME, parameters, request_id="a", outcome=outcome)
    assert client.list_trials(NAME) == []


def test_reports_are_stored_once_in_order(client: Client, study: Study) -> None:
    one(client)
    assert client.report(NAME, 0, [score(1, 0.5)]) == StopAdvice(False)
    for _ in range(2):
        client.report(NAME, 0, [score(1, 0.5), score(0, 0.25), Measurement(1, "loss", 1, math.inf)])
    assert [m for _, m in client.list_measurements(NAME, 0)] == [
        score(1, 0.5),
        score(0, 0.25),
        Measurement(1, "loss", 1, math.inf),
    ]


def test_a_hopeless_trial_is_advised_to_stop_with_a_reason(client: Client, study: Study) -> None:
    for number, value in enumerate((0.8, 0.9)):
        one(client, str(number))
        client.complete(NAME, number, SUCCEEDED, measurements=[score(0, value), score(1, value)])
    one(client, "hopeless")
    client.report(NAME, 2, [score(0, 0.1)])
    advice = client.report(NAME, 2, [score(1, 0.1)])
    assert advice.should_stop
    assert "0.1" in advice.reason
    assert client.report(NAME, 2, [score(1, 0.1)]) == advice, "a repetition is answered alike"
    pruned = client.complete(NAME, 2, Outcome(TrialState.PRUNED, reason=advice.reason))
    assert (pruned.state, pruned.value, pruned.reason) == (TrialState.PRUNED, 0.1, advice.reason)


def test_a_trial_succeeds_with_its_last_value_or_the_one_given(
    client: Client, study: Study
) -> None:
    one(client, "a")
    one(client, "b")
    trial = client.complete(NAME, 0, SUCCEEDED, measurements=[score(0, 0.9), score(3, 0.5)])
    assert (trial.value, trial.step) == (0.5, 3)
    assert trial.end_time is not None
    assert client.complete(NAME, 1, Outcome(TrialState.SUCCEEDED, 0.25)).value == 0.25
    assert client.optimal_trials(NAME) == [trial] == [client.get_trial(NAME, 0)]


@pytest.mark.parametrize(
    ("outcome", "value", "step"),
    [
        (SUCCEEDED, 0.9, 1),
        (Outcome(TrialState.SUCCEEDED, 0.9), 0.9, 1),
        (Outcome(TrialState.SUCCEEDED, 0.7), 0.7, 2),
        (Outcome(TrialState.FAILED), None, 2),
    ],
)
def test_the_step_of_a_trial_is_that_of_its_value_or_else_the_last(
    client: Client, outcome: Outcome, value: float | None, step: int
) -> None:
    best = replace(SPEC.objective, value=ValueRule.BEST)
    client.create_study(NAME, replace(SPEC, objectives=(best,)), request_id="create")
    one(client)
    client.report(NAME, 0, [score(1, 0.9)])
    for ended in (
        client.complete(NAME, 0, outcome, measurements=[score(2, 0.1)]),
        client.add_trial(
            NAME,
            POINT,
            request_id="a",
            outcome=outcome,
            measurements=[score(1, 0.9), score(2, 0.1)],
        ),
    ):
        assert (ended.value, ended.step) == (value, step)


@pytest.mark.parametrize("reports", [[], [Measurement(1, "loss", 0, 1.0)], [score(0, math.nan)]])
def test_a_trial_without_a_finite_value_cannot_succeed(
    client: Client, study: Study, reports: list[Measurement]
) -> None:
    one(client)
    with pytest.raises(
        FailedPrecondition, match=r"no finite value of 'score'.* complete it as failed"
    ):
        client.complete(NAME, 0, SUCCEEDED, measurements=reports)
    assert client.get_trial(NAME, 0).state is TrialState.RUNNING
    assert client.list_measurements(NAME) == []
    failed = client.complete(
        NAME,
        0,
        Outcome(TrialState.FAILED, reason="nan", failure_class="mine"),
        measurements=reports,
    )
    assert (failed.state, failed.value, failed.failure_class) == (TrialState.FAILED, None, "mine")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_must_be_finite(client: Client, study: Study, value: float) -> None:
    one(client)
    with pytest.raises(InvalidArgument, match=r"outcome\.succeeded\.value: .* is not finite"):
        client.complete(NAME, 0, Outcome(TrialState.SUCCEEDED, value))


def test_completing_the_same_way_again_succeeds_and_another_way_is_refused(
    client: Client, study: Study
) -> None:
    one(client)
    reports = [score(0, 0.5)]
    done = client.complete(NAME, 0, SUCCEEDED, measurements=reports)
    assert client.complete(NAME, 0, SUCCEEDED, measurements=reports) == done
    assert client.complete(NAME, 0, Outcome(TrialState.SUCCEEDED, 0.5)) == done
    for other in (Outcome(TrialState.SUCCEEDED, 0.6), Outcome(TrialState.FAILED), CANCELLED):
        with pytest.raises(
            FailedPrecondition, match=r"has ended as succeeded \(0.5\); it cannot end again as"
        ):
            client.complete(NAME, 0, other)
    with pytest.raises(FailedPrecondition, match="with further measurements"):
        client.complete(NAME, 0, SUCCEEDED, measurements=[score(1, 0.7)])
    assert client.get_trial(NAME, 0) == done


def test_a_finished_trial_takes_no_new_reports(client: Client, study: Study) -> None:
    one(client)
    client.complete(NAME, 0, SUCCEEDED, measurements=[score(0, 0.5)])
    assert client.report(NAME, 0, [score(0, 0.5)]).should_stop
    with pytest.raises(FailedPrecondition, match="is succeeded; it accepts no more reports"):
        client.report(NAME, 0, [score(1, 0.5)])


FAILED = Outcome(TrialState.FAILED, reason="exit code 1", failure_class="userError")


def test_failed_trials_run_again_and_keep_their_reports(client: Client, study: Study) -> None:
    first, second = client.suggest(NAME, 2, client_id="c", request_id="two").trials
    client.complete(NAME, first.number, FAILED, measurements=[score(1, 0.5)])
    client.complete(NAME, second.number, FAILED)
    assert client.reopen_trials(NAME, [1, 0]) == [second, first]
    assert client.reopen_trials(NAME, [0]) == [first], "again is not an error"
    assert client.list_trials(NAME, states=[TrialState.RUNNING]) == [first, second]
    client.report(NAME, 0, [score(1, 0.9)])  # of a known attempt and step: the last report wins
    assert [m.value for _, m in client.list_measurements(NAME, 0)] == [0.9]
    done = client.complete(NAME, 0, SUCCEEDED, measurements=[Measurement(2, "score", 1, 0.75)])
    assert (done.state, done.value, done.reason) == (TrialState.SUCCEEDED, 0.75, "")
    assert client.optimal_trials(NAME) == [done]


def test_only_failed_trials_are_reopened_and_all_or_none(client: Client, study: Study) -> None:
    client.suggest(NAME, 2, client_id="c", request_id="two")
    client.complete(NAME, 0, FAILED)
    client.complete(NAME, 1, Outcome(TrialState.INFEASIBLE))
    with pytest.raises(
        FailedPrecondition, match="trial 1 is infeasible; only a failed trial can be reopened"
    ):
        client.reopen_trials(NAME, [0, 1])
    with pytest.raises(NotFound, match="no trial 7"):
        client.reopen_trials(NAME, [0, 7])
    client.delete_trial(NAME, 1)
    with pytest.raises(FailedPrecondition):
        client.reopen_trials(NAME, [0, 1])
    assert client.get_trial(NAME, 0).state is TrialState.FAILED
    with pytest.raises(InvalidArgument, match="0 occurs twice"):
        client.reopen_trials(NAME, [0, 0])


def test_reopened_trials_are_open_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    with a_server(path) as server, Client(server.address) as client:
        client.create_study(NAME, SPEC, request_id="create")
        trial = one(client)
        client.complete(NAME, 0, FAILED, measurements=[score(1, 0.5)])
    with a_server(path) as server, Client(server.address) as client:
        assert client.reopen_trials(NAME, [0]) == [trial]
    with a_server(path) as server, Client(server.address) as client:
        assert client.report(NAME, 0, [score(1, 0.9), score(2, 0.8)]) == StopAdvice(False)
        assert client.complete(NAME, 0, SUCCEEDED).value == 0.8
        assert [m.value for _, m in client.list_measurements(NAME, 0)] == [0.9, 0.8]


def test_a_queued_trial_can_only_be_cancelled(client: Client, study: Study) -> None:
    client.add_trial(NAME, POINT, request_id="a")
    with pytest.raises(FailedPrecondition, match="is queued"):
        client.report(NAME, 0, [score(0, 0.5)])
    with pytest.raises(FailedPrecondition, match="is queued"):
        client.complete(NAME, 0, Outcome(TrialState.FAILED))
    assert client.complete(NAME, 0, CANCELLED).state is TrialState.CANCELLED
    assert one(client).number == 1


def test_a_deleted_trial_is_forgotten_but_its_number_is_not_reused(
    client: Client, study: Study
) -> None:
    one(client, "a")
    with pytest.raises(FailedPrecondition, match="is running; complete it as cancelled first"):
        client.delete_trial(NAME, 0)
    client.complete(NAME, 0, Outcome(TrialState.SUCCEEDED, 1.0))
    client.delete_trial(NAME, 0)
    assert client.list_trials(NAME) == client.optimal_trials(NAME) == []
    for gone in (client.get_trial, client.delete_trial):
        with pytest.raises(NotFound, match="has no trial 0"):
            gone(NAME, 0)
    assert one(client, "b").number == 1


def test_a_trial_is_relabeled(client: Client, study: Study) -> None:
    trial = one(client, old="label")
    assert client.update_trial(NAME, 0, labels={"new": "label"}) == replace(
        trial, labels={"new": "label"}
    )
    assert client.get_trial(NAME, 0).labels == {"new": "label"}


def test_only_the_service_sets_the_labels_of_a_trials_origin(client: Client, study: Study) -> None:
    trial = one(client)
    for forge in (
        lambda: client.update_trial(NAME, trial.number, labels={IMPORTED_FROM: "x"}),
        lambda: client.suggest(NAME, 1, client_id="c", request_id="forged", labels={REUSED: "0"}),
        lambda: client.add_trial(NAME, {}, request_id="added", labels={IMPORTED_FROM: "x"}),
    ):
        with pytest.raises(
            InvalidArgument, match=r"tuner\.dev/\S+: only the service sets this label; remove it"
        ):
            forge()
    assert [each.labels for each in client.list_trials(NAME)] == [trial.labels]


def test_a_missing_study_or_trial_is_named(client: Client, study: Study) -> None:
    other = StudyName("default", "nothing")
    calls = [
        lambda: client.suggest(other, 1, client_id="c", request_id="r"),
        lambda: client.list_trials(other),
        lambda: client.list_measurements(other),
        lambda: client.optimal_trials(other),
        lambda: client.update_study(other, pruning=None),
        lambda: client.get_trial(other, 0),
    ]
    for call in calls:
        with pytest.raises(NotFound, match="namespaces/default/studies/nothing does not exist"):
            call()
    with pytest.raises(NotFound, match="trial 5"):
        client.get_trial(NAME, 5)
    with pytest.raises(NotFound, match="trial 5"):
        client.complete(NAME, 5, CANCELLED)


def test_the_algorithms_are_listed_with_their_settings(client: Client) -> None:
    found = {a.name: a for a in client.algorithms()}
    assert {"random", "grid", "tpe", "optuna:tpe"} <= set(found)
    assert found["tpe"].settings["startupTrials"].startswith("int, default 10: ")
