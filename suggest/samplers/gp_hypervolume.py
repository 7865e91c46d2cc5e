"""The expected improvement of the dominated hypervolume, for two and three objectives.

Pure functions of arrays.

What the front does not dominate is cut into cells, boxes from `low` to `high`. A vector of losses y
adds the volume prod_k (high_k - max(low_k, y_k))+ to a cell, so that the expectation under
independent normals is a product of differences of one-dimensional expected improvements (Yang et
al. 2019, Efficient computation of expected hypervolume improvement). All is computed in logarithms,
so that points far from the front have slopes too (Ament et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from suggest import pareto
from suggest.samplers.gp_improvement import log_improvement
from suggest.samplers.normal import Floats, Indexes
from suggest.samplers.split import most_spread

# By the number of objectives: more cells take long and change little.
MOST_IN_FRONT = {2: 100, 3: 24}
# Of all losses: the extent of a front in an objective is at least this share.
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


def cells(losses: Floats, beyond: float) -> Cells:
    """Return the cells for losses, (trials, objectives), as far as they dominate the reference
    point.
    """
    count = losses.shape[1]
    front = np.array(pareto.front(losses.tolist()), dtype=np.intp)
    if len(front) > MOST_IN_FRONT[count]:
        front = np.sort(front[most_spread(losses[front].T, MOST_IN_FRONT[count])])
    points = losses[front]
    extent = np.maximum(
        np.ptp(points, axis=0), LEAST_EXTENT * np.maximum(np.ptp(losses, axis=0), 1.0)
    )
    # With a reference just behind the front, nothing would be gained by making it longer.
    reference = np.maximum(points.max(axis=0) + beyond * extent, losses.max(axis=0))
    bounds = tuple(
        np.array([-np.inf, *np.unique(points[:, k]), reference[k]]) for k in range(count)
    )
    places = np.stack([np.searchsorted(bounds[k], points[:, k]) for k in range(count)], axis=1)
    last = [len(each) - 1 for each in bounds]
    boxes = _strips(places, last) if count == 2 else _slabs(places, last)
    return Cells(
        bounds, np.array([low for low, _ in boxes]), np.array([high for _, high in boxes]), front
    )


_Box = tuple[tuple[int, ...], tuple[int, ...]]


def _strips(places: Indexes, last: Sequence[int]) -> list[_Box]:
    """Return the boxes of two objectives. places: indexes of bounds.

    Some points may dominate others.
    """
    found: list[_Box] = []
    start, top = 0, last[1]
    for first, second in sorted(map(tuple, places.tolist())):
        if second < top:
            if first > start:
                found.append(((start, 0), (first, top)))
            start, top = first, second
    found.append(((start, 0), (last[0], top)))
    return found


def _slabs(places: Indexes, last: Sequence[int]) -> list[_Box]:
    """Return the boxes of three objectives: strips between neighboring bounds of the third."""
    found: list[_Box] = []
    for bottom in range(last[2]):
        below = places[places[:, 2] <= bottom, :2]
        found.extend(((*low, bottom), (*high, bottom + 1)) for low, high in _strips(below, last))
    return found


def log_hypervolume_improvement(
    known: Cells, means: Floats, deviations: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the logarithm for each row, and its derivatives by means and deviations, all (rows,
    objectives).
    """
    step = max(1, AT_A_TIME // len(known.low))
    parts = [
        _log_improvement_of_rows(
            known, means[start : start + step], deviations[start : start + step]
        )
        for start in range(0, len(means), step)
    ]
    value, by_mean, by_deviation = (np.concatenate(each) for each in zip(*parts, strict=True))
    return value, by_mean, by_deviation


def _log_improvement_of_rows(
    known: Cells, means: Floats, deviations: Floats
) -> tuple[Floats, Floats, Floats]:
    rows, objectives = means.shape
    total = np.zeros((rows, len(known.low)))
    sides = []
    for k in range(objectives):
        bound = known.bounds[k]
        mean, deviation = means[:, k, None], deviations[:, k, None]
        # Of -inf the improvement is 0.
        u = (bound[1:] - mean) / deviation
        log_gain, slope = (each.reshape(u.shape) for each in log_improvement(u.ravel()))
        none = np.full((rows, 1), -np.inf)
        gain = np.concatenate([none, log_gain + np.log(deviation)], axis=1)
        # The improvement is deviation * h(u), and `slope` is h'(u) / h(u).
        by_mean = np.concatenate([np.zeros((rows, 1)), -slope / deviation], axis=1)
        by_deviation = np.concatenate([np.zeros((rows, 1)), (1.0 - slope * u) / deviation], axis=1)
        high, low = known.high[:, k], known.low[:, k]
        # Of the part below `low`.
        share = np.exp(np.minimum(gain[:, low] - gain[:, high], -1e-12))
        rest = -np.expm1(np.minimum(gain[:, low] - gain[:, high], -1e-12))
        total += gain[:, high] + np.log(rest)
        sides.append(
            (
                (by_mean[:, high] - share * by_mean[:, low]) / rest,
                (by_deviation[:, high] - share * by_deviation[:, low]) / rest,
            )
        )
    most = total.max(axis=1, keepdims=True)
    weights = np.exp(total - most)
    sums = weights.sum(axis=1, keepdims=True)
    weights /= sums
    value = (most + np.log(sums))[:, 0]
    by_means = np.stack([(weights * side).sum(axis=1) for side, _ in sides], axis=1)
    by_deviations = np.stack([(weights * side).sum(axis=1) for _, side in sides], axis=1)
    return value, by_means, by_deviations
