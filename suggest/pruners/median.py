"""The median rule: stop a trial whose best value so far is worse than the median of its peers at the same step.

Optuna's MedianPruner, of which this is a rewrite for long histories, with one difference: where a peer reported
nothing at the step, its last value before it counts. Peers are the succeeded trials.
"""

from __future__ import annotations

import math
from array import array
from bisect import insort
from collections import OrderedDict
from dataclasses import dataclass

from suggest.curves import Curve
from suggest.settings import setting
from suggest.study import Objective, better
from suggest.trial import StopAdvice

# Steps whose sorted column of peers is kept; training loops that count millions of steps reuse few of them.
KEPT_COLUMNS = 256


@dataclass(frozen=True, slots=True)
class MedianSettings:
    warmup_steps: int = setting(0, "no trial is judged before this step", min=0)
    interval: int = setting(1, "steps between judgements, counted from warmupSteps", min=1)
    min_trials: int = setting(5, "succeeded trials with a value at or before the step, below which none stops", min=1)


@dataclass(slots=True)
class _Column:
    """The peers at one step: how many have a value, and those values that are numbers, sorted."""

    peers: int
    values: array[float]

    def add(self, value: float) -> None:
        self.peers += 1
        if not math.isnan(value):
            insort(self.values, value)

    @property
    def median(self) -> float:
        """NaN when no peer has a number."""
        size = len(self.values)
        if size == 0:
            return math.nan
        low, high = self.values[(size - 1) // 2], self.values[size // 2]
        # As numpy.percentile computes it, to the last bit; equal infinities have no difference.
        return low if low == high else high - (high - low) * 0.5


class MedianPruner:
    def __init__(self, objective: Objective, settings: MedianSettings) -> None:
        self._objective = objective
        self._settings = settings
        self._peers: list[Curve] = []
        self._columns: OrderedDict[int, _Column] = OrderedDict()

    def add_peer(self, curve: Curve) -> None:
        self._peers.append(curve)
        for step, column in self._columns.items():
            value = curve.at_or_before(step)
            if value is not None:
                column.add(value)

    def judge(self, curve: Curve, *, before: int | None) -> StopAdvice:
        step = curve.steps[-1]
        if not self._due(step, -1 if before is None else before):
            return StopAdvice(False)
        column = self._column(step)
        if column.peers < self._settings.min_trials:
            return StopAdvice(False)
        numbers = [v for v in curve.values if not math.isnan(v)]
        if not numbers:
            return StopAdvice(True, f"{self._objective.metric} has been nan in every report up to step {step}")
        best = min(numbers, key=lambda value: self._objective.direction.sign * value)
        median = column.median
        if not better((self._objective,), (median,), than=(best,)):
            return StopAdvice(False)
        side = "below" if best < median else "above"
        metric = self._objective.metric
        so_far = f"{metric} {best:.4g}" if best == curve.values[-1] else f"{metric} (best so far) {best:.4g}"
        trials = "1 trial" if column.peers == 1 else f"{column.peers} trials"
        reason = f"{so_far} at step {step} is {side} the median {median:.4g} of {trials}"
        return StopAdvice(True, reason)

    def _due(self, step: int, before: int) -> bool:
        """Whether a judgement falls between the step before (exclusive) and this one; a late one is made up for."""
        warmup, interval = self._settings.warmup_steps, self._settings.interval
        return step >= warmup and before < (step - warmup) // interval * interval + warmup

    def _column(self, step: int) -> _Column:
        column = self._columns.get(step)
        if column is None:
            there = [v for peer in self._peers if (v := peer.at_or_before(step)) is not None]
            column = _Column(len(there), array("d", sorted(v for v in there if not math.isnan(v))))
            self._columns[step] = column
            if len(self._columns) > KEPT_COLUMNS:
                self._columns.popitem(last=False)
        self._columns.move_to_end(step)
        return column
