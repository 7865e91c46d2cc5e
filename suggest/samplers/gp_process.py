"""A Gaussian process around a quadratic trend: its fit and its posterior.

The kernel is Matérn-5/2 with a weight for each axis, plus a polynomial kernel of degree two, which
is that of a quadratic function with normal coefficients (Rasmussen and Williams 2006, equations
2.30, 5.8 and 5.9, chapters 4.2.1 and 4.2.2). The lengths of the priors grow with the root of the
number of axes (Hvarfner et al. 2024, Vanilla Bayesian optimization performs great in high
dimensions). It uses NumPy alone: the inverse of the Cholesky factor is computed in blocks, at about
the cost of LAPACK's.

Rows, losses and features are float64 arrays: (trials, axes), (trials,) and (trials, columns).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from suggest.samplers.gp_space import Features
from suggest.samplers.gp_warp import warped
from suggest.samplers.minimize import minimize
from suggest.samplers.normal import LOG_ROOT_TAU, Floats, Indexes

JITTER = 1e-10  # of the signal's variance
LEAST_VARIANCE = 1e-14  # of predictions; less is rounding
BLOCK = 48  # rows of a matrix that NumPy inverts directly
# Elements of a kernel that are computed at a time; larger arrays leave the nearest caches.
AT_A_TIME = 2**14
LENGTH_MEAN, LENGTH_SPREAD = math.log(0.5), 1.0  # of the log of a length, at one axis
# Above this many axes, lengths vary less, because trials cannot tell so many of them.
MANY = 10
# The signal is what the trend does not explain: next to nothing where losses are quadratic.
SIGNAL_SPREAD = 2.0
# The log of each coefficient's variance, for features that are 1 at the edge of the space.
TREND_MEAN, TREND_SPREAD = math.log(1e-2), 2.0
EDGE = 0.5  # a feature at the end of a number's range
NOISE_MEAN, NOISE_SPREAD = math.log(1e-3), 2.0
DELTA_MEAN, DELTA_SPREAD = 0.0, 2.0
WEIGHT_BOUND, SIGNAL_BOUNDS = 9.0, (-9.0, 4.0)
TREND_BOUNDS = (math.log(1e-6), math.log(1e2))
# Near the minimum of a function without noise, losses span decades.
NOISE_BOUNDS = (math.log(1e-8), 0.0)
DELTA_BOUNDS = (math.log(1e-2), math.log(1e6))
FEW_TRIALS_BOUNDS = ((-4.0, 4.0), (math.log(1e-6), 0.0), DELTA_BOUNDS, (TREND_BOUNDS[0],) * 2)
ITERATIONS, TOLERANCE = 40, 2e-3


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The parameters of a process.

    weights: 1 / length² of each axis.
    signal, noise, trend: the variances of the Matérn kernel, of a value around its mean, and of
        each coefficient of the trend.
    log_delta: the logarithm of the warp's delta.
    log_density: of the parameters after the trials that they were fitted to.
    """

    weights: Floats
    signal: float
    noise: float
    log_delta: float
    trend: float
    log_density: float


def triangular_inverse(lower: Floats) -> Floats:
    """Return the inverse of a lower triangular matrix, or of a stack of them, in blocks."""
    n = lower.shape[-1]
    if n <= BLOCK:
        return np.tril(np.linalg.inv(lower))
    half = n // 2
    first = triangular_inverse(lower[..., :half, :half])
    last = triangular_inverse(lower[..., half:, half:])
    inverse = np.zeros_like(lower)
    inverse[..., :half, :half] = first
    inverse[..., half:, half:] = last
    inverse[..., half:, :half] = -(last @ (lower[..., half:, :half] @ first))
    return inverse


def matern(squares: Floats) -> tuple[Floats, Floats]:
    """Return the kernel and its derivative by the squared distances.

    The kernel is (1 + s + s²/3) exp(-s), s = sqrt(5 squares).
    """
    s = np.sqrt(5.0 * squares)
    decay = np.exp(-s)
    s += 1.0
    s *= decay
    decay *= squares
    decay *= 5.0 / 3.0
    decay += s
    s *= -5.0 / 6.0
    return decay, s


