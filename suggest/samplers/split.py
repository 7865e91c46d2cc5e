"""Which trials TPE counts as good, and their weights: Optuna's rules, on arrays.

Pure functions; a trial is its position in arrays ordered by trial number.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from suggest.samplers.normal import Floats, Indexes
from suggest.trial import Trial, TrialState

MOST_GOOD = 25
AS_RECENT = 25  # so many of the most recent trials count fully


def rank(trial: Trial, sign: float) -> tuple[float, float, float]:
    """What good trials are least in; of equals, the smaller number.

    Succeeded ones come first, by their loss; then pruned ones, those that came farther first; last those that were
    pruned without a value.
    """
    if trial.state is TrialState.SUCCEEDED:
        return 0.0, 0.0 if trial.value is None else sign * trial.value, 0.0
    if trial.value is None or trial.step is None:
        return 1.0, 1.0, 0.0
    return 1.0, -float(trial.step), sign * trial.value


def good_and_other(ranks: Floats, share: float) -> tuple[Indexes, Indexes]:
    """ranks: (3, trials). This share of them are good; both in the order of the trials."""
    count = ranks.shape[1]
    order = np.lexsort(ranks[::-1])
    good = min(math.ceil(share * count), MOST_GOOD)
    return np.sort(order[:good]), np.sort(order[good:])


@functools.lru_cache(maxsize=64)
def shares(count: int) -> Floats:
    """The weights of so many trials, in their order, and of the prior after them; their sum is 1."""
    weights = np.ones(count + 1)
    if count >= AS_RECENT:
        weights[: count - AS_RECENT] = np.linspace(1.0 / count, 1.0, num=count - AS_RECENT)
    weights /= weights.sum()
    weights.flags.writeable = False  # everybody gets the same array
    return weights
