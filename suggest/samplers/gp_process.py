"""A Gaussian process with a Matérn-5/2 kernel and a weight for each axis: its fit and its posterior.

Rasmussen and Williams 2006, equations 2.30, 5.8 and 5.9 and chapter 4.2.1. The priors' lengths grow with the root
of the number of axes (Hvarfner et al. 2024, Vanilla Bayesian optimization performs great in high dimensions). NumPy
alone: the factor's inverse is computed in blocks, which costs about what LAPACK's would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from suggest.samplers.gp_space import Features
from suggest.samplers.gp_warp import warped
from suggest.samplers.minimize import minimize
from suggest.samplers.normal import LOG_ROOT_TAU, Floats, Indexes

JITTER = 1e-8  # of the signal's variance
BLOCK = 48
AT_A_TIME = 2**14  # numbers; larger arrays leave the nearest caches
LENGTH_MEAN, LENGTH_SPREAD = math.log(0.5), 1.0  # of the log of a length, at one axis
MANY = 10  # axes, above which lengths vary less: there are more of them than the trials can tell
SIGNAL_SPREAD = 1.0
NOISE_MEAN, NOISE_SPREAD = math.log(1e-3), 2.0
DELTA_MEAN, DELTA_SPREAD = 0.0, 2.0
WEIGHT_BOUND, SIGNAL_BOUND, NOISE_BOUNDS = 9.0, 4.0, (math.log(1e-6), 0.0)
DELTA_BOUNDS = (math.log(1e-2), math.log(1e2))
SHAPE_SPREAD, SHAPE_BOUND = 0.5, 1.5  # of the logs of the shapes of the places' warp; at 0 it is the identity
ITERATIONS, TOLERANCE = 40, 2e-3
STRIDE, STRIDES = 0.1, 8  # of a walk through the posterior of the parameters


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """weights: 1 / length² of each axis. delta: of the losses' warp. shapes: of the places' warp, (2, axes)."""

    weights: Floats
    signal: float
    noise: float
    log_delta: float
    shapes: Floats


def triangular_inverse(lower: Floats) -> Floats:
    """Of a lower triangular matrix, or of a stack of them, by blocks."""
    n = lower.shape[-1]
    if n <= BLOCK:
        found: Floats = np.tril(np.linalg.inv(lower))
        return found
    half = n // 2
    a, c = triangular_inverse(lower[..., :half, :half]), triangular_inverse(lower[..., half:, half:])
    inverse = np.zeros_like(lower)
    inverse[..., :half, :half] = a
    inverse[..., half:, half:] = c
    inverse[..., half:, :half] = -(c @ (lower[..., half:, :half] @ a))
    return inverse


def matern(squares: Floats) -> tuple[Floats, Floats]:
    """The kernel of squared distances, and its derivative by them: (1 + s + s²/3) exp(-s), s = sqrt(5 squares)."""
    s = np.sqrt(5.0 * squares)
    decay = np.exp(-s)
    s += 1.0
    s *= decay
    decay *= squares
    decay *= 5.0 / 3.0
    decay += s
    s *= -5.0 / 6.0
    return decay, s


def squared_distances(a: Floats, b: Floats) -> Floats:
    """Of rows with rows."""
    squares = a @ b.T
    squares *= -2.0
    squares += np.einsum("ij,ij->i", a, a)[:, None]
    squares += np.einsum("ij,ij->i", b, b)
    return np.maximum(squares, 0.0, out=squares)


class Likelihood:
    """Minus the log of the posterior density of the parameters, in the order of `parameters`.

    losses: as `gp_warp.scaled` makes them, or, where `warp` is False, as they are.
    """

    def __init__(self, features: Features, rows: Floats, losses: Floats, *, warp: bool) -> None:
        self._features = features
        self._rows = rows
        self._choices = features.of_choices(rows)
        self._losses = losses
        self._warp = warp
        axes = features.axes
        self.mean = np.zeros(3 * axes + 3)
        self.mean[:axes] = -2.0 * (LENGTH_MEAN + 0.5 * math.log(axes))
        self.mean[axes : axes + 3] = 0.0, NOISE_MEAN, DELTA_MEAN
        self.spread = np.full(3 * axes + 3, SHAPE_SPREAD)
        self.spread[:axes] = 2.0 * LENGTH_SPREAD * min(1.0, math.sqrt(MANY / axes))
        self.spread[axes : axes + 3] = SIGNAL_SPREAD, NOISE_SPREAD, DELTA_SPREAD

    def at(self, theta: Floats) -> tuple[float, Floats]:
        """The value and its gradient."""
        n, axes, axis_of = len(self._rows), self._features.axes, self._features.axis_of
        found = parameters(theta)
        if self._warp:
            y, y_slope, jacobian, jacobian_slope = warped(self._losses, found.log_delta)
        else:
            y, y_slope, jacobian, jacobian_slope = self._losses, np.zeros(n), 0.0, 0.0
        features, there = self._features.with_slopes(self._rows, self._choices, found.shapes)
        scaled = features * np.sqrt(found.weights)[axis_of]
        kernel, slope = matern(squared_distances(scaled, scaled))
        covariance = found.signal * kernel
        covariance.flat[:: n + 1] += found.noise + JITTER * found.signal
        try:
            lower = np.linalg.cholesky(covariance).astype(np.float64, copy=False)
        except np.linalg.LinAlgError:
            return math.inf, np.zeros_like(theta)
        inverse = triangular_inverse(lower)
        alpha = inverse.T @ (inverse @ y)
        # Half the derivative by the covariance.
        by = inverse.T @ inverse
        by -= np.outer(alpha, alpha)
        by *= 0.5
        gradient = np.empty_like(theta)
        gradient[axes] = found.signal * float(np.vdot(by, kernel))
        gradient[axes + 1] = found.noise * float(np.trace(by))
        gradient[axes + 2] = float(alpha @ y_slope) - jacobian_slope
        slope *= by
        slope *= found.signal
        # The sums over j of slope_ij (f_i - f_j), for each column of the features.
        apart = slope.sum(axis=1)[:, None] * features - slope @ features
        gradient[:axes] = found.weights * np.bincount(axis_of, 2.0 * np.einsum("ij,ij->j", apart, features), axes)
        by_features = 4.0 * found.weights[axis_of] * apart
        gradient[axes + 3 :] = self._features.by_shapes(there, by_features).ravel()
        value = 0.5 * float(y @ alpha) + float(np.log(np.diag(lower)).sum()) + n * LOG_ROOT_TAU - jacobian
        off = (theta - self.mean) / self.spread
        return value + 0.5 * float(off @ off), gradient + off / self.spread

    def together(self, points: Floats, which: Indexes) -> tuple[Floats, Floats]:
        found = [self.at(theta) for theta in points]
        return np.array([value for value, _ in found]), np.array([gradient for _, gradient in found])


def parameters(theta: Floats) -> Hyperparameters:
    """theta: log weights, log signal, log noise, log delta, log a, log b."""
    axes = (len(theta) - 3) // 3
    return Hyperparameters(
        np.exp(theta[:axes]),
        math.exp(theta[axes]),
        math.exp(theta[axes + 1]),
        float(theta[axes + 2]),
        theta[axes + 3 :].reshape(2, axes),
    )


def fit(
    features: Features,
    rows: Floats,
    losses: Floats,
    rng: np.random.Generator,
    *,
    warp: bool = True,
    samples: int = 0,
) -> tuple[Hyperparameters, ...]:
    """The most probable parameters, and some more from their posterior.

    They are found from two starts: short lengths with a strong warp, long ones with a weak one.
    """
    axes = features.axes
    likelihood = Likelihood(features, rows, losses, warp=warp)
    starts = np.array([_start(axes, 0.3, 0.3), _start(axes, 1.0, 10.0)])
    shapes = np.full(2 * axes, SHAPE_BOUND)
    high = np.array([*[WEIGHT_BOUND] * axes, SIGNAL_BOUND, NOISE_BOUNDS[1], DELTA_BOUNDS[1], *shapes])
    low = np.array([*[-WEIGHT_BOUND] * axes, -SIGNAL_BOUND, NOISE_BOUNDS[0], DELTA_BOUNDS[0], *-shapes])
    found = minimize(likelihood.together, starts, low, high, iterations=ITERATIONS, tolerance=TOLERANCE)
    best = found.points[int(np.argmin(found.values))]
    return parameters(best), *map(parameters, _walk(likelihood, best, low, high, rng, samples))


def _walk(
    likelihood: Likelihood, start: Floats, low: Floats, high: Floats, rng: np.random.Generator, count: int
) -> Iterator[Floats]:
    """Yield so many places of a Hamiltonian Monte Carlo walk (Neal 2011, MCMC using Hamiltonian dynamics, figure 2).

    A step is measured in the priors' spreads. The walk begins at the mode, so that no place is far from it.
    """
    here, (value, slope) = start, likelihood.at(start)
    for _ in range(count):
        momentum = rng.standard_normal(len(start))
        energy = value + 0.5 * float(momentum @ momentum)
        step = STRIDE * rng.uniform(0.5, 1.5) * likelihood.spread
        place, place_value, place_slope = here, value, slope
        for _ in range(STRIDES):
            momentum = momentum - 0.5 * step * place_slope
            place = place + step * momentum
            if (place < low).any() or (place > high).any():
                place_value = math.inf
            else:
                place_value, place_slope = likelihood.at(place)
            if not math.isfinite(place_value):
                break
            momentum = momentum - 0.5 * step * place_slope
        risen = place_value + 0.5 * float(momentum @ momentum) - energy
        if math.log(rng.random()) < -risen:
            here, value, slope = place, place_value, place_slope
        yield here


def _start(axes: int, length: float, delta: float) -> Floats:
    weight = -2.0 * math.log(length) - 0.5 * math.log(axes)
    return np.array([*[weight] * axes, 0.0, math.log(1e-2), math.log(delta), *[0.0] * (2 * axes)])


class Posterior:
    """A fitted process at its trials. Further ones may be appended; their values are believed."""

    def __init__(self, found: Hyperparameters, features: Features, rows: Floats, y: Floats) -> None:
        self._features = features
        self._shapes = found.shapes
        self._roots = np.sqrt(found.weights)[features.axis_of]
        self._signal, self._noise = found.signal, found.noise
        self.rates = np.sqrt(found.weights)  # 1 / length of each axis
        self.noise_deviation = math.sqrt(found.noise)
        self.log_delta = found.log_delta  # of the warp that made the values
        self._trials = self._scaled(rows)
        self._squares = np.einsum("ij,ij->i", self._trials, self._trials)
        self._y = y
        kernel, _ = matern(squared_distances(self._trials, self._trials))
        kernel *= self._signal
        kernel.flat[:: len(y) + 1] += self._noise + JITTER * self._signal
        lower = np.linalg.cholesky(kernel).astype(np.float64, copy=False)
        self._inverse = triangular_inverse(lower)
        self._alpha = self._inverse.T @ (self._inverse @ y)

    def __len__(self) -> int:
        return len(self._y)

    def _scaled(self, rows: Floats) -> Floats:
        found: Floats = self._features.of(rows, self._shapes) * self._roots
        return found

    def append(self, row: Floats, y: float) -> None:
        """One more trial: (axes,)."""
        n = len(self._y)
        trial = self._scaled(row[None])[0]
        kernel, _ = matern(squared_distances(trial[None], self._trials))
        row = self._inverse @ (self._signal * kernel[0])
        last = math.sqrt(max(self._signal * (1.0 + JITTER) + self._noise - float(row @ row), 1e-10))
        inverse = np.zeros((n + 1, n + 1))
        inverse[:n, :n] = self._inverse
        inverse[n, :n] = -(row @ self._inverse) / last
        inverse[n, n] = 1.0 / last
        self._inverse = inverse
        self._trials = np.concatenate([self._trials, trial[None]])
        self._squares = np.append(self._squares, trial @ trial)
        self._y = np.append(self._y, y)
        self._alpha = inverse.T @ (inverse @ self._y)

    def _kernels(self, at: Floats) -> tuple[Floats, Floats]:
        squares = at @ self._trials.T
        squares *= -2.0
        squares += np.einsum("ij,ij->i", at, at)[:, None]
        squares += self._squares
        kernel, slope = matern(np.maximum(squares, 0.0, out=squares))
        kernel *= self._signal
        slope *= self._signal
        return kernel, slope

    def means(self, rows: Floats) -> Floats:
        """What `predict` has first, in a fraction of its time."""
        found: Floats = self._kernels(self._scaled(rows))[0] @ self._alpha
        return found

    def predict(self, rows: Floats) -> tuple[Floats, Floats]:
        """Means and standard deviations, without the noise."""
        mean, deviation = np.empty(len(rows)), np.empty(len(rows))
        at = self._scaled(rows)
        step = max(16, AT_A_TIME // len(self))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            kernel = self._kernels(at[part])[0]
            mean[part] = kernel @ self._alpha
            deviation[part] = self._deviations(kernel @ self._inverse.T)
        return mean, deviation

    def _deviations(self, explained: Floats) -> Floats:
        left = self._signal - np.einsum("ij,ij->i", explained, explained)
        found: Floats = np.sqrt(np.maximum(left, 1e-12 * self._signal))
        return found

    def predict_slopes(self, rows: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Means and standard deviations, and the gradients of both by the places: (rows, axes)."""
        at = self._scaled(rows)
        kernel, slope = self._kernels(at)
        explained = kernel @ self._inverse.T
        deviations = self._deviations(explained)
        mean_slope = self._pulled(at, slope * self._alpha)
        slope *= explained @ self._inverse
        deviation_slope = -self._pulled(at, slope) / deviations[:, None]
        back = self._features.pulled_back
        return (
            kernel @ self._alpha,
            deviations,
            back(rows, self._shapes, mean_slope),
            back(rows, self._shapes, deviation_slope),
        )

    def _pulled(self, at: Floats, by_squares: Floats) -> Floats:
        """The gradient of a sum over trials by features, of the derivatives by squared distances."""
        found: Floats = 2.0 * (at * by_squares.sum(axis=1)[:, None] - by_squares @ self._trials) * self._roots
        return found
