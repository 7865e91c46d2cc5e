"""Minimize a smooth function in a box from several starting points: projected L-BFGS, vectorized
over the starts.

Each start has its own history and line search, and NumPy's overhead per call is paid once for all
of them. Deterministic. The direction is algorithm 7.4 of Nocedal and Wright 2006; the step is found
by backtracking until Armijo's condition holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from suggest.samplers.normal import Floats, Indexes

# Takes points (rows, dimensions) and the indexes of their starts; returns values (rows,) and
# gradients as the points.
Function = Callable[[Floats, Indexes], tuple[Floats, Floats]]

MEMORY = 8  # (step, gradient change) pairs in the history
# The least decrease of a step, as a share of what the slope predicts.
ARMIJO = 1e-4
# Steps that a line search tries, each shorter than the one before.
HALVINGS = 12
# Pairs with less curvature than this are ignored.
CURVATURE = 1e-10


@dataclass(frozen=True, slots=True)
class Minima:
    points: Floats
    values: Floats


def minimize(
    function: Function,
    starts: Floats,
    low: Floats,
    high: Floats,
    *,
    iterations: int,
    tolerance: float,
) -> Minima:
    """Return the minimum that each start leads to.

    Args:
        starts: (rows, dimensions).
        low, high: (dimensions,) or (rows, dimensions).
        iterations: The most iterations of a start.
        tolerance: A start ends at the first iteration that improves its value by less.
    """
    low, high = np.broadcast_to(low, starts.shape), np.broadcast_to(high, starts.shape)
    x = np.clip(starts, low, high)
    every = np.arange(len(x))
    value, gradient = function(x, every)
    found, found_value = x.copy(), value.copy()
    steps = np.zeros((len(x), 0, x.shape[1]))
    changes = np.zeros_like(steps)
    which = every
    for _ in range(iterations):
        fixed = ((x <= low[which]) & (gradient > 0)) | ((x >= high[which]) & (gradient < 0))
        free = np.where(fixed, 0.0, gradient)
        direction = -_product(free, steps, changes)
        direction[fixed] = 0.0
        slope = np.einsum("ij,ij->i", direction, free)
        uphill = ~(slope < 0)
        direction[uphill], slope[uphill] = -free[uphill], -np.einsum("ij,ij->i", free, free)[uphill]
        if not steps.shape[1]:
            length = np.sqrt(np.einsum("ij,ij->i", direction, direction))
            direction /= np.maximum(length, 1.0)[:, None]
        nearer, nearer_value, nearer_gradient = _search(
            function, x, value, direction, free, low, high, which
        )
        gain = value - nearer_value
        step, change = nearer - x, nearer_gradient - gradient
        x, value, gradient = nearer, nearer_value, nearer_gradient
        found[which], found_value[which] = x, value
        keep = gain > tolerance
        if not keep.any():
            break
        steps = np.concatenate([steps[:, -MEMORY + 1 :], step[:, None]], axis=1)
        changes = np.concatenate([changes[:, -MEMORY + 1 :], change[:, None]], axis=1)
        if not keep.all():
            which, x, value, gradient = which[keep], x[keep], value[keep], gradient[keep]
            steps, changes = steps[keep], changes[keep]
    return Minima(found, found_value)


def _product(gradient: Floats, steps: Floats, changes: Floats) -> Floats:
    """Return the history's estimate of the inverse Hessian times the gradient: the L-BFGS two-loop
    recursion.
    """
    count = steps.shape[1]
    curvature = np.einsum("ikj,ikj->ik", steps, changes)
    square = np.einsum("ikj,ikj->ik", changes, changes)
    good = curvature > CURVATURE * np.sqrt(square * np.einsum("ikj,ikj->ik", steps, steps))
    inverse = np.where(good, 1.0 / np.where(good, curvature, 1.0), 0.0)
    q = gradient.copy()
    weights = np.zeros((len(q), count))
    scale = np.ones(len(q))
    for k in reversed(range(count)):
        weights[:, k] = inverse[:, k] * np.einsum("ij,ij->i", steps[:, k], q)
        q -= weights[:, k, None] * changes[:, k]
    for k in range(count):
        scale = np.where(
            good[:, k], curvature[:, k] / np.where(good[:, k], square[:, k], 1.0), scale
        )
    q *= scale[:, None]
    for k in range(count):
        back = inverse[:, k] * np.einsum("ij,ij->i", changes[:, k], q)
        q += (weights[:, k] - back)[:, None] * steps[:, k]
    return q


def _search(
    function: Function,
    x: Floats,
    value: Floats,
    direction: Floats,
    gradient: Floats,
    low: Floats,
    high: Floats,
    which: Indexes,
) -> tuple[Floats, Floats, Floats]:
    """Return the points, values and gradients after a line search along `direction`.

    A start that finds no lower value keeps its point. Its gradient is not used again.
    """
    reached, reached_value = x.copy(), value.copy()
    reached_gradient = gradient.copy()
    length = np.ones(len(x))
    left = np.arange(len(x))
    for _ in range(HALVINGS):
        trial = np.clip(
            x[left] + length[left, None] * direction[left], low[which[left]], high[which[left]]
        )
        trial_value, trial_gradient = function(trial, which[left])
        down = np.einsum("ij,ij->i", gradient[left], trial - x[left])
        enough = trial_value <= value[left] + ARMIJO * np.minimum(down, 0.0)
        done = left[enough]
        reached[done], reached_value[done], reached_gradient[done] = (
            trial[enough],
            trial_value[enough],
            trial_gradient[enough],
        )
        # Shrink to the minimum of the interpolating parabola, but by a factor from 0.1 to 0.5. A
        # value that is not finite gives a tenth.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            best = -0.5 * down / (trial_value - value[left] - down)
        shorter = np.where(np.isfinite(best), np.clip(best, 0.1, 0.5), 0.1)
        length[left] *= shorter
        left = left[~enough]
        if not left.size:
            break
    return reached, reached_value, reached_gradient