def trend_products(a: Floats, b: Floats) -> Floats:
    """Return the roots of the trend's kernel between rows of features.

    The kernel is (1 + a·b)², of features that are 1 at the edge of the space.
    """
    products: Floats = a @ b.T
    products *= EDGE**-2
    products += 1.0
    return products


def squared_distances(a: Floats, b: Floats, lengths_of_b: Floats) -> Floats:
    """Return the squared distances between rows of `a` and rows of `b`."""
    squares = a @ b.T
    squares *= -2.0
    squares += _squared_lengths(a)[:, None]
    squares += lengths_of_b
    return np.maximum(squares, 0.0, out=squares)


def _squared_lengths(rows: Floats) -> Floats:
    found: Floats = np.einsum("ij,ij->i", rows, rows)
    return found


def _cholesky(covariance: Floats) -> Floats:
    return np.linalg.cholesky(covariance).astype(np.float64, copy=False)


class Likelihood:
    """Minus the log of the posterior density of the parameters, up to a constant.

    The parameters are log weights, log signal, log noise, log delta and log trend, in this order.

    losses: as `gp_warp.scaled` makes them; without `warp`, the values of the process.
    expected: the mean of the process at the rows, which is subtracted from the warped losses.
    """

    def __init__(
        self,
        features: Features,
        rows: Floats,
        losses: Floats,
        *,
        warp: bool,
        expected: Floats | float = 0.0,
    ) -> None:
        axes = features.axes
        self._features = features.of(rows)
        self._squares = self._features * self._features
        self._quadratic = trend_products(self._features, self._features) ** 2
        self._axis_of = features.axis_of
        self._axes = axes
        self._losses = losses
        self._warp = warp
        self._expected = expected
        self._prior = -2.0 * (LENGTH_MEAN + 0.5 * math.log(axes))
        self._prior_spread = 2.0 * LENGTH_SPREAD * min(1.0, math.sqrt(MANY / axes))

    def at(self, theta: Floats) -> tuple[float, Floats]:
        """Return the value and its gradient."""
        n, axes = len(self._features), self._axes
        weights = np.exp(theta[:axes])
        signal, noise = math.exp(theta[axes]), math.exp(theta[axes + 1])
        trend = math.exp(theta[axes + 3])
        y, y_slope, jacobian, jacobian_slope = self._warped(float(theta[axes + 2]))
        scaled = self._features * np.sqrt(weights)[self._axis_of]
        kernel, slope = matern(squared_distances(scaled, scaled, _squared_lengths(scaled)))
        covariance = signal * kernel + trend * self._quadratic
        covariance.flat[:: n + 1] += noise + JITTER * signal
        try:
            lower = _cholesky(covariance)
        except np.linalg.LinAlgError:
            return math.inf, np.zeros_like(theta)
        inverse = triangular_inverse(lower)
        alpha = inverse.T @ (inverse @ y)
        # Half the derivative by the covariance.
        by = inverse.T @ inverse
        by -= np.outer(alpha, alpha)
        by *= 0.5
        gradient = np.empty_like(theta)
        gradient[axes] = signal * float(np.vdot(by, kernel))
        gradient[axes + 1] = noise * float(np.trace(by))
        gradient[axes + 3] = trend * float(np.vdot(by, self._quadratic))
        slope *= by
        slope *= signal
        # The sum over pairs of slope * (f - f')², for each column.
        own = slope.sum(axis=1) @ self._squares
        mixed = np.einsum("ij,ij->j", self._features, slope @ self._features)
        columns = 2.0 * (own - mixed)
        gradient[:axes] = weights * np.bincount(self._axis_of, columns, axes)
        gradient[axes + 2] = float(alpha @ y_slope) - jacobian_slope
        log_determinant = float(np.log(np.diag(lower)).sum())
        value = 0.5 * float(y @ alpha) + log_determinant + n * LOG_ROOT_TAU - jacobian
        off, spread = self._from_prior(theta)
        return value + 0.5 * float(off @ off), gradient + off / spread

    def _warped(self, log_delta: float) -> tuple[Floats, Floats, float, float]:
        """Return the losses and the log of the Jacobian, with their derivatives by `log_delta`."""
        if self._warp:
            y, by_delta, jacobian, slope = warped(self._losses, log_delta)
            return y - self._expected, by_delta, jacobian, slope
        return self._losses, np.zeros(len(self._losses)), 0.0, 0.0

    def _from_prior(self, theta: Floats) -> tuple[Floats, Floats]:
        """Return each parameter's distance from its prior's mean, and its prior's deviation.

        The distances are in these standard deviations.
        """
        mean = np.full(len(theta), self._prior)
        mean[self._axes :] = 0.0, NOISE_MEAN, DELTA_MEAN, TREND_MEAN
        spread = np.full(len(theta), self._prior_spread)
        spread[self._axes :] = SIGNAL_SPREAD, NOISE_SPREAD, DELTA_SPREAD, TREND_SPREAD
        return (theta - mean) / spread, spread

    def together(self, points: Floats, which: Indexes) -> tuple[Floats, Floats]:
        values, gradients = zip(*map(self.at, points), strict=True)
        return np.array(values), np.array(gradients)


