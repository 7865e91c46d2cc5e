"""The percentile and median rules: stop a trial whose best value
so far is not among the best share of its peers.

The comparison is at the same step. The median rule is the percentile rule at 50 percent, like
Optuna's MedianPruner (Golovin et al. 2017, Google Vizier, section 3.5.2). Like Optuna's
PercentilePruner, but fast for long histories, and with two differences: if a peer has no report at
the step, its last value before it counts, and `minTrials` is one threshold in place of Optuna's
two. Peers are the succeeded trials.
"""

from __future__ import annotations

import math
from array import array
from bisect import insort
from collections import OrderedDict
from dataclasses import dataclass

from suggest.curves import Curve, TrialCurve
from suggest.pruners.pruner import GO_ON, Rule, due
from suggest.settings import setting
from suggest.study import Direction, Objective, better
from suggest.trial import StopAdvice, TrialState

# The number of steps whose sorted column of peers is kept. Training loops with millions of steps
# reuse few of them.
KEPT_COLUMNS = 256


@dataclass(frozen=True, slots=True)
class MedianSettings:
    warmup_steps: int = setting(0, "no trial is judged before this step", min=0)
    interval: int = setting(1, "steps between judgments, counted from warmupSteps", min=1)
    min_trials: int = setting(
        5, "succeeded trials with a value at or before the step that a judgment requires", min=1
    )


@dataclass(frozen=True, slots=True)
class PercentileSettings(MedianSettings):
    percentile: float = setting(
        50.0, "percentage of the trials, the best ones, that may continue", min=0, max=100
    )


@dataclass(slots=True)
class _Column:
    """The peers at one step: how many have a value, and the values other than NaN, sorted."""

    peers: int
    values: array[float]

    def add(self, value: float) -> None:
        self.peers += 1
        if not math.isnan(value):
            insort(self.values, value)

    def quantile(self, share: float) -> float:
        """Return the quantile exactly as numpy.percentile computes it.

        NaN if no peer has a number.
        """
        if not self.values:
            return math.nan
        place = (len(self.values) - 1) * share
        low = self.values[math.floor(place)]
        high = self.values[math.ceil(place)]
        if low == high:
            # The difference of equal infinities is NaN.
            return low
        away = place - math.floor(place)
        return high - (high - low) * (1 - away) if away >= 0.5 else low + (high - low) * away


class PercentilePruner:
    def __init__(self, objective: Objective, settings: PercentileSettings) -> None:
        self._objective = objective
        self._settings = settings
        best = settings.percentile
        self._share = (100 - best if objective.direction is Direction.MAXIMIZE else best) / 100
        self._peers: list[Curve] = []
        self._columns: OrderedDict[int, _Column] = OrderedDict()

    def put(self, trial: TrialCurve) -> None:
        if trial.state is not TrialState.SUCCEEDED:
            return
        self._peers.append(trial.curve)
        for step, column in self._columns.items():
            value = trial.curve.at_or_before(step)
            if value is not None:
                column.add(value)

    def judge(self, trial: TrialCurve, *, before: int | None) -> StopAdvice:
        curve, settings = trial.curve, self._settings
        step = curve.steps[-1]
        if not due(step, before, warmup=settings.warmup_steps, interval=settings.interval):
            return GO_ON
        column = self._column(step)
        if column.peers < settings.min_trials:
            return GO_ON
        numbers = [v for v in curve.values if not math.isnan(v)]
        if not numbers:
            return StopAdvice(
                True, f"{self._objective.metric} has been nan in every report up to step {step}"
            )
        best = min(numbers, key=lambda value: self._objective.direction.sign * value)
        limit = column.quantile(self._share)
        if not better((self._objective,), (limit,), than=(best,)):
            return GO_ON
        side = "below" if best < limit else "above"
        metric = self._objective.metric
        so_far = (
            f"{metric} {best:.4g}"
            if best == curve.values[-1]
            else f"{metric} (best so far) {best:.4g}"
        )
        trials = "1 trial" if column.peers == 1 else f"{column.peers} trials"
        return StopAdvice(
            True, f"{so_far} at step {step} is {side} {self._describe(limit)} of {trials}"
        )

    def _describe(self, limit: float) -> str:
        if self._settings.percentile == 50:
            return f"the median {limit:.4g}"
        return f"{limit:.4g}, the limit of the best {self._settings.percentile:g} %"

    def _column(self, step: int) -> _Column:
        column = self._columns.get(step)
        if column is None:
            values = [v for peer in self._peers if (v := peer.at_or_before(step)) is not None]
            column = _Column(
                len(values), array("d", sorted(v for v in values if not math.isnan(v)))
            )
            self._columns[step] = column
            if len(self._columns) > KEPT_COLUMNS:
                self._columns.popitem(last=False)
        self._columns.move_to_end(step)
        return column


def median_pruner(objective: Objective, settings: MedianSettings) -> PercentilePruner:
    half = PercentileSettings(settings.warmup_steps, settings.interval, settings.min_trials, 50.0)
    return PercentilePruner(objective, half)


ENTRIES = (
    Rule(
        "median",
        "Stops a trial whose best value so far is worse than the median of succeeded trials at the "
        "same step.",
        MedianSettings,
        median_pruner,
    ),
    Rule(
        "percentile",
        "Stops a trial whose best value so far is not among the best share of succeeded trials at "
        "the same step.",
        PercentileSettings,
        PercentilePruner,
    ),
)
