"""The effect of each parameter, compared with figures computed by hand."""

from __future__ import annotations

import math
from itertools import product

import pytest

from controller.report.effects import Effect, ParameterLevel, Step, effects, spearman
from suggest.space import Choice, Condition, Float, Int, Parameter, Space, Value
from suggest.study import Direction
from suggest.trial import Trial, TrialState

GRID = Space(
    (
        Parameter("lr", Float(0.4, 0.6, points=2)),
        Parameter("momentum", Choice((0.9, 0.99))),
        Parameter("norm", Choice((True,))),
    )
)


def won(number: int, value: float, **parameters: Value) -> Trial:
    return Trial(number, TrialState.SUCCEEDED, parameters, value=value)


def whole_grid() -> list[Trial]:
    values = (0.94, 0.86, 0.92, 0.80)
    points = product((0.4, 0.6), (0.9, 0.99))
    return [
        won(i, v, lr=lr, momentum=m, norm=True)
        for i, (v, (lr, m)) in enumerate(zip(values, points, strict=True))
    ]


def close(effect: Effect) -> list[object]:
    """Compare figures to nine digits."""
    levels = [
        (each.low, each.trials, round(each.mean or 0, 9), round(each.median or 0, 9), each.best)
        for each in effect.levels
    ]
    steps = [
        (s.level, s.pairs, round(s.mean, 9), round(s.lowest, 9), round(s.highest, 9))
        for s in effect.steps
    ]
    return [effect.name, round(effect.spread, 9), levels, steps]


def test_a_whole_grid_has_levels_and_paired_steps_in_the_order_of_the_space() -> None:
    assert [close(each) for each in effects(GRID, whole_grid(), direction=Direction.MAXIMIZE)] == [
        [
            "lr",
            0.04,
            [(0.4, 2, 0.9, 0.9, 0.94), (0.6, 2, 0.86, 0.86, 0.92)],
            [(0.6, 2, -0.04, -0.06, -0.02)],
        ],
        [
            "momentum",
            0.1,
            [(0.9, 2, 0.93, 0.93, 0.94), (0.99, 2, 0.83, 0.83, 0.86)],
            [(0.99, 2, -0.1, -0.12, -0.08)],
        ],
    ]


def test_smaller_is_better_changes_the_best_and_nothing_else() -> None:
    (_, momentum) = effects(GRID, whole_grid(), direction=Direction.MINIMIZE)
    assert [level.best for level in momentum.levels] == [0.92, 0.8]
    assert momentum.spread == pytest.approx(0.1)


def test_trials_that_did_not_succeed_are_counted_and_not_averaged() -> None:
    trials = whole_grid()
    trials[1] = Trial(1, TrialState.PRUNED, trials[1].parameters, value=0.1)
    trials[3] = Trial(3, TrialState.FAILED, trials[3].parameters)
    trials.append(Trial(4, TrialState.RUNNING, trials[0].parameters, value=0.5))
    momentum, lr = sorted(
        effects(GRID, trials, direction=Direction.MAXIMIZE),
        key=lambda effect: effect.name,
        reverse=True,
    )
    left_out = {TrialState.PRUNED: 1, TrialState.FAILED: 1}
    assert momentum.levels[1] == ParameterLevel(0.99, 0.99, 0, None, None, None, left_out)
    assert (momentum.spread, momentum.steps) == (0.0, [])
    assert lr.steps == [Step(0.6, 1, *[pytest.approx(-0.02)] * 3)]


def test_a_point_that_ran_twice_counts_once_in_a_step() -> None:
    again = [*whole_grid(), won(4, 0.90, lr=0.4, momentum=0.9, norm=True)]
    lr = next(
        each for each in effects(GRID, again, direction=Direction.MAXIMIZE) if each.name == "lr"
    )
    # At momentum .9: .92 - (.94 + .90) / 2 = 0; at .99: .80 - .86.
    assert lr.steps == [
        Step(0.6, 2, pytest.approx(-0.03), pytest.approx(-0.06), pytest.approx(0.0))
    ]


