"""The regression behind the curve rule: the final loss as a linear function of the curve so far. This imports NumPy.

Peers weigh more the nearer their loss at the step is to the trial's. The spread is that of each peer's prediction from
the others (leave-one-out), so that a step from which little can be said has a wide one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suggest.curves import Curve

Numbers = NDArray[np.float64]
RIDGE = 1e-3  # of standardised features
TINY = 1e-9  # what rounding may do
LEAST = 5  # peers that have begun at the step, below which nothing is predicted


@dataclass(frozen=True, slots=True)
class Predicted:
    """A normal distribution of the final loss."""

    loss: float
    deviation: float

    def chance_below(self, loss: float) -> float:
        return 0.5 * math.erfc((self.loss - loss) / (self.deviation * math.sqrt(2)))


def predict(curve: Curve, peers: Sequence[tuple[Curve, float]], sign: float) -> Predicted | None:
    """peers: their whole curves and final losses. sign: turns a value of a curve into a loss. None: too few peers."""
    step = curve.steps[-1]
    rows, finals = [], []
    for peer, final in peers:
        if peer.steps[0] <= step:
            rows.append(features(peer, step, sign))
            finals.append(final)
    if len(rows) < LEAST:
        return None
    own, seen, ends = np.array(features(curve, step, sign)), np.array(rows), np.array(finals)
    # A diverging loss says that it is bad; how bad must not decide the others' slope.
    low, high = np.quantile(ends, [0.0, 0.75])
    reach = 3 * (high - low)
    own, seen, ends = (
        np.clip(np.nan_to_num(each, nan=math.inf), low - reach, high + reach) for each in (own, seen, ends)
    )
    spread = np.maximum(seen.std(axis=0), TINY * (1 + abs(high)))
    x = np.column_stack([np.ones(len(seen)), (seen - own) / spread])
    weights = 0.1 + np.exp(-0.5 * x[:, 1] ** 2)
    normal = (x.T * weights) @ x + RIDGE * len(x) * np.diag([0.0, *np.ones(x.shape[1] - 1)])
    inverse = np.linalg.pinv(normal)
    slopes = inverse @ (x.T * weights) @ ends
    leverage = np.minimum(weights * np.einsum("ij,jk,ik->i", x, inverse, x), 0.9)
    left_out = (ends - x @ slopes) / (1 - leverage)
    variance = float(np.average(left_out**2, weights=weights) * (1 + max(0.0, inverse[0, 0])))
    return Predicted(float(slopes[0]), max(math.sqrt(variance), TINY * (1 + abs(high))))


def features(curve: Curve, step: int, sign: float) -> list[float]:
    """The loss at the step, the lowest up to it, and that at half of it; infinite where there is none."""
    at, half = bisect_right(curve.steps, step), bisect_right(curve.steps, step // 2)
    # A copy of what is looked at: an array that lends its memory cannot grow.
    losses = sign * np.array(curve.values[:at])
    lowest = float(np.fmin.reduce(losses))
    return [float(losses[-1]), math.inf if math.isnan(lowest) else lowest, float(losses[half - 1 if half else 0])]
