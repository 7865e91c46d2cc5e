"""What a search learns from the Trials of a real Katib."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller.app.katib_trials import KatibTrialEnd, KatibTrials, end_of
from suggest.space import Choice, Float, Int, Parameter, Space
from suggest.trial import Measurement, Outcome, TrialState
from tests.unit.builders import a_spec

Raw = dict[str, Any]
UID = "experiment-1"
SPACE = Space(
    (
        Parameter("lr", Float(0.0, 1.0)),
        Parameter("n", Int(1, 9)),
        Parameter("c", Choice(("3", "x"))),
    )
)
SPEC = replace(a_spec(), space=SPACE)
ASSIGNED = {"lr": "0.25", "n": "4", "c": "3"}


def trial(
    *ends: str, name: str = "t-1", metrics: list[Raw] | None = None, owner: str = UID, **spec: Any
) -> Raw:
    """Return a Trial with these conditions, which are true."""
    objective = {"type": "maximize", "objectiveMetricName": "accuracy", **spec}
    assigned = [{"name": key, "value": value} for key, value in ASSIGNED.items()]
    conditions = [{"type": each, "status": "True", "message": f"{each}!"} for each in ends]
    return {
        "metadata": {"name": name, "ownerReferences": [{"uid": owner}]},
        "spec": {"objective": objective, "parameterAssignments": assigned},
        "status": {
            "conditions": conditions,
            **({} if metrics is None else {"observation": {"metrics": metrics}}),
        },
    }


def metric(name: str = "accuracy", *, least: str = "1", most: str = "3", latest: str = "2") -> Raw:
    return {"name": name, "min": least, "max": most, "latest": latest}


def outcome(given: Raw) -> Outcome:
    (learned,) = KatibTrials.of([given], UID).source(SPEC, UID).trials
    return learned[1].outcome


@pytest.mark.parametrize(
    ("conditions", "end"),
    [
        ((), None),
        (("Created",), None),
        (("Created", "Running"), None),
        (("Created", "Succeeded"), KatibTrialEnd.SUCCEEDED),
        (("Created", "Failed"), KatibTrialEnd.FAILED),
        (("Created", "Killed"), KatibTrialEnd.KILLED),
        (("Created", "MetricsUnavailable"), KatibTrialEnd.METRICS_UNAVAILABLE),
        (("Created", "Running", "MetricsUnavailable"), None),
        (("Created", "Failed", "Succeeded"), KatibTrialEnd.FAILED),
        # Its observation comes later.
        (("Created", "EarlyStopped"), None),
    ],
)
def test_a_trial_has_ended_when_katib_counts_it_so(
    conditions: tuple[str, ...], end: KatibTrialEnd | None
) -> None:
    assert end_of(trial(*conditions)) is end


def test_one_that_was_stopped_early_has_ended_with_its_values() -> None:
    stopped = trial("EarlyStopped", metrics=[metric()])
    assert end_of(stopped) is KatibTrialEnd.EARLY_STOPPED
    assert outcome(stopped) == Outcome(TrialState.PRUNED, 3.0, "Katib has stopped it early")


@pytest.mark.parametrize(("strategy", "value"), [("min", 1.0), ("max", 3.0), ("latest", 2.0)])
def test_the_strategy_chooses_the_value(strategy: str, value: float) -> None:
    strategies = [{"name": "accuracy", "value": strategy}]
    given = trial("Succeeded", metrics=[metric()], metricStrategies=strategies)
    assert outcome(given) == Outcome(TrialState.SUCCEEDED, value)


def test_without_a_strategy_the_best_value_counts() -> None:
    assert outcome(trial("Succeeded", metrics=[metric()])).value == 3.0
    least = trial("Succeeded", metrics=[metric()], type="minimize")
    assert outcome(least).value == 1.0


@pytest.mark.parametrize("text", ["nan", "", "Genotype(normal=[])", "inf"])
def test_a_value_that_is_no_number_is_a_failure(text: str) -> None:
    given = trial("Succeeded", metrics=[metric(least=text, most=text, latest=text)])
    ended = outcome(given)
    assert (ended.state, ended.failure_class) == (TrialState.FAILED, "metricsMissing")


def test_the_latest_stands_in_for_what_katib_could_not_compare() -> None:
    given = trial("Succeeded", metrics=[metric(most="unavailable", latest="0.5")])
    assert outcome(given).value == 0.5


def test_a_failed_trial_says_what_katib_says() -> None:
    assert outcome(trial("Failed")) == Outcome(
        TrialState.FAILED, reason="Failed!", failure_class="userError"
    )


def test_texts_become_the_values_of_the_parameters() -> None:
    ((_, learned),) = KatibTrials.of([trial("Failed")], UID).source(SPEC, UID).trials
    assert learned.parameters == {"lr": 0.25, "n": 4, "c": "3"}


def test_values_over_time_and_other_metrics_are_measurements() -> None:
    given = trial("Succeeded", metrics=[metric(), metric("loss")])
    trials = KatibTrials.of([given], UID)
    ((_, learned),) = trials.source(SPEC, UID, {"t-1": [1.0, 3.0]}).trials
    assert learned.measurements == [
        Measurement(1, "loss", 1, 3.0),
        Measurement(1, "accuracy", 1, 1.0),
        Measurement(1, "accuracy", 2, 3.0),
    ]


def test_a_killed_trial_counts_and_teaches_nothing() -> None:
    trials = KatibTrials.of([trial("Killed"), trial("Running", name="t-2")], UID)
    assert trials.begun == 2
    source = trials.source(SPEC, UID)
    assert (source.trials, source.left_out) == ([], {"killed": 1})


def test_trials_of_an_earlier_experiment_of_the_name_are_left_out() -> None:
    assert KatibTrials.of([trial("Succeeded", owner="experiment-0")], UID).begun == 0


def test_a_parameter_that_cannot_be_read_refuses_its_trial_alone() -> None:
    broken = trial("Failed", name="t-2")
    broken["spec"]["parameterAssignments"][0]["value"] = "much"
    source = KatibTrials.of([trial("Failed"), broken], UID).source(SPEC, UID)
    assert [place for place, _ in source.trials] == ["t-1"]
    assert [problem.path for problem in source.refused] == ["t-2"]


def test_failed_and_unmeasured_trials_count_as_failures() -> None:
    ends = ("Failed", "MetricsUnavailable", "Succeeded", "Killed")
    found = [trial(each, name=each.lower(), metrics=[metric()]) for each in ends]
    assert KatibTrials.of(found, UID).failed == 2
