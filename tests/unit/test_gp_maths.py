"""The arithmetic of the Gaussian process, beside finite differences,
dense algebra and more digits.
"""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal, getcontext

import numpy as np
import pytest

from suggest.samplers.gp_acquisition import ExpectedImprovement
from suggest.samplers.gp_process import (
    JITTER,
    Hyperparameters,
    Likelihood,
    Posterior,
    fit,
    matern,
    triangular_inverse,
)
from suggest.samplers.gp_space import Features, Places
from suggest.samplers.gp_warp import CLIP, FARTHEST, balanced, plateau, scaled, unwarped, warped
from suggest.samplers.minimize import minimize
from suggest.samplers.normal import Floats, Indexes, log_chance, log_improvement
from suggest.space import Choice, Condition, Float, Int, Parameter, Scale, Space

SPACE = Space(
    (
        Parameter("kind", Choice(("a", "b", "c"))),
        Parameter("x", Float(1e-3, 1, Scale.LOG)),
        Parameter("k", Int(1, 9)),
        Parameter("only_a", Float(-1, 1), (Condition("kind", ("a",)),)),
        Parameter("not_b", Int(1, 1000), (Condition("kind", ("a", "c")),)),
    )
)
PLACES = Places(SPACE)


def rows(count: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    return PLACES.completed(
        PLACES.uniform(rng.random((count, PLACES.size))), rng.random((count, PLACES.size))
    )


def losses(count: int) -> Floats:
    return np.random.default_rng(1).gamma(1.0, size=count)


def differences(function: object, at: Floats, step: float) -> Floats:
    assert callable(function)
    return np.array(
        [(function(at + e) - function(at - e)) / (2 * step) for e in step * np.eye(len(at))]
    )


# Features


def test_what_is_inactive_is_equally_far_from_every_active_value() -> None:
    some = np.array(
        [[0, 0.5, 0.5, place, 0.5] for place in (0.0, 0.3, 1.0)] + [[1, 0.5, 0.5, np.nan, 0.5]]
    )
    features = Features(PLACES, some)
    arc = features.of(some)[:, features.axis_of == 3]
    away = np.linalg.norm(arc[:3] - arc[3], axis=1)
    assert away == pytest.approx([away[0]] * 3)
    assert np.linalg.norm(arc[0] - arc[1]) < np.linalg.norm(arc[0] - arc[2])


def test_two_choices_are_as_far_from_each_other_as_any_two() -> None:
    three = rows(3)
    three[:, 0] = 0, 1, 2
    features = Features(PLACES, three)
    corners = features.of(three)[:, features.axis_of == 0]
    assert [
        np.linalg.norm(corners[a] - corners[b]) for a, b in ((0, 1), (0, 2), (1, 2))
    ] == pytest.approx([1, 1, 1])


def test_gradients_by_features_are_pulled_back_to_places() -> None:
    some = rows(6)
    features = Features(PLACES, some)
    weights = np.random.default_rng(2).standard_normal(len(features.axis_of))
    found = features.pullback(some, np.broadcast_to(weights, (6, len(weights))))
    for row, gradient in zip(some, found, strict=True):
        numeric = differences(lambda x: float(features.of(x[None])[0] @ weights), row, 1e-6)
        expected = np.where(np.isnan(row) | PLACES.choice, 0.0, numeric)
        assert gradient == pytest.approx(expected, abs=1e-7)


def test_rows_become_points_and_points_rows() -> None:
    for row in rows(50):
        point = PLACES.decoded(row, {})
        assert SPACE.point_problems(point, partial=False) == ()
        np.testing.assert_allclose(PLACES.encoded([point])[0], row, atol=1e-9)


# The process


@pytest.mark.parametrize("warp", [True, False])
def test_the_gradient_of_the_likelihood_is_that_of_finite_differences(warp: bool) -> None:
    some = rows(25)
    likelihood = Likelihood(Features(PLACES, some), some, losses(25), warp=warp)
    rng = np.random.default_rng(3)
    for _ in range(5):
        theta = np.concatenate([rng.normal(0, 1, PLACES.size), rng.normal([0, -4, 0, -2], 1)])
        _, gradient = likelihood.at(theta)
        assert gradient == pytest.approx(
            differences(lambda t: likelihood.at(t)[0], theta, 1e-5), rel=1e-4, abs=1e-4
        )


def test_many_narrow_minima_are_not_taken_for_noise() -> None:
    """Half of the points are near one minimum, as in a search that has found it."""
    rng = np.random.default_rng(0)
    anywhere = rng.random((50, 2))
    near = np.clip(0.4 + 0.01 * rng.standard_normal((50, 2)), 0.0, 1.0)
    some = np.concatenate([anywhere, near])
    waves = -np.cos(40.0 * (some - 0.4)).sum(axis=1)
    places = Places(Space(tuple(Parameter(name, Float(0, 1)) for name in "xy")))
    found = fit(Features(places, some), some, scaled(waves), warp=True)
    assert found.noise < 1e-4
    assert (found.weights**-0.5 < 0.15).all()


@pytest.mark.parametrize("condition", [1.0, 1000.0])
def test_a_quadratic_function_is_known_from_more_trials_than_coefficients(condition: float) -> None:
    """Six parameters have 28 coefficients; half of the points are near the best."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    some = rng.random((80, 6))
    some[40:] = 0.3 + 0.05 * rng.standard_normal((40, 6))
    axes = (some - 0.3) @ rotation
    values = condition * axes[:, 0] ** 2 + (axes[:, 1:] ** 2).sum(axis=1)
    known, others = slice(10, 70), np.r_[:10, 70:80]
    features = Features(numbers(6), some)
    u = scaled(values[known])
    found = fit(features, some[known], u, warp=True)
    y, *_ = warped(u, found.log_delta)
    means = Posterior(found, features, some[known], y).means(some[others])
    expected = unwarped(means, values[known], found.log_delta)
    assert expected == pytest.approx(values[others], abs=1e-3 * values.std())


def test_trials_that_are_no_more_than_the_coefficients_show_no_trend() -> None:
    some = np.random.default_rng(0).random((11, 3))
    values = scaled(((some - 0.3) ** 2).sum(axis=1))
    features = Features(numbers(3), some)
    trends = [fit(features, some[:k], values[:k], warp=True).trend for k in (10, 11)]
    assert trends[0] == pytest.approx(1e-6)
    assert trends[1] > 1e-3


@pytest.mark.parametrize("size", [1, 47, 48, 49, 130])
def test_the_inverse_by_blocks_is_the_inverse(size: int) -> None:
    lower = np.tril(np.random.default_rng(size).standard_normal((size, size))) + 10 * np.eye(size)
    assert triangular_inverse(lower) @ lower == pytest.approx(np.eye(size), abs=1e-10)


FOUND = Hyperparameters(np.array([0.5, 2.0, 1.0, 3.0, 0.7]), 1.3, 1e-3, 0.0, 0.4, 0.0)


def dense(known: Floats, y: Floats, at: Floats, axis_of: Indexes) -> tuple[Floats, Floats]:
    """Rasmussen and Williams 2006, equations 2.25 and 2.26, evaluated directly."""

    def kernel(a: Floats, b: Floats) -> Floats:
        r = np.sqrt((FOUND.weights[axis_of] * (a[:, None] - b[None]) ** 2).sum(axis=2))
        s = math.sqrt(5) * r
        matern = FOUND.signal * (1 + s + s * s / 3) * np.exp(-s)
        return matern + FOUND.trend * (1 + 4 * a @ b.T) ** 2

    inverse = np.linalg.inv(
        kernel(known, known) + (FOUND.noise + JITTER * FOUND.signal) * np.eye(len(y))
    )
    cross = kernel(at, known)
    return cross @ inverse @ y, np.sqrt(np.diag(kernel(at, at) - cross @ inverse @ cross.T))


def test_the_posterior_is_that_of_dense_algebra_and_so_is_one_that_was_appended_to() -> None:
    some = rows(60)
    features = Features(PLACES, some)
    f, y = features.of(some), np.random.default_rng(4).standard_normal(60)
    posterior = Posterior(FOUND, features, some[:30], y[:30])
    for known in (30, 40):
        for k in range(len(posterior), known):
            posterior.append(some[k], y[k])
        mean, deviation = dense(f[:known], y[:known], f[40:], features.axis_of)
        found = posterior.predict(some[40:])
        assert found[0] == pytest.approx(mean, abs=1e-8)
        assert found[1] == pytest.approx(deviation, abs=1e-8)


def test_the_posteriors_slopes_are_those_of_finite_differences() -> None:
    some = rows(20)
    posterior = Posterior(FOUND, Features(PLACES, some), some, losses(20))
    at = some[:4] * 0.9 + 0.05
    at[:, 0] = some[:4, 0]
    mean, deviation, mean_slope, deviation_slope = posterior.predict_slopes(at)
    np.testing.assert_allclose((mean, deviation), posterior.predict(at), atol=1e-12)
    for k in range(4):
        moving = ~np.isnan(at[k]) & ~PLACES.choice
        for slope, which in ((mean_slope[k], 0), (deviation_slope[k], 1)):
            numeric = differences(
                lambda x, which=which: posterior.predict(x[None])[which][0], at[k], 1e-6
            )
            assert slope == pytest.approx(np.where(moving, numeric, 0.0), abs=1e-5)


def numbers(count: int) -> Places:
    return Places(Space(tuple(Parameter(f"x{k}", Float(0, 1)) for k in range(count))))


def test_a_fit_finds_which_axis_matters() -> None:
    x = np.random.default_rng(5).random((60, 3))
    found = fit(Features(numbers(3), x), x, scaled(np.sin(6 * x[:, 1])), warp=True)
    assert found.weights[1] > 10 * max(found.weights[0], found.weights[2])
    assert found.noise < 1e-3


def test_the_kernel_of_equal_points_is_one_and_its_slope_is_finite() -> None:
    kernel, slope = matern(np.array([0.0, 1e-20, 1e4]))
    assert kernel[:2] == pytest.approx([1, 1])
    assert slope[:2] == pytest.approx([-5 / 6, -5 / 6])
    assert kernel[2] == pytest.approx(0, abs=1e-80)


# Improvement


def precise_log_improvement(u: str) -> float:
    """log of the integral of phi(u + t) t over t < 0, with 60 digits by the series of Phi."""
    getcontext().prec = 60
    x = Decimal(u)
    tau = 2 * Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
    density = (-x * x / 2).exp() / tau.sqrt()
    term, total, k = x, x, 0
    while abs(term) > Decimal(10) ** -58:  # Phi(x) = 1/2 + phi(x) (x + x³/3 + x⁵/15 + ...)
        k += 1
        term = term * x * x / (2 * k + 1)
        total += term
    return float((density + x * (Decimal(1) / 2 + density * total)).ln())


@pytest.mark.parametrize(
    "u", ["-9", "-6.5", "-3", "-1.0001", "-1", "-0.9999", "-0.1", "0", "0.7", "3", "7"]
)
def test_log_improvement_has_fourteen_digits(u: str) -> None:
    value, _ = log_improvement(np.array([float(u)]))
    assert value[0] == pytest.approx(precise_log_improvement(u), rel=1e-13, abs=1e-14)


@pytest.mark.parametrize("u", [-1e3, -9.9e3, -1e4, -1.01e4, -1e8, -1e150])
def test_the_tail_of_log_improvement_is_its_asymptotic_series(u: float) -> None:
    value, slope = log_improvement(np.array([u]))
    expected = (
        -0.5 * u * u - 0.5 * math.log(2 * math.pi) - 2 * math.log(-u) + math.log1p(-3 / u / u)
    )
    assert value[0] == pytest.approx(expected, rel=1e-12)
    assert slope[0] == pytest.approx(-u - 2 / u, rel=1e-6)


def test_the_slopes_of_improvement_and_chance_are_those_of_finite_differences() -> None:
    u = np.concatenate([np.linspace(-30, 8, 77), [-0.999999, -1.000001]])
    for function in (log_improvement, log_chance):
        _, slope = function(u)
        numeric = (function(u + 1e-5)[0] - function(u - 1e-5)[0]) / 2e-5
        assert slope == pytest.approx(numeric, rel=1e-5, abs=1e-7)


def test_log_chance_at_known_values() -> None:
    value, _ = log_chance(np.array([0.0, 1.0, -10.0, 40.0]))
    assert value == pytest.approx(
        [math.log(0.5), math.log(0.8413447460685429), -53.23128515051247, 0.0]
    )


NOISY = replace(FOUND, noise=0.04)  # a standard deviation of 0.2
GAIN = 0.003


def improvement(detail: float, running: int) -> tuple[ExpectedImprovement, Posterior]:
    """Return the improvement over all of 20 trials but the first, beside running ones."""
    some = rows(20)
    posterior = Posterior(NOISY, Features(PLACES, some), some, losses(20))
    kept = np.arange(20) != 0
    found = ExpectedImprovement(posterior, some, kept, gain=GAIN, detail=detail)
    for row in rows(running, seed=7):
        found.add_pending(row, kept=True)
    return found, posterior


def expected_gain(least: float, mean: Floats, deviation: Floats) -> Floats:
    """Return the mean of max(0, least - loss) over a grid of the losses' distribution."""
    z = np.linspace(-9, 9, 20_001)
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    gains: Floats = np.maximum(least - mean[:, None] - deviation[:, None] * z, 0.0) @ density
    return gains


@pytest.mark.parametrize(
    ("detail", "running", "gain", "noise"),
    [(0.5, 0, 0.0, 0.0), (0.0, 2, GAIN, 0.0), (0.1, 2, GAIN, 0.1), (0.5, 2, GAIN, 0.2)],
)
def test_only_beside_running_trials_a_gain_is_required_and_noise_up_to_the_detail_counts(
    detail: float, running: int, gain: float, noise: float
) -> None:
    found, posterior = improvement(detail, running)
    known, at = np.concatenate([rows(20)[1:], rows(running, seed=7)]), rows(5, seed=6)
    mean, deviation = posterior.predict(at)
    expected = expected_gain(
        float(posterior.means(known).min()) - gain, mean, np.sqrt(deviation**2 + noise**2)
    )
    assert np.exp(found.promise(at)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("detail", "running"), [(0.1, 0), (0.0, 1), (0.1, 1)])
def test_the_slopes_of_the_promise_are_those_of_finite_differences(
    detail: float, running: int
) -> None:
    found, _ = improvement(detail, running)
    at = rows(4) * 0.9 + 0.05
    at[:, 0] = rows(4)[:, 0]
    promise, slope = found.slopes(at)
    assert promise == pytest.approx(found.promise(at))
    for k in range(4):
        moving = ~np.isnan(at[k]) & ~PLACES.choice
        numeric = differences(lambda x: found.promise(x[None])[0], at[k], 1e-6)
        assert slope[k] == pytest.approx(np.where(moving, numeric, 0.0), rel=1e-4, abs=1e-5)


# The warp


@pytest.mark.parametrize("delta", [0.01, 1.0, 100.0])
def test_warped_losses_are_standardized_in_their_order_with_the_slopes_of_finite_differences(
    delta: float,
) -> None:
    u = scaled(losses(30))
    t, by_delta, _, jacobian_by_delta = warped(u, math.log(delta))
    assert (t.mean(), t.std()) == (pytest.approx(0, abs=1e-12), pytest.approx(1))
    assert (np.argsort(t) == np.argsort(u)).all()
    up, down = warped(u, math.log(delta) + 1e-5), warped(u, math.log(delta) - 1e-5)
    assert by_delta == pytest.approx((up[0] - down[0]) / 2e-5, abs=1e-7)
    assert jacobian_by_delta == pytest.approx((up[2] - down[2]) / 2e-5, abs=1e-6)


def test_the_jacobian_is_that_of_finite_differences() -> None:
    """The log of the product of dt/du, where mean and spread are held."""
    u = scaled(losses(9))
    delta = 0.3
    spread = np.log(u + delta).std()
    assert warped(u, math.log(delta))[2] == pytest.approx(
        float(np.log(1 / (u + delta) / spread).sum())
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([3.0, 1.0, 2.0], [2, 0, 1]),
        ([0.0, 1.0, 1e9], [0, 1, CLIP]),
        ([5.0, 5.0, 5.0], [0, 0, 0]),
        ([0.0, 0.0, 0.0, 8.0], [0, 0, 0, 1]),
        ([-1e308, 0.0, 1e308], [0, 1, 2]),
        ([1e-300, 2e-300, 3e-300], [0, 1, 2]),
        ([0.0], [0]),
        # Early losses are not clipped by the median of trials that are near the best.
        ([50.0, 80.0, 20.0, *[60.0] * 7, *[0.0, 0.1, 0.2] * 20], [500, 800, 200]),
        ([*[1.0] * 10, 0.0, *[1e-12] * 40], [1e8, 1e8]),
    ],
)
def test_losses_are_scaled_from_the_best_to_the_median_and_clipped(
    given: list[float], expected: list[float]
) -> None:
    assert scaled(np.array(given))[: len(expected)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("losses", "level"),
    [
        ([0.0, 1.0, 2.0, 3.0, 9.0, 9.1, 9.2], 6.0),
        ([0.0, 1.0, 2.0, 3.0, 8.0, 8.5, 9.2], math.inf),
        ([0.0, 1.0, 2.0, 3.0, 8.5, 9.0, 9.1, 9.2], math.inf),
        # A plateau is not most of the space.
        ([0.0, 1.0, 9.0, 9.1, 9.2], math.inf),
        ([5.0] * 8, math.inf),
        # Losses of any size that are clipped are equal.
        ([0.0, 1.0, 2.0, 3.0, 1e9, 1e15, 1e300], 5e8 + 1.5),
    ],
)
def test_a_plateau_is_of_several_of_the_worst_losses(losses: list[float], level: float) -> None:
    assert plateau(np.array(losses)) == level


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([-1.0, 0.0, 2.0, 1.0], [-1, 0, 2, 1]),
        ([0.0, 0.0], [0, 0]),
        ([-1e-300, 1e-300], [-1, 1]),
        ([1e300, 1.0, 1.0, 1.0], [FARTHEST, 1, 1, 1]),
    ],
)
def test_margins_keep_their_signs_and_are_clipped(
    given: list[float], expected: list[float]
) -> None:
    assert balanced(np.array(given)) == pytest.approx(expected)


