"""The threshold rule: stop a trial whose value leaves a given range or is NaN.

It does not depend on other trials.

Like Optuna's ThresholdPruner, but if a report has several steps,
each value is judged, not only the last one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from suggest.curves import TrialCurve
from suggest.errors import Problem
from suggest.pruners.pruner import GO_ON, Rule, due
from suggest.settings import setting
from suggest.study import Objective
from suggest.trial import StopAdvice


@dataclass(frozen=True, slots=True)
class ThresholdSettings:
    lower: float = setting(-math.inf, "a value below this stops the trial; so does nan")
    upper: float = setting(math.inf, "a value above this stops the trial")
    warmup_steps: int = setting(0, "no trial is judged before this step", min=0)
    interval: int = setting(1, "steps between judgments, counted from warmupSteps", min=1)


def threshold_problems(settings: ThresholdSettings) -> Iterator[Problem]:
    if settings.lower > settings.upper:
        yield Problem(
            "lower",
            f"{settings.lower:g} is above upper, {settings.upper:g}, so every trial would stop",
        )


class ThresholdPruner:
    def __init__(self, objective: Objective, settings: ThresholdSettings) -> None:
        self._metric = objective.metric
        self._settings = settings

    def put(self, trial: TrialCurve) -> None:
        """Ignore the trial, because other trials do not matter."""

    def judge(self, trial: TrialCurve, *, before: int | None) -> StopAdvice:
        curve, settings = trial.curve, self._settings
        if not due(
            curve.steps[-1], before, warmup=settings.warmup_steps, interval=settings.interval
        ):
            return GO_ON
        judged = max(settings.warmup_steps - 1, -1 if before is None else before)
        first = (
            bisect_right(curve.steps, judged) if settings.interval == 1 else len(curve.steps) - 1
        )
        for step, value in zip(curve.steps[first:], curve.values[first:], strict=True):
            if math.isnan(value):
                return StopAdvice(True, f"{self._metric} is nan at step {step}")
            if value < settings.lower:
                return self._stop(value, step, f"below the lower limit {settings.lower:.4g}")
            if value > settings.upper:
                return self._stop(value, step, f"above the upper limit {settings.upper:.4g}")
        return GO_ON

    def _stop(self, value: float, step: int, where: str) -> StopAdvice:
        return StopAdvice(True, f"{self._metric} {value:.4g} at step {step} is {where}")


ENTRIES = (
    Rule(
        "threshold",
        "Stops a trial whose value is nan or leaves a band that you set.",
        ThresholdSettings,
        ThresholdPruner,
        threshold_problems,
    ),
)
