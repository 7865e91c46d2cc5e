"""The regression behind the curve rule: the final loss as a linear function of the curve so far.

Imports NumPy.

Peers whose loss at the step is closer to the trial's have a larger weight.
The standard deviation is that of the leave-one-out errors of the peers, so
it is large at a step that says little about the end.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from suggest.curves import Curve

RIDGE = 1e-3  # ridge penalty on the standardized features
TINY = 1e-9  # relative rounding error
# Larger losses are clipped to this, because their squares would overflow.
MOST = 1e100
# Peers with a value at the step that a prediction needs.
LEAST = 5


@dataclass(frozen=True, slots=True)
class Predicted:
    """The predicted normal distribution of the final loss."""

    loss: float
    deviation: float

    def chance_below(self, loss: float) -> float:
        return 0.5 * math.erfc((self.loss - loss) / (self.deviation * math.sqrt(2)))


def predict(curve: Curve, peers: Sequence[tuple[Curve, float]], sign: float) -> Predicted | None:
    """Predict the final loss of a curve; None if there are too few peers.

    Args:
        peers: The complete curves and final losses of other trials.
        sign: The factor that turns a value of a curve into a loss.
    """
    step = curve.steps[-1]
    peers = [(peer, final) for peer, final in peers if peer.steps[0] <= step]
    if len(peers) < LEAST:
        return None
    own = np.array(features(curve, step, sign))
    observed = np.array([features(peer, step, sign) for peer, _ in peers])
    ends = np.clip([final for _, final in peers], -MOST, MOST)
    # Clip diverging losses: that they are bad matters, but their size must not determine the slope.
    low, high = np.quantile(ends, [0.0, 0.75])
    reach = 3 * (high - low)

    def clipped(losses: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.clip(np.nan_to_num(losses, nan=math.inf), low - reach, high + reach)

    own = clipped(own)
    observed = clipped(observed)
    ends = clipped(ends)
    least = TINY * (1 + abs(high))
    spread = np.maximum(observed.std(axis=0), least)
    standardized = (observed - own) / spread
    x = np.column_stack([np.ones(len(observed)), standardized])
    weights = 0.1 + np.exp(-0.5 * x[:, 1] ** 2)
    # The constant has no penalty.
    penalized = np.ones(x.shape[1])
    penalized[0] = 0.0
    penalty = RIDGE * len(x) * np.diag(penalized)
    weighted = x.T * weights
    inverse = np.linalg.pinv(weighted @ x + penalty)
    slopes = inverse @ weighted @ ends
    leverage = weights * np.einsum("ij,jk,ik->i", x, inverse, x)
    left_out = (ends - x @ slopes) / (1 - np.minimum(leverage, 0.9))
    error = np.average(left_out**2, weights=weights)
    variance = float(error * (1 + max(0.0, inverse[0, 0])))
    return Predicted(float(slopes[0]), max(math.sqrt(variance), least))


def features(curve: Curve, step: int, sign: float) -> list[float]:
    """Return the loss at the step, the lowest loss up to it, and the loss at half the step.

    Infinite if missing.
    """
    at, half = bisect_right(curve.steps, step), bisect_right(curve.steps, step // 2)
    # Copy, because an array cannot grow while NumPy uses its memory.
    losses = sign * np.array(curve.values[:at])
    lowest = float(np.fmin.reduce(losses))
    return [
        float(losses[-1]),
        math.inf if math.isnan(lowest) else lowest,
        float(losses[half - 1 if half else 0]),
    ]
