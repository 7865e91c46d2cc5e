"""`tuner report` as text and as JSON."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product

from controller.core.model import Attempt, AttemptState
from controller.report import ranking
from controller.report.record import ExperimentRecord, TrialRecord
from suggest.space import Choice, Float, Parameter, Space
from suggest.study import Importance
from suggest.trial import REUSED, Trial, TrialState
from tests.unit.builders import an_objective
from tests.unit.test_report import NOW, SPEC, experiment

GRID = Space(
    (
        Parameter("momentum", Choice((0.9, 0.99))),
        Parameter("norm", Choice((True,))),
        Parameter("batch", Choice((128, 512))),
    )
)


def ran(
    number: int, state: TrialState, value: float | None, seconds: float, **parameters: float
) -> TrialRecord:
    end = AttemptState(state.value)
    attempt = Attempt(number, 1, end, start_time=NOW, end_time=NOW + timedelta(seconds=seconds))
    return TrialRecord(Trial(number, state, {"norm": True, **parameters}, value=value), (attempt,))


def record(*trials: TrialRecord, space: Space = GRID, maximize: bool = True) -> ExperimentRecord:
    spec = replace(SPEC, space=space, objective=an_objective(maximize=maximize))
    return ranking.ranked(ExperimentRecord(replace(experiment(), spec=spec), trials=trials))


def sweep() -> list[TrialRecord]:
    values = ((0.93, 118), (0.94, 75), (0.83, 118), (0.88, 75.25))
    points = product((0.9, 0.99), (128, 512))
    return [
        ran(i, TrialState.SUCCEEDED, value, seconds, momentum=m, batch=b)
        for i, ((value, seconds), (m, b)) in enumerate(zip(values, points, strict=True))
    ]


def test_a_sweep_is_shown_sorted_as_a_grid_and_by_parameter() -> None:
    assert ranking.text(record(*sweep()), limit=20) == (
        """digits: 4 succeeded; accuracy, the higher the better

TRIAL  STATE      VALUE  SECONDS  momentum  norm  batch
1      succeeded  0.94   75.0     0.9       true  512
0      succeeded  0.93   118.0    0.9       true  128
3      succeeded  0.88   75.2     0.99      true  512
2      succeeded  0.83   118.0    0.99      true  128

momentum  batch=128     batch=512
0.9       0.93 (118 s)  0.94 (75 s)
0.99      0.83 (118 s)  0.88 (75 s)

What each parameter does to accuracy:

PARAMETER  LEVEL  TRIALS  MEAN   MEDIAN  BEST  STEP   PAIRS  RANGE
momentum   0.9    2       0.935  0.935   0.94
           0.99   2       0.855  0.855   0.88  -0.08  2      -0.1 to -0.06
batch      128    2       0.88   0.88    0.93
           512    2       0.91   0.91    0.94  +0.03  2      +0.01 to +0.05

