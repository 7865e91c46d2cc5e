"""Minimize a smooth function in a box from several starting points: projected L-BFGS,
vectorized over the starts.

Each start has its own history and line search, and NumPy's overhead per call is paid once for all
of them. Deterministic. The direction is algorithm 7.4 of Nocedal and Wright 2006; the step is found
by backtracking until Armijo's condition holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from suggest.samplers.normal import Flags, Floats, Indexes

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


def minimize(
    function: Function,
    starts: Floats,
    low: Floats,
    high: Floats,
    *,
    iterations: int,
    tolerance: float,
) -> tuple[Floats, Floats]:
    """Return the minimum that each start leads to: the points, and their values.

    Args:
        starts: (rows, dimensions).
        low, high: (dimensions,) or (rows, dimensions).
        iterations: The most iterations of a start.
        tolerance: A start ends at the first iteration that improves its value by less.
    """
    low, high = np.broadcast_to(low, starts.shape), np.broadcast_to(high, starts.shape)
    x = np.clip(starts, low, high)
    which = np.arange(len(x))
    value, gradient = function(x, which)
    found, found_value = x.copy(), value.copy()
    steps = np.zeros((len(x), 0, x.shape[1]))
    changes = np.zeros_like(steps)
    for _ in range(iterations):
        at_low = (x <= low[which]) & (gradient > 0)
        at_high = (x >= high[which]) & (gradient < 0)
        fixed = at_low | at_high
        free = np.where(fixed, 0.0, gradient)
        direction = _direction(free, fixed, steps, changes)
        line = _Line(x, value, direction, free, low[which], high[which])
        nearer = _search(function, line, which)
        gain = value - nearer.value
        step, change = nearer.x - x, nearer.gradient - gradient
        x, value, gradient = nearer.x, nearer.value, nearer.gradient
        found[which], found_value[which] = x, value
        keep = gain > tolerance
        if not keep.any():
            break
        steps = np.concatenate([steps[:, -MEMORY + 1 :], step[:, None]], axis=1)
        changes = np.concatenate([changes[:, -MEMORY + 1 :], change[:, None]], axis=1)
        if not keep.all():
            which, x, value, gradient = which[keep], x[keep], value[keep], gradient[keep]
            steps, changes = steps[keep], changes[keep]
    return found, found_value


def _direction(free: Floats, fixed: Flags, steps: Floats, changes: Floats) -> Floats:
    """Return the directions of a line search: downhill, along the bounds where they are reached."""
    direction = -_product(free, steps, changes)
    direction[fixed] = 0.0
    uphill = ~(_sums(direction, free) < 0)
    direction[uphill] = -free[uphill]
    if not steps.shape[1]:
        length = np.sqrt(_sums(direction, direction))
        direction /= np.maximum(length, 1.0)[:, None]
    return direction


def _product(gradient: Floats, steps: Floats, changes: Floats) -> Floats:
    """Return the history's estimate of the inverse Hessian times the gradient.

    The two-loop recursion of L-BFGS.
    """
    count = steps.shape[1]
    curvature = np.einsum("ikj,ikj->ik", steps, changes)
    square = np.einsum("ikj,ikj->ik", changes, changes)
    good = curvature > CURVATURE * np.sqrt(square * np.einsum("ikj,ikj->ik", steps, steps))
    inverse = np.where(good, 1.0 / np.where(good, curvature, 1.0), 0.0)
    q = gradient.copy()
    weights = np.zeros((len(q), count))
    for k in reversed(range(count)):
        weights[:, k] = inverse[:, k] * _sums(steps[:, k], q)
        q -= weights[:, k, None] * changes[:, k]
    scale = np.ones(len(q))
    for k in range(count):
        newest = curvature[:, k] / np.where(good[:, k], square[:, k], 1.0)
        scale = np.where(good[:, k], newest, scale)
    q *= scale[:, None]
    for k in range(count):
        back = inverse[:, k] * _sums(changes[:, k], q)
        q += (weights[:, k] - back)[:, None] * steps[:, k]
    return q


def _sums(a: Floats, b: Floats) -> Floats:
    """Return the inner products of the rows of `a` and `b`."""
    products: Floats = np.einsum("ij,ij->i", a, b)
    return products


@dataclass(frozen=True, slots=True)
class _Line:
    """Where line searches begin, in which direction they go, and within which bounds."""

    x: Floats
    value: Floats
    direction: Floats
    gradient: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class _Reached:
    x: Floats
    value: Floats
    gradient: Floats


def _search(function: Function, line: _Line, which: Indexes) -> _Reached:
    """Return the points, values and gradients after line searches.

    A start that finds no lower value keeps its point. Its gradient is not used again.
    """
    reached = _Reached(line.x.copy(), line.value.copy(), line.gradient.copy())
    length = np.ones(len(line.x))
    left = np.arange(len(line.x))
    for _ in range(HALVINGS):
        start, value = line.x[left], line.value[left]
        moved = start + length[left, None] * line.direction[left]
        trial = np.clip(moved, line.low[left], line.high[left])
        trial_value, trial_gradient = function(trial, which[left])
        down = _sums(line.gradient[left], trial - start)
        enough = trial_value <= value + ARMIJO * np.minimum(down, 0.0)
        done = left[enough]
        reached.x[done] = trial[enough]
        reached.value[done] = trial_value[enough]
        reached.gradient[done] = trial_gradient[enough]
        # Shrink to the minimum of the interpolating parabola, but by a factor from 0.1 to 0.5. A
        # value that is not finite gives a tenth.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            best = -0.5 * down / (trial_value - value - down)
        shorter = np.where(np.isfinite(best), np.clip(best, 0.1, 0.5), 0.1)
        length[left] *= shorter
        left = left[~enough]
        if not left.size:
            break
    return reached
