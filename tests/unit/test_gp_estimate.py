"""What a Gaussian process says of noisy values: the best trial, the noise,
and a bound on what is left to gain.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from suggest.estimate import Estimate
from suggest.samplers.gp import GpSettings
from suggest.samplers.gp_model import GpModel
from suggest.samplers.gp_warp import scaled, unwarped, warped
from suggest.space import Choice, Float, Parameter, Space
from suggest.study import Algorithm, Direction, Objective, StudySpec
from suggest.trial import Trial, TrialState

SPACE = Space((Parameter("x", Float(0, 1)), Parameter("y", Float(0, 1))))
SPEC = StudySpec(SPACE, (Objective("loss", Direction.MINIMIZE),), Algorithm("random"))


def trials(
    count: int, value: Callable[[float, float], float], *, noise: float = 0.0, seed: int = 0
) -> list[Trial]:
    rng = random.Random(seed)
    points = [{"x": rng.random(), "y": rng.random()} for _ in range(count)]
    return [
        Trial(number, TrialState.SUCCEEDED, dict(point), value=value(**point) + rng.gauss(0, noise))
        for number, point in enumerate(points)
    ]


def bowl(x: float, y: float) -> float:
    return 3.0 + (x - 0.3) ** 2 + (y - 0.6) ** 2


def estimate(found: list[Trial], spec: StudySpec = SPEC) -> Estimate:
    given = GpModel(spec, 1, GpSettings()).estimate(found)
    assert given is not None
    return given


@pytest.mark.parametrize("log_delta", [-3.0, 0.0, 4.0])
@pytest.mark.parametrize("losses", [[1.0, 2.0, 5.0, 900.0], [-1e-9, 0.0, 1e-9], [1e12, 3e12, 4e12]])
def test_unwarped_is_the_inverse_of_warped(losses: list[float], log_delta: float) -> None:
    there = np.array(losses)
    u = scaled(there)
    inside = u < u.max()  # the largest may be clipped
    y, *_ = warped(u, log_delta)
    span = there.max() - there.min()
    assert unwarped(y, there, log_delta)[inside] == pytest.approx(there[inside], abs=1e-9 * span)


@pytest.mark.parametrize("seed", range(3))
def test_without_noise_the_best_trial_is_the_best_value(seed: int) -> None:
    found = trials(40, bowl, seed=seed)
    given = estimate(found)
    best = min(found, key=lambda t: t.value or 0.0)
    assert given.trial == best.number
    assert given.value == pytest.approx(best.value, abs=2e-3)
    assert given.low <= given.value <= given.high
    assert not given.is_noisy


def test_with_noise_the_estimates_are_better_than_the_best_values() -> None:
    by_value, by_estimate = [], []
    for seed in range(12):
        found = trials(60, bowl, noise=0.1, seed=seed)
        given = estimate(found)
        assert given.is_noisy
        assert 0.05 < given.noise < 0.2
        lucky = min(found, key=lambda t: t.value or 0.0)
        by_value.append(bowl(**lucky.parameters))  # type: ignore[arg-type]  # floats
        by_estimate.append(bowl(**found[given.trial].parameters))  # type: ignore[arg-type]
    assert np.mean(by_estimate) < np.mean(by_value)


def test_the_bound_on_the_regret_holds_and_falls() -> None:
    bounds = []
    for count in (12, 30, 100):
        found = trials(count, bowl)
        given = estimate(found)
        regret = bowl(**found[given.trial].parameters) - 3.0  # type: ignore[arg-type]
        assert given.regret_bound >= regret - 1e-9
        bounds.append(given.regret_bound)
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 0.05


def test_maximizing_is_minimizing_with_the_other_sign() -> None:
    found = trials(30, bowl)
    up = replace(SPEC, objectives=(Objective("score", Direction.MAXIMIZE),))
    given, other = (
        estimate(found),
        estimate([replace(t, value=-(t.value or 0.0)) for t in found], up),
    )
    assert (other.trial, other.value, other.low, other.high) == (
        given.trial,
        -given.value,
        -given.high,
        -given.low,
    )
    assert (other.noise, other.regret_bound) == (given.noise, given.regret_bound)


def test_the_same_trials_give_the_same_estimate() -> None:
    found = trials(40, bowl, noise=0.1)
    assert estimate(found) == estimate(found)


def test_pruned_and_failed_trials_are_not_the_best() -> None:
    found = trials(30, bowl)
    best = min(found, key=lambda t: t.value or 0.0)
    for state in (TrialState.PRUNED, TrialState.FAILED, TrialState.INFEASIBLE):
        value = best.value if state is TrialState.PRUNED else None
        changed = [replace(t, state=state, value=value) if t is best else t for t in found]
        assert estimate(changed).trial != best.number


@pytest.mark.parametrize("value", [0.0, 1.0, 1e300, -1e300])
def test_equal_values_leave_nothing_to_gain(value: float) -> None:
    given = estimate(trials(20, lambda x, y: value))
    assert (given.value, given.noise, given.regret_bound) == (value, 0.0, 0.0)


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e12, 1e300])
def test_values_of_any_size_have_a_finite_estimate_or_none(scale: float) -> None:
    given = GpModel(SPEC, 1, GpSettings()).estimate(trials(20, lambda x, y: scale * bowl(x, y)))
    if given is not None:
        assert all(
            map(
                math.isfinite, (given.value, given.low, given.high, given.noise, given.regret_bound)
            )
        )


def test_too_few_values_or_no_axis_have_no_estimate() -> None:
    assert GpModel(SPEC, 1, GpSettings()).estimate(trials(9, bowl)) is None
    only = replace(SPEC, space=Space((Parameter("x", Choice(("a",))),)))
    same = [
        Trial(number, TrialState.SUCCEEDED, {"x": "a"}, value=float(number)) for number in range(20)
    ]
    assert GpModel(only, 1, GpSettings()).estimate(same) is None
