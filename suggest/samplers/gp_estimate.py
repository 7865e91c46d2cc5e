"""What a fitted Gaussian process says of the best trial and of what is left to gain.

Arrays in, numbers out.

The bound of the regret is that of Makarova et al. 2022, "Automatic termination for hyperparameter
optimization", equation 5: the least upper bound of a trial, minus the least lower bound of any
point. The search for that point may miss a narrow optimum that no trial has come near.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from suggest.estimate import Estimate
from suggest.samplers.gp_acquisition import Acquisition, believe
from suggest.samplers.gp_process import Posterior
from suggest.samplers.gp_search import CandidateSearch
from suggest.samplers.gp_space import Places
from suggest.samplers.gp_warp import unwarped
from suggest.samplers.normal import Flags, Floats, Indexes

CENTERS = 8  # the best trials near which points are looked for
INTERVAL = 1.959964  # standard deviations of a 95 % interval
DOUBT = 0.1  # the probability that the bounds do not hold


def estimate(
    process: Posterior,
    places: Places,
    *,
    numbers: Indexes,
    rows: Floats,
    succeeded: Flags,
    losses: Floats,
    sign: float,
    rng: np.random.Generator,
) -> Estimate | None:
    """Return the estimate; None if values are too large for it.

    Args:
        process: Fitted to the warped losses of the trials.
        numbers, rows, succeeded, losses: Of the trials, (trials,) or (trials, axes).
        sign: 1 to minimize, -1 to maximize.
    """
    mean, deviation = process.predict(rows)
    best = int(np.argmin(np.where(succeeded, mean, np.inf)))
    width = math.sqrt(_beta(len(places.axes), len(rows)))
    most = float((mean + width * deviation)[succeeded].min())
    bound = _LowerBound(process, rows[np.argsort(mean, kind="stable")[:CENTERS]], width)
    lowest = CandidateSearch(places, Acquisition(bound, [], rows, None), rows[:0]).best({}, rng)
    every = np.concatenate([rows, lowest[None]])
    least = -float(bound.promise(every).max())
    center = float(mean[best])
    spread = INTERVAL * float(deviation[best])
    noise = process.noise_deviation
    warped = np.array([center, center - spread, center + spread, center + noise, most, least])
    value, low, high, noisy, most, least = unwarped(warped, losses, process.log_delta).tolist()
    ends = sorted((sign * low, sign * high))
    found = Estimate(
        trial=int(numbers[best]),
        value=sign * value,
        low=ends[0],
        high=ends[1],
        noise=noisy - value,
        noise_share=min(1.0, noise * noise),
        regret_bound=max(0.0, most - least),
        trials=len(rows),
    )
    finite = (found.value, found.low, found.high, found.noise, found.regret_bound)
    return found if all(map(math.isfinite, finite)) else None


@dataclass(frozen=True, slots=True)
class _LowerBound:
    """Minus the lower bound of the values. A search for its maximum finds the least lower bound.

    near: rows of trials near which to look. width: of the bound, in standard deviations.
    """

    process: Posterior
    near: Floats
    width: float

    def promise(self, rows: Floats) -> Floats:
        mean, deviation = self.process.predict(rows)
        return self.width * deviation - mean

    def slopes(self, rows: Floats) -> tuple[Floats, Floats]:
        mean, deviation, mean_slope, deviation_slope = self.process.predict_slopes(rows)
        return self.width * deviation - mean, self.width * deviation_slope - mean_slope

    def add_pending(self, row: Floats, *, kept: bool) -> None:
        believe(self.process, row)

    def centers(self) -> Floats:
        return self.near

    @property
    def rates(self) -> Floats:
        return self.process.rates


def _beta(axes: int, trials: int) -> float:
    """Return the squared width of the bounds in standard deviations.

    Srinivas et al. 2010, theorem 1, divided by 5 as in their experiments.
    """
    return 2.0 * math.log(axes * trials**2 * math.pi**2 / (6.0 * DOUBT)) / 5.0