def test_a_step_that_an_earlier_version_wrote_above_max_is_the_same_level() -> None:
    space = Space((Parameter("x", Float(-1.0, 0.1, step=1.1 / 3)),))
    trials = [won(0, 1.0, x=-1.0), won(1, 2.0, x=0.1000000000000001), won(2, 4.0, x=0.1)]
    assert [close(each) for each in effects(space, trials, direction=Direction.MAXIMIZE)] == [
        ["x", 2, [(-1.0, 1, 1, 1, 1), (0.1, 2, 3, 3, 4)], [(0.1, 1, 2, 2, 2)]]
    ]


def test_a_parameter_is_compared_where_it_is_active() -> None:
    space = Space(
        (
            Parameter("kind", Choice(("sgd", "adam"))),
            Parameter("momentum", Choice((0, 0.9)), (Condition("kind", ("sgd",)),)),
        )
    )
    trials = [
        won(0, 1.0, kind="sgd", momentum=0),
        won(1, 3.0, kind="sgd", momentum=0.9),
        won(2, 7.0, kind="adam"),
    ]
    assert [close(each) for each in effects(space, trials, direction=Direction.MAXIMIZE)] == [
        # no pair differs in this parameter only
        ["kind", 5, [("sgd", 2, 2, 2, 3), ("adam", 1, 7, 7, 7)], []],
        ["momentum", 2, [(0, 1, 1, 1, 1), (0.9, 1, 3, 3, 3)], [(0.9, 1, 2, 2, 2)]],
    ]


def test_many_numbers_are_shown_in_four_bins_with_a_rank_correlation() -> None:
    space = Space((Parameter("lr", Float(0, 1)),))
    trials = [won(i, -abs(i - 7) / 10, lr=i / 16) for i in range(16)]
    (lr,) = effects(space, trials, direction=Direction.MAXIMIZE)
    bins = [
        (each.low * 16, each.high * 16, each.trials, round(each.mean or 0, 3)) for each in lr.levels
    ]  # type: ignore[operator]
    assert bins == [(0, 3, 4, -0.55), (4, 7, 4, -0.15), (8, 11, 4, -0.25), (12, 15, 4, -0.65)]
    assert lr.steps == ()
    assert lr.rank_correlation == pytest.approx(-0.177, abs=5e-4)


def test_equal_numbers_stay_in_one_bin() -> None:
    space = Space((Parameter("width", Int(1, 100)),))
    widths = [1] * 30 + list(range(2, 12))
    (width,) = effects(
        space,
        [won(i, float(w), width=w) for i, w in enumerate(widths)],
        direction=Direction.MAXIMIZE,
    )
    assert [(each.low, each.high, each.trials) for each in width.levels] == [
        (1, 1, 30),
        (2, 11, 10),
    ]


@pytest.mark.parametrize(
    ("points", "rho"),
    [
        ([(1, 10), (2, 20), (3, 30)], 1.0),
        ([(1, 3), (2, 2), (3, 1)], -1.0),
        # Ranks 0 1 2 3 and .5 .5 2 3: by hand 4.5 / sqrt(5 * 4.5).
        ([(1, 5), (2, 5), (3, 6), (4, 7)], 4.5 / math.sqrt(5 * 4.5)),
        ([(1, 5), (2, 5)], None),
        ([(1, 5)], None),
    ],
)
def test_the_rank_correlation_is_spearmans(
    points: list[tuple[float, float]], rho: float | None
) -> None:
    found = spearman(points)
    assert found == (None if rho is None else pytest.approx(rho))


@pytest.mark.parametrize("values", [[1.7e308] * 4, [1.7e308, -1.7e308, 1.7e308, -1.7e308]])
def test_values_whose_sum_is_no_double_have_effects(values: list[float]) -> None:
    trials = [won(k, value, x=x) for k, (x, value) in enumerate(zip("abab", values, strict=True))]
    space = Space((Parameter("x", Choice(("a", "b"))),))
    (effect,) = effects(space, trials, direction=Direction.MINIMIZE)
    assert [level.mean for level in effect.levels] == [pytest.approx(value) for value in values[:2]]