STEP: from the parameter's first level to this one, the mean difference over PAIRS of points that
are equal otherwise, and the RANGE of these differences.
"""
    )


def test_a_grid_has_one_row_for_a_step_that_an_earlier_version_wrote_above_max() -> None:
    space = Space(
        (Parameter("lr", Float(-1.0, 0.1, step=1.1 / 3)), Parameter("batch", Choice((128, 512))))
    )
    points = product((-1.0, 0.1), (128, 512))
    trials = [
        ran(i, TrialState.SUCCEEDED, 0.5, 1, lr=lr, batch=batch)
        for i, (lr, batch) in enumerate(points)
    ]
    trials[-1] = ran(3, TrialState.SUCCEEDED, 0.75, 1, lr=0.1000000000000001, batch=512)
    assert "\n0.1  0.5 (1 s)  0.75 (1 s)\n" in ranking.text(record(*trials, space=space), limit=20)


def test_pruned_and_failed_trials_are_counted_and_not_averaged() -> None:
    trials = sweep()
    trials[2] = ran(2, TrialState.PRUNED, 0.5, 20, momentum=0.99, batch=128)
    trials[3] = ran(3, TrialState.FAILED, None, 1, momentum=0.99, batch=512)
    text = ranking.text(record(*trials), limit=20)
    assert "digits: 2 succeeded, 1 pruned, 1 failed;" in text
    assert "\n0.99      pruned        failed\n" in text
    lost = next(line for line in text.splitlines() if line.endswith("1 pruned, 1 failed"))
    assert lost.split() == ["0.99", "0", "1", "pruned,", "1", "failed"]
    assert "the level looks\nbetter than it is" in text


def test_the_order_is_best_first_then_pruned_then_the_rest() -> None:
    def order(maximize: bool) -> list[int]:
        states = [
            TrialState.FAILED,
            TrialState.SUCCEEDED,
            TrialState.PRUNED,
            TrialState.SUCCEEDED,
            TrialState.PRUNED,
            TrialState.INFEASIBLE,
        ]
        values = [None, 0.2, 0.1, 0.3, None, None]
        trials = [
            ran(i, s, v, 1, momentum=0.9, batch=128)
            for i, (s, v) in enumerate(zip(states, values, strict=True))
        ]
        return [one.trial.number for one in record(*trials, maximize=maximize).trials]

    assert (order(maximize=True), order(maximize=False)) == ([3, 1, 2, 4, 5, 0], [1, 3, 2, 4, 5, 0])


def test_trials_of_every_state_are_ranked() -> None:
    trials = [TrialRecord(Trial(i, state, {}), ()) for i, state in enumerate(TrialState)]
    assert {one.trial.state for one in record(*trials).trials} == set(TrialState)


def test_a_long_list_is_cut_and_says_so() -> None:
    space = Space((Parameter("lr", Float(0, 1)),))
    trials = [ran(i, TrialState.SUCCEEDED, i / 100, 1, lr=i / 100) for i in range(30)]
    lines = ranking.text(record(*trials, space=space), limit=20).splitlines()
    assert lines[3].split() == ["29", "succeeded", "0.29", "1.0", "0.29"]
    assert lines[23] == "and 10 more: --all"
    assert lines[-1] == "Spearman's rank correlation with accuracy: lr +1.00"
    assert [line[11:].split("  ")[0] for line in lines[-6:-2]] == [
        "0 to 0.06",
        "0.07 to 0.14",
        "0.15 to 0.21",
        "0.22 to 0.29",
    ]
    assert "more: --all" not in ranking.text(record(*trials, space=space), limit=None)
    narrow = ranking.text(record(*trials, space=space), limit=20, crop=lambda table: table[:9])
    assert narrow.startswith(f"{lines[0]}\n\n{lines[2][:9]}"), "the headline is no table"


def test_an_empty_report_is_one_line() -> None:
    assert (
        ranking.text(record(), limit=20)
        == "digits: no trials yet; accuracy, the higher the better\n"
    )
    failed = ranking.text(
        record(ran(0, TrialState.FAILED, None, 1, momentum=0.9, batch=128)), limit=20
    )
    assert "What each parameter does" not in failed


def test_a_value_that_was_taken_over_is_listed_and_has_no_effect() -> None:
    taken = Trial(
        4, TrialState.SUCCEEDED, sweep()[0].trial.parameters, value=0.93, labels={REUSED: "0"}
    )
    with_it, without = record(*sweep(), TrialRecord(taken)), record(*sweep())
    assert ranking.effects_of(with_it) == ranking.effects_of(without)
    assert len(with_it.trials) == 5


def test_a_sweep_is_exported_as_json() -> None:
    trials = sweep()
    trials[3] = ran(3, TrialState.PRUNED, 0.5, 20, momentum=0.99, batch=512)
    told = ranking.document(record(*trials))
    assert {key: told[key] for key in ("name", "namespace", "metric", "direction")} == {
        "name": "digits",
        "namespace": "default",
        "metric": "accuracy",
        "direction": "maximize",
    }
    assert told["trials"][3] == {
        "number": 3,
        "state": "pruned",
        "value": 0.5,
        "seconds": 20.0,
        "parameters": {"norm": True, "momentum": 0.99, "batch": 512},
    }
    (momentum, _) = told["effects"]
    assert momentum["parameter"] == "momentum"
    assert momentum["levels"][1] == {
        "value": 0.99,
        "trials": 1,
        "mean": 0.83,
        "median": 0.83,
        "best": 0.83,
        "leftOut": {"pruned": 1},
    }
    (step,) = momentum["steps"]
    assert (step["from"], step["to"], step["pairs"]) == (0.9, 0.99, 1)


def test_parameters_are_ranked_by_importance_with_its_deviation() -> None:
    found = [
        Importance("batch", 64, 0.7512, 0.101),
        Importance("momentum", 9),
        Importance("seed", 64),
    ]
    ranked = replace(record(*sweep()), importances=found)
    text = ranking.text(ranked, limit=20)
    assert (
        """How much each parameter matters for a good accuracy, as shares of 1 with their standard deviations:

PARAMETER  IMPORTANCE         TRIALS
batch      0.75 ± 0.10        64
momentum   not enough trials  9
seed       one value only     64

An importance below twice its deviation may be due to chance (PED-ANOVA, on resampled trials).
"""
        in text
    )
    rows = [
        line.split()[0]
        for line in text.partition("What each")[2].splitlines()
        if line[:1].isalpha()
    ]
    assert rows[:3] == ["PARAMETER", "batch", "momentum"]
    told = ranking.document(ranked)
    assert told["importances"] == [
        {"parameter": "batch", "trials": 64, "value": 0.7512, "spread": 0.101},
        {"parameter": "momentum", "trials": 9},
        {"parameter": "seed", "trials": 64},
    ]
    assert [each["parameter"] for each in told["effects"]] == ["batch", "momentum"]


def test_few_trials_rank_no_parameter() -> None:
    """Single trials of the first parameter differ more than the means of the second,
    which has no significance.
    """
    space = Space((Parameter("x", Float(0.0, 1.0)), Parameter("y", Choice(("a", "b")))))
    found = [Importance("x", 4), Importance("y", 4)]
    trials = [
        TrialRecord(Trial(n, TrialState.SUCCEEDED, {"x": n / 4, "y": "ab"[n % 2]}, value=value))
        for n, value in enumerate((0.1, 0.9, 0.2, 0.8))
    ]
    text = ranking.text(replace(record(*trials, space=space), importances=found), limit=20)
    assert (
        "\nNot enough trials to rank the parameters: 4 succeeded or pruned, 10 are needed.\n"
        in text
    )
    assert "IMPORTANCE" not in text
