"""How much of its GPU-hours and money a search will have used when all its trials are done.

Before a trial has ended, only `timeout` bounds a trial. From then on, trials are expected to be
like those that have begun: the first of them is the canary. Of parallel trials, the short ones end
first, so the mean of those that have ended is too low while others run. A running trial therefore
counts as the mean of those that ran longer than it has until now: the estimate of Kaplan and Meier
(1958), in the form of Efron (1967, The two sample problem with censored data). While too many run
longer than all that have ended, nobody knows how long they run, and the forecast is a lower bound.

The 90 % interval is the prediction interval for the sum of m further observations after n (Hahn &
Meeker 1991, Statistical Intervals): m * mean +- t * s * m * sqrt(1/m + 1/n), with the smaller
variance of what is left of running trials. It holds for trials that are alike; a search that moves
to larger models changes them. The final stage is not in it. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.core.budget import spent_trials
from controller.core.model import ExperimentSpec
from controller.core.spending import HOUR_S, Spent
from controller.core.student import t_quantile
from suggest.trial import TrialState

CONFIDENCE = 0.9
LEAST_FOR_INTERVAL = 3
# A forecast is made several times a second.
MOST_TRIALS = 500
# A trial that has run longer than all that have ended runs so many times as long as until now, and
# at most so many of all trials are such ones in a forecast with an interval: see bench/forecast.py.
_OUTLASTING_FACTOR, _MOST_OUTLASTING = 1.5, 0.15


@dataclass(frozen=True, slots=True)
class Forecast:
    """What all trials will have used. seen: of how many trials it is known how long they ran.

    low, high: the ends of the 90 % interval; None with fewer than three. Without a trial,
    `expected` is what they use at most, if none is retried. at_least: too many trials run longer
    than all that have ended, so `expected` is a lower bound, and has no interval.
    """

    expected: Spent
    seen: int
    low: Spent | None = None
    high: Spent | None = None
    at_least: bool = False


def trials_left(most: int | None, counts: Mapping[TrialState, int]) -> int | None:
    """Return how many trials are not done, running ones too; most: of `budget.most_trials`."""
    if most is None:
        return None
    return max(0, most - spent_trials(counts) - counts.get(TrialState.PAUSED, 0))


def forecast(
    spec: ExperimentSpec,
    ended_s: Sequence[float],
    *,
    seen: int,
    left: int | None,
    running_s: Sequence[float],
    rate: Spent,
    spent: Spent,
) -> Forecast | None:
    """Return what will have been used; None if nothing bounds it.

    Args:
        ended_s: How long the trials that have ended ran, over all their attempts; at least those of
            the latest MOST_TRIALS.
        seen: How many have ended.
        left: The trials that are not done; None without a limit.
        running_s: How long each of those that run has run.
        rate: What an hour of an attempt uses.
        spent: What all attempts have used so far.
    """
    if left is None:
        return None

    def total(more_s: float) -> Spent:
        return spent + rate.times(max(0.0, more_s) / HOUR_S)

    to_begin = max(0, left - len(running_s))
    if not ended_s:
        limit_s = spec.trial.timeout_s
        if limit_s is None:
            return None
        rest_s = sum(max(0.0, limit_s - ran_s) for ran_s in running_s)
        return Forecast(total(to_begin * limit_s + rest_s), 0)
    times = _times_of(ended_s, running_s)
    at_least = times.outlasting > _MOST_OUTLASTING
    if at_least:
        times = _times_of(ended_s, running_s, factor=1.0)
    expected_s = times.rest_s + to_begin * times.mean_s
    if seen < LEAST_FOR_INTERVAL or left == 0 or at_least:
        return Forecast(total(expected_s), seen, at_least=at_least)
    degrees = len(ended_s) - 1
    # Each trial that is left differs from the mean, and all of them have the error of the mean.
    of_mean = left**2 * times.variance / len(ended_s)
    variance = times.rest_variance + to_begin * times.variance + of_mean
    margin_s = t_quantile(CONFIDENCE, degrees) * math.sqrt(variance)
    return Forecast(
        total(expected_s), seen, total(expected_s - margin_s), total(expected_s + margin_s)
    )


@dataclass(frozen=True, slots=True)
class _Times:
    """How long trials run.

    rest_s, rest_variance: of what is left of all running ones. outlasting: how many of all trials
    run longer than each that has ended, as a share.
    """

    mean_s: float
    variance: float
    rest_s: float
    rest_variance: float
    outlasting: float


def _times_of(
    ended_s: Sequence[float], running_s: Sequence[float], factor: float = _OUTLASTING_FACTOR
) -> _Times:
    """Return the moments of the durations; of at least one that has ended."""
    # The longest first. One that still runs will have run longer than one that ended by now.
    longest_first = sorted([*((s, 0) for s in ended_s), *((s, 1) for s in running_s)], reverse=True)
    count, sum_s, squares = 0, 0.0, 0.0
    rest_s = rest_variance = 0.0
    outlasting = 1.0
    for ran_s, runs in longest_first:
        if not runs:
            whole_s, square = ran_s, ran_s**2
            outlasting *= 1 - 1 / (count + 1)
        elif outlasting < 1:
            whole_s, square = sum_s / count, squares / count
        else:
            whole_s = ran_s * factor
            square = 2 * whole_s**2
        if runs:
            rest_s += whole_s - ran_s
            rest_variance += max(0.0, square - whole_s**2)
        count, sum_s, squares = count + 1, sum_s + whole_s, squares + square
    mean_s = sum_s / count
    variance = max(0.0, squares / count - mean_s**2) * len(ended_s) / max(1, len(ended_s) - 1)
    return _Times(mean_s, variance, rest_s, rest_variance, outlasting)
