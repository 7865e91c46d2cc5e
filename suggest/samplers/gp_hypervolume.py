"""The expected improvement of the dominated hypervolume, for two and three objectives.

Pure functions of arrays.

What the front does not dominate is cut into cells, boxes from `low` to `high`. A vector of losses y
adds the volume prod_k (high_k - max(low_k, y_k))+ to a cell, so that the expectation under
independent normals is a product of differences of one-dimensional expected improvements (Yang et
al. 2019, Efficient computation of expected hypervolume improvement). Everything is computed in
logarithms, so that points far from the front have slopes, too (Ament et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from suggest import pareto
from suggest.samplers.normal import Floats, Indexes, log_improvement
from suggest.samplers.split import most_spread

# The most points of a front, by the number of objectives: more cells take long and change little.
MOST_IN_FRONT = {2: 100, 3: 24}
# The reference point is this share of the front's extent behind its worst losses.
BEYOND = 0.1
# The extent of a front in an objective counts as at least this share of that of all losses.
LEAST_EXTENT = 1e-3
AT_A_TIME = 2**17  # numbers of a block


@dataclass(frozen=True, slots=True)
class Cells:
    """Boxes that cover what the front does not dominate.

    bounds: Of each objective, ascending; the first is -inf, the last the reference point's.
    low, high: The sides of each box as indexes of bounds, (cells, objectives).
    front: The indexes of the losses that no other one dominates.
    """

    bounds: tuple[Floats, ...]
    low: Indexes
    high: Indexes
    front: Indexes


def cells(losses: Floats) -> Cells:
    """Return the cells for losses, (trials, objectives), that dominate the reference point."""
    count = losses.shape[1]
    front = np.array(pareto.front(losses.tolist()), dtype=np.intp)
    if len(front) > MOST_IN_FRONT[count]:
        front = np.sort(front[most_spread(losses[front].T, MOST_IN_FRONT[count])])
    points = losses[front]
    least = LEAST_EXTENT * np.maximum(np.ptp(losses, axis=0), 1.0)
    extent = np.maximum(np.ptp(points, axis=0), least)
    # With a reference just behind the front, nothing would be gained by making it longer.
    reference = np.maximum(points.max(axis=0) + BEYOND * extent, losses.max(axis=0))
    bounds = []
    indexes = []
    for losses_of, end in zip(points.T, reference, strict=True):
        bound = np.array([-np.inf, *np.unique(losses_of), end])
        bounds.append(bound)
        indexes.append(np.searchsorted(bound, losses_of))
    last = [len(bound) - 1 for bound in bounds]
    boxes = _strips if count == 2 else _slabs
    low, high = zip(*boxes(np.stack(indexes, axis=1), last), strict=True)
    return Cells(tuple(bounds), np.array(low), np.array(high), front)


_Box = tuple[tuple[int, ...], tuple[int, ...]]


def _strips(indexes: Indexes, last: Sequence[int]) -> list[_Box]:
    """Return the boxes of two objectives.

    indexes: those of the bounds of each point. Some points may dominate others.
    """
    boxes: list[_Box] = []
    start, top = 0, last[1]
    for first, second in sorted(map(tuple, indexes.tolist())):
        if second < top:
            if first > start:
                boxes.append(((start, 0), (first, top)))
            start, top = first, second
    boxes.append(((start, 0), (last[0], top)))
    return boxes


def _slabs(indexes: Indexes, last: Sequence[int]) -> list[_Box]:
    """Return the boxes of three objectives: strips between neighboring bounds of the third."""
    boxes: list[_Box] = []
    for bottom in range(last[2]):
        below = indexes[indexes[:, 2] <= bottom, :2]
        for low, high in _strips(below, last):
            boxes.append(((*low, bottom), (*high, bottom + 1)))
    return boxes


def log_hypervolume_improvement(
    known: Cells, means: Floats, deviations: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the logarithm of the expected improvement of each row, (rows,), and its derivatives.

    Means, deviations and the derivatives by them: (rows, objectives).
    """
    step = max(1, AT_A_TIME // len(known.low))
    parts = []
    for start in range(0, len(means), step):
        rows = slice(start, start + step)
        parts.append(_log_improvement_of_rows(known, means[rows], deviations[rows]))
    value, by_mean, by_deviation = map(np.concatenate, zip(*parts, strict=True))
    return value, by_mean, by_deviation


@dataclass(frozen=True, slots=True)
class _Factor:
    """The logarithm of one objective's factor in the volume of each cell, and its derivatives.

    All are (rows, cells).
    """

    log: Floats
    by_mean: Floats
    by_deviation: Floats


def _log_improvement_of_rows(
    known: Cells, means: Floats, deviations: Floats
) -> tuple[Floats, Floats, Floats]:
    rows, objectives = means.shape
    factors = [
        _factor(known, k, means[:, k, None], deviations[:, k, None]) for k in range(objectives)
    ]
    total = np.zeros((rows, len(known.low)))
    for factor in factors:
        total += factor.log
    most = total.max(axis=1, keepdims=True)
    weights = np.exp(total - most)
    sums = weights.sum(axis=1, keepdims=True)
    weights /= sums
    value = (most + np.log(sums))[:, 0]
    by_means = [(weights * factor.by_mean).sum(axis=1) for factor in factors]
    by_deviations = [(weights * factor.by_deviation).sum(axis=1) for factor in factors]
    return value, np.stack(by_means, axis=1), np.stack(by_deviations, axis=1)


def _factor(known: Cells, k: int, mean: Floats, deviation: Floats) -> _Factor:
    """Return the factor of objective k. mean, deviation: (rows, 1)."""
    rows = len(mean)
    u = (known.bounds[k][1:] - mean) / deviation
    log_gain, slope = (each.reshape(u.shape) for each in log_improvement(u.ravel()))
    # The improvement is deviation * h(u), and `slope` is h'(u) / h(u). Of -inf, the first bound,
    # the improvement is 0.
    no_gain = np.full((rows, 1), -np.inf)
    no_slope = np.zeros((rows, 1))
    gain = np.concatenate([no_gain, log_gain + np.log(deviation)], axis=1)
    by_mean = np.concatenate([no_slope, -slope / deviation], axis=1)
    by_deviation = np.concatenate([no_slope, (1.0 - slope * u) / deviation], axis=1)
    high, low = known.high[:, k], known.low[:, k]
    log_share = np.minimum(gain[:, low] - gain[:, high], -1e-12)
    # The shares of the part below `low`, and of the part above it.
    share, rest = np.exp(log_share), -np.expm1(log_share)
    return _Factor(
        gain[:, high] + np.log(rest),
        (by_mean[:, high] - share * by_mean[:, low]) / rest,
        (by_deviation[:, high] - share * by_deviation[:, low]) / rest,
    )