# The minimizer


def test_minima_in_a_box_are_found_from_all_starts_at_once() -> None:
    center = np.array([0.3, 2.0, -1.0])
    scale = np.array([1.0, 100.0, 0.1])

    def bowls(x: Floats, which: Indexes) -> tuple[Floats, Floats]:
        moved = x - center - 0.1 * which[:, None]
        return (scale * moved**2).sum(axis=1), 2 * scale * moved

    starts = np.random.default_rng(0).random((5, 3))
    points, _ = minimize(bowls, starts, np.zeros(3), np.ones(3), iterations=100, tolerance=1e-14)
    expected = np.clip(center + 0.1 * np.arange(5)[:, None], 0, 1)
    assert points == pytest.approx(expected, abs=1e-5)


def test_a_narrow_valley_is_followed_to_its_end() -> None:
    def rosenbrock(x: Floats, which: Indexes) -> tuple[Floats, Floats]:
        a, b = x.T
        value = 100 * (b - a * a) ** 2 + (1 - a) ** 2
        return value, np.stack([-400 * a * (b - a * a) - 2 * (1 - a), 200 * (b - a * a)], axis=1)

    points, _ = minimize(
        rosenbrock,
        np.array([[-1.2, 1.0], [0.0, 0.0]]),
        np.full(2, -2.0),
        np.full(2, 2.0),
        iterations=200,
        tolerance=1e-15,
    )
    assert points == pytest.approx(np.ones((2, 2)), abs=1e-4)


def test_where_a_function_is_not_finite_a_shorter_step_is_taken() -> None:
    def walled(x: Floats, which: Indexes) -> tuple[Floats, Floats]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(x[:, 0] > 0, x[:, 0] - np.log(x[:, 0]), np.inf), 1 - 1 / x

    points, _ = minimize(
        walled,
        np.array([[0.01], [9.0]]),
        np.array([-10.0]),
        np.array([10.0]),
        iterations=100,
        tolerance=1e-14,
    )
    assert points == pytest.approx(np.ones((2, 1)), abs=1e-4)