def fit(
    features: Features,
    rows: Floats,
    losses: Floats,
    *,
    warp: bool,
    expected: Floats | float = 0.0,
) -> Hyperparameters:
    """Return the most probable parameters found from four starts.

    1. Short lengths and a strong warp.
    2. Long lengths and a weak warp.
    3. The shortest lengths and little noise: from the first two, values with many narrow minima
       look like noise.
    4. Nearly a quadratic function without a warp: no path leads there from the others. It is left
       out while there are no more trials than it has coefficients, because they cannot tell it from
       other functions. Then there is no trend either, and no less noise than a Matérn kernel alone
       can resolve.
    """
    axes = features.axes
    likelihood = Likelihood(features, rows, losses, warp=warp, expected=expected)
    starts = np.array(
        [
            _start(axes, length=0.3, noise=1e-2, delta=0.3),
            _start(axes, length=1.0, noise=1e-2, delta=10.0, trend=1.0),
            _start(axes, length=0.1, noise=1e-3, delta=10.0),
            _start(axes, length=1.0, noise=1e-5, delta=1e4, signal=1e-2, trend=1.0),
        ]
    )
    weights = (-WEIGHT_BOUND, WEIGHT_BOUND)
    bounds = [*[weights] * axes, SIGNAL_BOUNDS, NOISE_BOUNDS, DELTA_BOUNDS, TREND_BOUNDS]
    columns = len(features.axis_of)
    if len(rows) <= (columns + 1) * (columns + 2) // 2:
        starts = starts[:-1]
        bounds = [*[weights] * axes, *FEW_TRIALS_BOUNDS]
    low, high = np.array(bounds).T
    points, values = minimize(
        likelihood.together, starts, low, high, iterations=ITERATIONS, tolerance=TOLERANCE
    )
    best = int(np.argmin(values))
    theta = points[best]
    return Hyperparameters(
        np.exp(theta[:axes]),
        math.exp(theta[axes]),
        math.exp(theta[axes + 1]),
        float(theta[axes + 2]),
        math.exp(theta[axes + 3]),
        -float(values[best]),
    )


def _start(
    axes: int,
    *,
    length: float,
    noise: float,
    delta: float,
    signal: float = 1.0,
    trend: float = 1e-2,
) -> Floats:
    weight = -2.0 * math.log(length) - 0.5 * math.log(axes)
    return np.array([*[weight] * axes, *map(math.log, (signal, noise, delta, trend))])


