"""What a fitted Gaussian process says of the best trial and of what is left to gain.

Arrays in, numbers out.

The regret is bounded as by Makarova et al. 2022, "Automatic termination for
hyperparameter optimization", equation 5: the least upper bound of a trial,
less the least lower bound of any point. Points are looked for among
candidates, so the bound may miss a narrow optimum that no trial has come near.
"""

from __future__ import annotations

import math

import numpy as np

from suggest.estimate import Estimate
from suggest.samplers.gp_process import Posterior
from suggest.samplers.gp_space import Places
from suggest.samplers.gp_warp import unwarped
from suggest.samplers.normal import Flags, Floats, Indexes

# candidates; the best trials near which they are drawn.
ANYWHERE, NEAR, CENTERS = 2000, 1000, 8
INTERVAL = 1.959964  # standard deviations of a 95 % interval
DOUBT = 0.1  # the probability that the bound does not hold


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
    candidates = _candidates(places, rows[np.argsort(mean, kind="stable")[:CENTERS]], rng)
    other_mean, other_deviation = process.predict(candidates)
    width = math.sqrt(_beta(len(places.axes), len(rows)))
    most = float((mean + width * deviation)[succeeded].min())
    least = min(
        float((other_mean - width * other_deviation).min()), float((mean - width * deviation).min())
    )
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


def _candidates(places: Places, centers: Floats, rng: np.random.Generator) -> Floats:
    anywhere = places.uniform(rng.random((ANYWHERE, places.size)))
    drawn = rng.integers(0, len(centers), NEAR)
    near = places.moved(centers[drawn], rng)
    rows = np.concatenate([anywhere, near])
    return places.completed(rows, rng.random(rows.shape))


def _beta(axes: int, trials: int) -> float:
    """Return the squared width of the bounds in standard deviations.

    Srinivas et al. 2010, theorem 1, divided by 5 as in their experiments.
    """
    return 2.0 * math.log(axes * trials**2 * math.pi**2 / (6.0 * DOUBT)) / 5.0
