"""The statuses of Katib's resources, as tables."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.core.model import Attempt, AttemptState, ExperimentState, ReasonCode
from controller.operator.katib_status import (
    TrialClass,
    TrialsOverview,
    class_of,
    class_said,
    conditions,
    experiment_status,
    observation,
    sound_status,
    trial_status,
)
from controller.operator.status import Observation, SpecRefusal
from suggest.trial import Measurement, Trial, TrialState
from tests.unit.builders import an_experiment, attempt

Raw = dict[str, Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)


def trial(state: TrialState = TrialState.RUNNING, **others: Any) -> Trial:
    return Trial(0, state, {"lr": 0.1}, **others)


RUNS, BEGINS = attempt(1, AttemptState.RUNNING), attempt(1)
ENDED = attempt(1, AttemptState.FAILED)
MISSING = trial(TrialState.FAILED, failure_class="metricsMissing")
# The trial, its newest attempt, whether clients find an object of that, and the class.
CLASSES: dict[str, tuple[Trial, Attempt | None, bool, TrialClass | None]] = {
    "not begun": (trial(), None, False, None),
    "begun without an object": (trial(), BEGINS, False, None),
    "its object exists": (trial(), BEGINS, True, TrialClass.CREATED),
    "its pod runs": (trial(), RUNS, True, TrialClass.RUNNING),
    "its pod is asked to end": (
        trial(),
        attempt(1, AttemptState.STOPPING),
        True,
        TrialClass.RUNNING,
    ),
    "it is run again": (trial(), ENDED, True, TrialClass.CREATED),
    "its object was deleted": (trial(), RUNS, False, None),
    "succeeded": (trial(TrialState.SUCCEEDED), RUNS, False, TrialClass.SUCCEEDED),
    "reported nan": (trial(TrialState.INFEASIBLE), RUNS, False, TrialClass.SUCCEEDED),
    "pruned": (trial(TrialState.PRUNED), RUNS, False, TrialClass.EARLY_STOPPED),
    "failed": (trial(TrialState.FAILED), ENDED, False, TrialClass.FAILED),
    "reported nothing": (MISSING, ENDED, False, TrialClass.METRICS_UNAVAILABLE),
    "cancelled": (trial(TrialState.CANCELLED), RUNS, False, TrialClass.KILLED),
    "cancelled before it began": (trial(TrialState.CANCELLED), None, False, None),
}


@pytest.mark.parametrize("what", CLASSES)
def test_a_trial_has_katibs_class(what: str) -> None:
    given, newest, has_object, expected = CLASSES[what]
    assert class_of(given, newest, has_object=has_object) is expected


def types(status: Raw) -> list[tuple[str, str, str]]:
    return [(each["type"], each["status"], each["reason"]) for each in status["conditions"]]


CREATED = ("Created", "True", "ExperimentCreated")
STOPPED = ("Running", "False", "ExperimentRunning")
ENDS: dict[str, tuple[ExperimentState, ReasonCode | None, tuple[str, str, str]]] = {
    "goal": (
        ExperimentState.SUCCEEDED,
        ReasonCode.TARGET_REACHED,
        ("Succeeded", "True", "ExperimentGoalReached"),
    ),
    "trials": (
        ExperimentState.SUCCEEDED,
        ReasonCode.TRIALS_DONE,
        ("Succeeded", "True", "ExperimentMaxTrialsReached"),
    ),
    "space": (
        ExperimentState.SUCCEEDED,
        ReasonCode.SPACE_EXHAUSTED,
        ("Succeeded", "True", "ExperimentSuggestionEndReached"),
    ),
    "failures": (
        ExperimentState.FAILED,
        ReasonCode.TOO_MANY_FAILURES,
        ("Failed", "True", "ExperimentFailed"),
    ),
}
NO_TRIALS = TrialsOverview({}, {})


def seen(state: ExperimentState, code: ReasonCode | None = None, **others: Any) -> Observation:
    experiment = replace(an_experiment(), state=state, reason="why", reason_code=code)
    return Observation(1, experiment, **others)


def running(status: Raw) -> Raw:
    return experiment_status(seen(ExperimentState.RUNNING), NO_TRIALS, status, NOW)


@pytest.mark.parametrize("what", ENDS)
def test_an_end_has_katibs_reason_and_nothing_runs(what: str) -> None:
    state, code, last = ENDS[what]
    ended = experiment_status(seen(state, code), NO_TRIALS, running({}), LATER)
    assert types(ended) == [CREATED, STOPPED, last]
    assert "completionTime" in ended


def test_a_refused_spec_has_failed_with_what_is_wrong() -> None:
    refused = Observation(1, refusal=SpecRefusal("Invalid", "lr: no"))
    status = experiment_status(refused, NO_TRIALS, {}, NOW)
    assert types(status) == [CREATED, ("Failed", "True", "ExperimentInvalid")]
    assert status["conditions"][-1]["message"] == "lr: no"


def test_a_suspended_experiment_does_not_run() -> None:
    suspended = seen(ExperimentState.STOPPED, suspended=True)
    status = experiment_status(suspended, NO_TRIALS, running({}), LATER)
    assert types(status) == [CREATED, ("Running", "False", "ExperimentSuspended")]


def test_what_goes_on_after_its_end_is_restarted_and_stays_so() -> None:
    ended = experiment_status(
        seen(ExperimentState.SUCCEEDED, ReasonCode.TRIALS_DONE), NO_TRIALS, running({}), NOW
    )
    again = seen(ExperimentState.RUNNING, before={"revision": 1})
    status = experiment_status(again, NO_TRIALS, ended, LATER)
    restarting = ("Restarting", "True", "ExperimentRestarting")
    goes_on = ("Running", "True", "ExperimentRunning")
    assert types(status) == [CREATED, restarting, goes_on]
    # Katib never takes it back, so a client that asks each 15 s sees it.
    last = experiment_status(
        seen(ExperimentState.SUCCEEDED, ReasonCode.TRIALS_DONE),
        NO_TRIALS,
        status,
        LATER + timedelta(seconds=15),
    )
    assert restarting in types(last)
    assert last["conditions"][-1]["type"] == "Succeeded"


def test_the_same_says_the_same_so_that_nothing_is_written() -> None:
    first = running({})
    again = experiment_status(seen(ExperimentState.RUNNING), NO_TRIALS, first, LATER)
    assert again == first


def test_each_list_has_its_odd_name_and_each_count_is_there() -> None:
    names = {each: [each.value] for each in TrialClass}
    overview = TrialsOverview(names, {"bestTrialName": "a"})
    status = experiment_status(seen(ExperimentState.RUNNING), overview, {}, NOW)
    counts = (
        "trialsPending",
        "trialsRunning",
        "trialsSucceeded",
        "trialsEarlyStopped",
        "trialsFailed",
        "trialMetricsUnavailable",
        "trialsKilled",
    )
    assert status["trials"] == 7
    assert [status[key] for key in counts] == [1] * 7
    assert status["metricsUnavailableTrialList"] == ["MetricsUnavailable"]
    assert status["pendingTrialList"] == ["Created"]
    assert status["currentOptimalTrial"] == {"bestTrialName": "a"}


def test_counts_without_trials_are_0_and_lists_absent() -> None:
    status = running({})
    assert status["trialsRunning"] == status["trialMetricsUnavailable"] == 0
    assert "runningTrialList" not in status
    assert "currentOptimalTrial" not in status


def test_a_condition_that_changes_moves_to_the_end_with_a_new_time() -> None:
    before = conditions([], [("A", True, "a", ""), ("B", True, "b", "")], NOW)
    after = conditions(before, [("A", False, "a", ""), ("B", True, "b", "")], LATER)
    assert [each["type"] for each in after] == ["B", "A"]
    assert after[0] == before[1]
    assert after[1]["lastTransitionTime"] > before[0]["lastTransitionTime"]


def test_another_message_is_no_transition() -> None:
    before = conditions([], [("A", True, "a", "x")], NOW)
    (after,) = conditions(before, [("A", True, "a", "y")], LATER)
    assert after["lastTransitionTime"] == before[0]["lastTransitionTime"]
    assert after["lastUpdateTime"] > before[0]["lastUpdateTime"]


def measured(*values: tuple[int, str, int, float]) -> list[Measurement]:
    return [Measurement(*each) for each in values]


NAN = float("nan")
# What was measured, and latest, least and greatest of each metric; none: no observation.
OBSERVED: dict[str, tuple[list[Measurement], dict[str, tuple[str, str, str]]]] = {
    "a curve": (
        measured((1, "score", 0, 0.2), (1, "score", 1, 0.9), (1, "score", 2, 0.5)),
        {"score": ("0.5", "0.2", "0.9")},
    ),
    "of the last attempt alone": (
        measured((1, "score", 0, 9.0), (2, "score", 0, 0.5)),
        {"score": ("0.5", "0.5", "0.5")},
    ),
    "others beside it": (
        measured((1, "score", 0, 0.5), (1, "loss", 0, 2.0), (1, "other", 0, 1.0)),
        {"score": ("0.5", "0.5", "0.5"), "loss": ("2", "2", "2")},
    ),
    "nan is neither least nor greatest": (
        measured((1, "score", 0, 0.5), (1, "score", 1, NAN)),
        {"score": ("nan", "0.5", "0.5")},
    ),
    "inf is neither least nor greatest": (
        measured((1, "score", 0, 0.5), (1, "score", 1, math.inf), (1, "score", 2, 0.4)),
        {"score": ("0.4", "0.4", "0.5")},
    ),
    "without the objective": (measured((1, "loss", 0, 2.0)), {}),
}


@pytest.mark.parametrize("what", OBSERVED)
def test_an_observation_is_whole_or_absent(what: str) -> None:
    given, expected = OBSERVED[what]
    found = observation(trial(TrialState.SUCCEEDED), given, ["score", "loss"])
    rows = {
        each["name"]: (each["latest"], each["min"], each["max"])
        for each in found.get("metrics", ())
    }
    assert rows == expected


def test_a_trial_that_has_ended_says_why_and_does_not_run() -> None:
    failed = trial(TrialState.FAILED, reason="exit code 1", end_time=LATER)
    before = trial_status(trial(), TrialClass.RUNNING, NOW, {}, {}, NOW)
    status = trial_status(failed, TrialClass.FAILED, NOW, {}, before, LATER)
    assert [(each["type"], each["status"]) for each in status["conditions"]] == [
        ("Created", "True"),
        ("Running", "False"),
        ("Failed", "True"),
    ]
    assert status["conditions"][-1]["message"] == "Trial has failed. exit code 1"
    assert class_said(status) is TrialClass.FAILED


# A status that somebody has edited, and what is left of it.
EDITED: dict[str, tuple[Raw, Raw]] = {
    "whole": (
        {"conditions": [{"type": "Created"}], "tuner": {"revision": 2}},
        {"conditions": [{"type": "Created"}], "tuner": {"revision": 2}},
    ),
    "conditions that are none": ({"conditions": [3, {}, {"type": 3}]}, {"conditions": []}),
    "no list of conditions": ({"conditions": "Created"}, {"conditions": []}),
    "ours a text": ({"tuner": "x"}, {"tuner": {}}),
    "ours of other types": (
        {"tuner": {"revision": "2", "state": 3, "trials": [], "conditions": {}, "done": "1/2"}},
        {"tuner": {"conditions": [], "done": "1/2"}},
    ),
}


@pytest.mark.parametrize("what", EDITED)
def test_of_an_edited_status_the_sound_part_is_read(what: str) -> None:
    given, expected = EDITED[what]
    assert sound_status(given) == expected


def test_a_class_that_katib_does_not_have_is_none() -> None:
    assert class_said({"conditions": [{"type": "Done"}]}) is None
    assert class_said({}) is None