class Posterior:
    """A fitted process at its trials, to which trials with believed values may be appended."""

    def __init__(self, found: Hyperparameters, features: Features, rows: Floats, y: Floats) -> None:
        self._features = features
        self._roots = np.sqrt(found.weights)[features.axis_of]
        self._signal, self._noise, self._trend = found.signal, found.noise, found.trend
        self.rates = np.sqrt(found.weights)  # 1 / length of each axis
        self.noise_deviation = math.sqrt(found.noise)
        self.log_delta = found.log_delta  # of the warp that made the values
        self._trials = features.of(rows)
        self._scaled = self._trials * self._roots
        self._squares = _squared_lengths(self._scaled)
        self._y = y
        kernel = self._kernels(self._trials)[0]
        kernel.flat[:: len(y) + 1] += self._noise + JITTER * self._signal
        self._inverse = triangular_inverse(_cholesky(kernel))
        self._alpha = self._inverse.T @ (self._inverse @ y)

    def __len__(self) -> int:
        return len(self._y)

    def append(self, row: Floats, y: float) -> None:
        """Append a trial. row: (axes,)."""
        n = len(self._y)
        trial = self._features.of(row[None])
        row = self._inverse @ self._kernels(trial)[0][0]
        own = self._prior(trial)[0] + JITTER * self._signal + self._noise
        last = math.sqrt(max(own - float(row @ row), 1e-10))
        inverse = np.zeros((n + 1, n + 1))
        inverse[:n, :n] = self._inverse
        inverse[n, :n] = -(row @ self._inverse) / last
        inverse[n, n] = 1.0 / last
        self._inverse = inverse
        self._trials = np.concatenate([self._trials, trial])
        self._scaled = np.concatenate([self._scaled, trial * self._roots])
        self._squares = _squared_lengths(self._scaled)
        self._y = np.append(self._y, y)
        self._alpha = inverse.T @ (inverse @ self._y)

    def _prior(self, at: Floats) -> Floats:
        """Return the variances of features before any trial."""
        found: Floats = self._signal + self._trend * (1.0 + _squared_lengths(at / EDGE)) ** 2
        return found

    def _kernels(self, at: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the kernel between features and trials, and its derivatives.

        The derivatives are by the squared distances, and by the products of the features.
        """
        kernel, slope = matern(squared_distances(at * self._roots, self._scaled, self._squares))
        kernel *= self._signal
        slope *= self._signal
        products = trend_products(at, self._trials)
        kernel += self._trend * products * products
        products *= 2.0 * EDGE**-2 * self._trend
        return kernel, slope, products

    def means(self, rows: Floats) -> Floats:
        """Return the means of `predict`, in a fraction of its time."""
        return self._kernels(self._features.of(rows))[0] @ self._alpha

    def mean_slopes(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return the means of `predict_slopes` and their gradients, in a fraction of its time."""
        at = self._features.of(rows)
        kernel, slope, by_products = self._kernels(at)
        pulled = self._pullback(at, slope * self._alpha, by_products * self._alpha)
        return kernel @ self._alpha, self._features.pullback(rows, pulled)

    def predict(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return means and standard deviations, without the noise."""
        mean, deviation = np.empty(len(rows)), np.empty(len(rows))
        at = self._features.of(rows)
        step = max(16, AT_A_TIME // len(self))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            kernel = self._kernels(at[part])[0]
            mean[part] = kernel @ self._alpha
            deviation[part] = self._deviations(at[part], kernel @ self._inverse.T)
        return mean, deviation

    def _deviations(self, at: Floats, explained: Floats) -> Floats:
        left = self._prior(at) - _squared_lengths(explained)
        found: Floats = np.sqrt(np.maximum(left, LEAST_VARIANCE))
        return found

    def predict_slopes(self, rows: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return means and standard deviations, and the gradients of both by the places.

        The gradients are (rows, axes).
        """
        at = self._features.of(rows)
        kernel, slope, by_products = self._kernels(at)
        explained = kernel @ self._inverse.T
        deviations = self._deviations(at, explained)
        mean_slope = self._pullback(at, slope * self._alpha, by_products * self._alpha)
        # Half the gradient of the variance: that of its prior, less what the trials explain.
        solved = explained @ self._inverse
        half = -self._pullback(at, slope * solved, by_products * solved)
        by_own = 2.0 * EDGE**-2 * self._trend * (1.0 + _squared_lengths(at / EDGE))
        half += by_own[:, None] * at
        return (
            kernel @ self._alpha,
            deviations,
            self._features.pullback(rows, mean_slope),
            self._features.pullback(rows, half / deviations[:, None]),
        )

    def _pullback(self, at: Floats, by_squares: Floats, by_products: Floats) -> Floats:
        """Return a gradient by features.

        It is that of a sum over trials of the derivatives by distances², and by products.
        """
        pulled = at * self._roots * by_squares.sum(axis=1)[:, None] - by_squares @ self._scaled
        gradient: Floats = 2.0 * pulled * self._roots
        gradient += by_products @ self._trials
        return gradient
