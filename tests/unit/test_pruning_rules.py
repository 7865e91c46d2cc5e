"""Each pruning rule on small histories; test_pruning has the median,
test_pruning_as_optuna the comparison.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest

from suggest.curves import Curve, TrialCurve
from suggest.pruners import Pruner, new_pruner
from suggest.pruners.auto import FEW
from suggest.pruners.hyperband import HyperbandPruner, HyperbandSettings
from suggest.space import Value
from suggest.study import Direction, Objective, Pruning
from suggest.trial import StopAdvice, TrialState
from tests.unit.pruning_histories import DrawnEvent, EngineReplay, a_study, learning_curve
from tests.unit.searches import MAXIMIZE, RUNNING, SUCCEEDED, accuracy

PRUNED, FAILED = TrialState.PRUNED, TrialState.FAILED
GO_ON = StopAdvice(False)


def a_pruner(
    name: str, settings: dict[str, Value] | None = None, direction: Direction = MAXIMIZE
) -> Pruner:
    return new_pruner(Pruning(name, settings or {}), Objective("accuracy", direction))


def seen(
    number: int, values: Iterable[float], state: TrialState = SUCCEEDED, *, first: int = 1
) -> TrialCurve:
    """A trial whose steps increase by one from `first`."""
    points = list(enumerate(values, first))
    return TrialCurve(number, state, Curve(points), points[-1][1] if state is SUCCEEDED else None)


def told(
    pruner: Pruner, others: Iterable[TrialCurve], own: TrialCurve, *, before: int | None = None
) -> StopAdvice:
    for other in others:
        pruner.put(other)
    pruner.put(own)
    return pruner.judge(own, before=before)


FOUR = [
    seen(n, [value] * 16, state)
    for n, (value, state) in enumerate(
        [(0.2, SUCCEEDED), (0.4, PRUNED), (0.6, RUNNING), (0.8, SUCCEEDED)]
    )
]


@pytest.mark.parametrize(
    ("name", "settings", "others", "own", "reason"),
    [
        (
            "percentile",
            {"percentile": 25, "minTrials": 2},
            FOUR,
            [0.5, 0.6],
            "accuracy 0.6 at step 2 is below 0.65, the limit of the best 25 % of 2 trials",
        ),
        (
            "asha",
            {"eta": 2},
            FOUR,
            [0.5],
            "accuracy 0.5 at step 1 is below 0.6, the limit of the best 2 of 5 trials that "
            "reached step 1",
        ),
        (
            "asha",
            {},
            FOUR[:2],
            [0.1],
            "accuracy 0.1 at step 1 is below 0.4, the best of 3 trials that reached step 1",
        ),
        (
            "asha",
            {},
            FOUR,
            [math.nan],
            "accuracy is nan at step 1, where trials are judged at step 1",
        ),
        (
            "hyperband",
            {"maxSteps": 2},
            FOUR,
            [0.5],
            "accuracy 0.5 at step 1 is below 0.8, the best of 5 trials of bracket 1 of 1 that "
            "reached step 1",
        ),
        (
            "threshold",
            {"lower": 0.3},
            [],
            [0.5, 0.25],
            "accuracy 0.25 at step 2 is below the lower limit 0.3",
        ),
        (
            "threshold",
            {"upper": 1},
            [],
            [1.5, 0.5],
            "accuracy 1.5 at step 1 is above the upper limit 1",
        ),
        ("threshold", {}, [], [0.1, math.nan], "accuracy is nan at step 2"),
        (
            "patient",
            {"patience": 1},
            [],
            [0.5, 0.4, 0.3],
            "accuracy is at best 0.4 in the last 2 reports up to step 3 and was 0.5 before",
        ),
        (
            "patient",
            {"patience": 0, "rule": "median", "minTrials": 1},
            FOUR[3:],
            [0.5, 0.4],
            "accuracy is at best 0.4 in the last report up to step 2 and was 0.5 before, "
            "and accuracy (best so far) 0.5 at step 2 is below the median 0.8 of 1 trial",
        ),
        (
            "patient",
            {"patience": 0},
            [],
            [0.5, math.nan],
            "accuracy is nan in the last report up to step 2 and was 0.5 before",
        ),
    ],
)
def test_the_reason_says_what_was_compared(
    name: str, settings: dict[str, Value], others: list[TrialCurve], own: list[float], reason: str
) -> None:
    assert told(a_pruner(name, settings), others, seen(9, own, RUNNING)) == StopAdvice(True, reason)


@pytest.mark.parametrize(
    ("says", "name", "settings", "others", "own", "before"),
    [
        ("a tie with the limit", "asha", {"eta": 2}, FOUR, [0.6], None),
        ("a rung that was judged before", "asha", {"eta": 2}, FOUR, [0.1, 0.1, 0.1], 2),
        ("a rung ahead", "asha", {"minSteps": 3}, FOUR, [0.1, 0.1], None),
        ("too few at the rung", "asha", {"minTrials": 6}, FOUR, [0.1], None),
        ("nobody knows how many brackets there are", "hyperband", {}, FOUR[1:3], [0.1], None),
        ("the limits themselves", "threshold", {"lower": 0.5, "upper": 0.5}, [], [0.5], None),
        (
            "a value before the warm-up",
            "threshold",
            {"lower": 0.5, "warmupSteps": 2},
            [],
            [0.1, 0.6],
            None,
        ),
        ("within minDelta", "patient", {"patience": 0, "minDelta": 0.2}, [], [0.5, 0.4], None),
        (
            "the other rule does not agree",
            "patient",
            {"patience": 0, "rule": "asha"},
            FOUR[:1],
            [0.5, 0.4],
            None,
        ),
        ("no better before", "patient", {"patience": 0}, [], [math.nan, 0.4], None),
        ("nobody has succeeded", "auto", {}, FOUR[1:3], [0.1] * 9, None),
        (
            "the warm-up is a fifteenth",
            "auto",
            {},
            [seen(n, [0.9] * 50) for n in range(30)],
            [0.1] * 3,
            None,
        ),
    ],
)
def test_the_trial_continues_in_these_cases(
    says: str,
    name: str,
    settings: dict[str, Value],
    others: list[TrialCurve],
    own: list[float],
    before: int | None,
) -> None:
    assert told(a_pruner(name, settings), others, seen(9, own, RUNNING), before=before) == GO_ON, (
        says
    )


def test_a_rung_that_was_skipped_is_judged_with_the_next_report() -> None:
    pruner = a_pruner("asha", {"eta": 2})
    own = TrialCurve(9, RUNNING, Curve([(1, 0.9), (7, 0.1)]))
    advice = told(pruner, FOUR, own, before=1)
    assert advice.reason == (
        "accuracy 0.1 at step 7 is below 0.6, the limit of the best 2 of 5 trials that reached "
        "step 2"
    )


@pytest.mark.parametrize("name", ["asha", "hyperband", "auto"])
def test_a_trial_that_failed_counts_for_nothing(name: str) -> None:
    settings: dict[str, Value] = {} if name != "hyperband" else {"maxSteps": 2}
    pruner = a_pruner(name, settings)
    pruner.put(seen(0, [0.5] * 3))
    pruner.put(seen(1, [0.9] * 3, RUNNING))
    own = seen(2, [0.7], RUNNING)
    pruner.put(own)
    if name != "auto":
        assert pruner.judge(own, before=None).should_stop
    pruner.put(seen(1, [0.9] * 3, FAILED))
    assert pruner.judge(own, before=None) == GO_ON


@pytest.mark.parametrize("name", ["asha", "hyperband", "optuna:successive-halving"])
def test_only_the_newest_attempt_counts(name: str) -> None:
    settings: dict[str, dict[str, Value]] = {
        "hyperband": {"maxSteps": 2},
        "optuna:successive-halving": {"minResource": 1},
    }
    replay = EngineReplay(a_study(name, settings.get(name, {})))
    replay.apply(DrawnEvent(0, tuple(accuracy(0.9, 0.9, first=1))))
    replay.apply(DrawnEvent(0, tuple(accuracy(0.3, 0.3, 0.3, first=1, attempt=2))))
    assert replay.apply(DrawnEvent(1, tuple(accuracy(0.5, first=1)))) == GO_ON


def test_a_bracket_starts_at_its_rung_and_has_its_share_of_trials() -> None:
    pruner = HyperbandPruner(Objective("accuracy", MAXIMIZE), HyperbandSettings(max_steps=9))
    brackets = Counter(pruner._bracket(number) for number in range(3000))
    # Li et al. 2018, table 1 for R = 9 and eta = 3: 9, 5 and 3 trials.
    assert [round(17 * brackets[k] / 3000) for k in range(3)] == [9, 5, 3]
    for bracket, rung in enumerate((1, 3, 9)):
        first, second, *_ = (number for number in range(99) if pruner._bracket(number) == bracket)
        pruner.put(seen(first, [0.9] * 9))
        stops = [
            step
            for step in range(1, 10)
            if told(pruner, [], seen(second, [0.1] * step, RUNNING), before=step - 1).should_stop
        ]
        assert stops[0] == rung


def test_hyperband_learns_the_length_of_trials_in_any_order() -> None:
    draw = Random(4)
    others = [
        seen(n, learning_curve(draw, steps)) for n, steps in enumerate([4, 30, 9, 30, 2, 27] * 5)
    ]
    own = [seen(100 + n, learning_curve(draw, 9), RUNNING) for n in range(20)]
    expected = [told(a_pruner("hyperband"), others, each) for each in own]
    assert any(advice.should_stop for advice in expected)
    for _ in range(5):
        draw.shuffle(others)
        assert [told(a_pruner("hyperband"), others, each) for each in own] == expected


def test_auto_asks_the_median_first_and_asha_later() -> None:
    few = [seen(n, [0.5 + n / 100] * 20) for n in range(FEW - 1)]
    own = seen(99, [0.1, 0.1], RUNNING)
    assert "the median" in told(a_pruner("auto"), few, own).reason
    assert (
        "trials that reached step 2"
        in told(a_pruner("auto"), [*few, seen(50, [0.1] * 2, PRUNED)], own).reason
    )


def test_auto_waits_for_its_warmup_steps() -> None:
    pruner = a_pruner("auto", {"warmupSteps": 5})
    others = [seen(n, [0.9] * 8) for n in range(30)]
    assert told(pruner, others, seen(99, [0.1] * 4, RUNNING)) == GO_ON
    assert told(pruner, [], seen(99, [0.1] * 5, RUNNING), before=4).should_stop
