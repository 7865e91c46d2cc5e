"""Minimize several smooth functions in boxes at once: projected L-BFGS, vectorized over the starts.

Each start has its own history and its own line search; NumPy's cost per call is paid once for all of them.
Deterministic. Nocedal and Wright 2006, algorithm 7.4 for the direction; backtracking until Armijo's condition holds
for the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from suggest.samplers.normal import Floats, Indexes

# Of points (rows, dimensions), which are those of the starts `which`: the values (rows) and the gradients.
Function = Callable[[Floats, Indexes], tuple[Floats, Floats]]

MEMORY = 8  # pairs of the history
ARMIJO = 1e-4
HALVINGS = 12  # shorter steps are tried so many times
CURVATURE = 1e-10


@dataclass(frozen=True, slots=True)
class Minima:
    points: Floats
    values: Floats


def minimize(
    function: Function, starts: Floats, low: Floats, high: Floats, *, iterations: int, tolerance: float
) -> Minima:
    """starts: (rows, dimensions). low, high: (dimensions,) or as starts. tolerance: a smaller gain in value ends it."""
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
        nearer, nearer_value, nearer_gradient = _search(function, x, value, direction, free, low, high, which)
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
    """The inverse Hessian, as the history has it, times the gradient: the two loops."""
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
        scale = np.where(good[:, k], curvature[:, k] / np.where(good[:, k], square[:, k], 1.0), scale)
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
    """A step down for each; those that find none stay, with a gradient that is not used again."""
    reached, reached_value = x.copy(), value.copy()
    reached_gradient = gradient.copy()
    length = np.ones(len(x))
    left = np.arange(len(x))
    for _ in range(HALVINGS):
        trial = np.clip(x[left] + length[left, None] * direction[left], low[which[left]], high[which[left]])
        trial_value, trial_gradient = function(trial, which[left])
        down = np.einsum("ij,ij->i", gradient[left], trial - x[left])
        enough = trial_value <= value[left] + ARMIJO * np.minimum(down, 0.0)
        done = left[enough]
        reached[done], reached_value[done], reached_gradient[done] = trial[enough], trial_value[enough], trial_gradient[enough]  # fmt: skip # noqa: E501
        # The minimum of the parabola through what is known, within reason; NaN and infinity: a tenth.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            best = -0.5 * down / (trial_value - value[left] - down)
        shorter = np.where(np.isfinite(best), np.clip(best, 0.1, 0.5), 0.1)
        length[left] *= shorter
        left = left[~enough]
        if not left.size:
            break
    return reached, reached_value, reached_gradient
