"""How much of its GPU-hours and money a search will have used when all its trials are done.

Before a trial has ended, only `timeout` bounds a trial. From then on, a trial that is still to come
is expected to run as long as those before it on average: the first of them is the canary. With
three or more, the 90 % interval is the prediction interval for the sum of m further observations
after n (Hahn & Meeker 1991, Statistical Intervals): m * mean +- t * s * m * sqrt(1/m + 1/n). It
holds for trials that are alike; pruning that begins later, or a search that moves to larger models,
changes them. The final stage is not in it. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.core.budget import spent_trials
from controller.core.model import ExperimentSpec
from controller.core.spending import HOUR_S, Spent
from controller.core.student import t_quantile
from suggest.trial import TrialState

CONFIDENCE = 0.9
LEAST_FOR_INTERVAL = 3


@dataclass(frozen=True, slots=True)
class Durations:
    """How long trials ran, over all their attempts that have ended, as sums that can be kept."""

    count: int = 0
    sum_s: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, durations_s: Iterable[float]) -> Durations:
        durations = cls()
        for seconds in durations_s:
            durations = durations.changed(None, seconds)
        return durations

    def changed(self, before_s: float | None, after_s: float) -> Durations:
        """Return the sums once a trial ran longer; before_s: None if it is a new one."""
        known_s = before_s or 0.0
        return Durations(
            self.count + (before_s is None),
            self.sum_s + after_s - known_s,
            self.squares + after_s**2 - known_s**2,
        )

    @property
    def mean_s(self) -> float:
        return self.sum_s / self.count

    @property
    def deviation_s(self) -> float:
        """Return the sample standard deviation of at least two."""
        return math.sqrt(max(0.0, self.squares - self.sum_s * self.mean_s) / (self.count - 1))


@dataclass(frozen=True, slots=True)
class Forecast:
    """What all trials will have used. seen: of how many trials it is known how long they ran.

    low, high: the ends of the 90 % interval; None with fewer than three. Without a trial,
    `expected` is what they use at most, if none is retried.
    """

    expected: Spent
    seen: int
    low: Spent | None = None
    high: Spent | None = None


def trials_left(most: int | None, counts: Mapping[TrialState, int]) -> int | None:
    """Return how many trials are not done, running ones too; most: of `budget.most_trials`."""
    if most is None:
        return None
    return max(0, most - spent_trials(counts) - counts.get(TrialState.PAUSED, 0))


def forecast(
    spec: ExperimentSpec,
    durations: Durations,
    *,
    left: int | None,
    running_s: Sequence[float],
    rate: Spent,
    spent: Spent,
) -> Forecast | None:
    """Return what will have been used; None if nothing bounds it.

    Args:
        left: The trials that are not done; None without a limit.
        running_s: How long each of those that run has run.
        rate: What an hour of an attempt uses.
        spent: What all attempts have used so far.
    """
    if left is None:
        return None

    def total(trial_s: float) -> Spent:
        """Return what is used if each trial runs so long, and one that has run longer ends now."""
        to_begin = max(0, left - len(running_s))
        rest_s = sum(max(0.0, trial_s - ran_s) for ran_s in running_s)
        return spent + rate.times((to_begin * max(0.0, trial_s) + rest_s) / HOUR_S)

    if durations.count == 0:
        limit_s = spec.trial.timeout_s
        return None if limit_s is None else Forecast(total(limit_s), 0)
    expected_s = durations.mean_s
    if durations.count < LEAST_FOR_INTERVAL or left == 0:
        return Forecast(total(expected_s), durations.count)
    t = t_quantile(CONFIDENCE, durations.count - 1)
    margin_s = t * durations.deviation_s * math.sqrt(1 / left + 1 / durations.count)
    return Forecast(
        total(expected_s),
        durations.count,
        total(expected_s - margin_s),
        total(expected_s + margin_s),
    )
