"""The expected hypervolume improvement, beside sampling, exact volumes and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from suggest import pareto
from suggest.samplers.gp_hypervolume import MOST_IN_FRONT, cells, log_hypervolume_improvement
from suggest.samplers.normal import Floats


def losses(count: int, objectives: int, seed: int = 0) -> Floats:
    """Near a quarter of a sphere, so that most of them are of the front."""
    directions = np.random.default_rng(seed).random((count, objectives))
    return 1.0 - 0.8 * directions / np.linalg.norm(directions, axis=1, keepdims=True)


def gain(known: Floats, reference: Floats, point: Floats) -> float:
    before = pareto.hypervolume(known.tolist(), reference.tolist())
    return pareto.hypervolume([*known.tolist(), point.tolist()], reference.tolist()) - before


@pytest.mark.parametrize("objectives", [2, 3])
def test_without_uncertainty_the_expected_improvement_is_the_gain_in_hypervolume(
    objectives: int,
) -> None:
    known = losses(12, objectives)
    found = cells(known)
    reference = np.array([bound[-1] for bound in found.bounds])
    points = losses(20, objectives, seed=1) - 0.05
    value, _, _ = log_hypervolume_improvement(found, points, np.full(points.shape, 1e-9))
    gains = [gain(known, reference, point) for point in points]
    assert np.exp(value) == pytest.approx(gains, abs=1e-7)
    assert max(gains) > 0.01


@pytest.mark.parametrize("objectives", [2, 3])
def test_the_expected_improvement_is_the_mean_over_samples(objectives: int) -> None:
    known = losses(6, objectives)
    found = cells(known)
    reference = np.array([bound[-1] for bound in found.bounds])
    mean, deviation = np.full((1, objectives), 0.4), np.array([[0.3, 0.1, 0.2][:objectives]])
    value, _, _ = log_hypervolume_improvement(found, mean, deviation)
    draws = mean + deviation * np.random.default_rng(2).standard_normal((4000, objectives))
    sampled = [gain(known, reference, draw) for draw in draws]
    assert math.exp(value[0]) == pytest.approx(
        np.mean(sampled), abs=4 * np.std(sampled) / math.sqrt(len(draws))
    )


@pytest.mark.parametrize("objectives", [2, 3])
def test_its_gradient_equals_finite_differences_far_away_too(objectives: int) -> None:
    found = cells(losses(8, objectives))
    means, deviations = losses(9, objectives, seed=3), 0.05 + 0.3 * losses(9, objectives, seed=4)
    means[-1] += 20.0
    value, by_mean, by_deviation = log_hypervolume_improvement(found, means, deviations)
    assert np.isfinite(value).all()
    for k in range(objectives):
        step = 1e-6 * np.eye(objectives)[k]
        up = log_hypervolume_improvement(found, means + step, deviations)[0]
        down = log_hypervolume_improvement(found, means - step, deviations)[0]
        assert by_mean[:, k] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-4)
        up = log_hypervolume_improvement(found, means, deviations + step)[0]
        down = log_hypervolume_improvement(found, means, deviations - step)[0]
        assert by_deviation[:, k] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("objectives", [2, 3])
def test_a_large_front_is_thinned(objectives: int) -> None:
    found = cells(losses(300, objectives))
    assert len(found.front) == MOST_IN_FRONT[objectives]


@pytest.mark.parametrize("known", [[[1.0, 2.0]], [[1.0, 2.0]] * 3, [[0.0, 0.0], [0.0, 1.0]]])
def test_a_front_of_one_point_leaves_something_to_improve(known: list[list[float]]) -> None:
    found = cells(np.array(known))
    value, _, _ = log_hypervolume_improvement(found, np.array(known[:1]), np.full((1, 2), 0.1))
    assert len(found.front) == 1
    assert np.isfinite(value).all()
