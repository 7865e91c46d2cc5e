"""The patient rule: stop a trial that has not improved for some reports.

With another rule, only if that agrees.

Like Optuna's PatientPruner, with two differences. NaN is not an improvement, while Optuna never
stops a trial whose latest reports are all NaN. Once the trial has stopped improving, the other rule
judges all of its reports.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from suggest.curves import TrialCurve
from suggest.pruners.pruner import GO_ON, Pruner, Rule
from suggest.settings import setting
from suggest.study import Objective
from suggest.trial import StopAdvice

ALONE = "none"
WRAPPED = ("median", "percentile", "asha", "hyperband", "threshold")


@dataclass(frozen=True, slots=True)
class PatientSettings:
    patience: int = setting(
        5, "reports without an improvement before a trial may be stopped", min=0
    )
    min_delta: float = setting(
        0.0, "how much worse a trial may be and still count as improving", min=0
    )
    rule: str = setting(
        ALONE,
        "a rule that must also decide to stop the trial; its settings are written beside this one",
        words=(ALONE, *WRAPPED),
    )


@dataclass(frozen=True, slots=True)
class PatientPruner:
    """The pruner; `wrapped` is the other rule, or None if patience alone decides."""

    objective: Objective
    settings: PatientSettings
    wrapped: Pruner | None = None

    def put(self, trial: TrialCurve) -> None:
        if self.wrapped is not None:
            self.wrapped.put(trial)

    def judge(self, trial: TrialCurve, *, before: int | None) -> StopAdvice:
        curve, recent = trial.curve, self.settings.patience + 1
        if len(curve.values) <= recent:
            return GO_ON
        sign = self.objective.direction.sign
        then = _lowest(sign * v for v in curve.values[:-recent])
        now = _lowest(sign * v for v in curve.values[-recent:])
        if then is None or (now is not None and now <= then + self.settings.min_delta):
            return GO_ON
        reports = f"the last {recent} reports" if recent > 1 else "the last report"
        metric, best = self.objective.metric, sign * then
        latest = "is nan" if now is None else f"is at best {sign * now:.4g}"
        stale = (
            f"{metric} {latest} in {reports} up to step {curve.steps[-1]} and was {best:.4g} before"
        )
        if self.wrapped is None:
            return StopAdvice(True, stale)
        verdict = self.wrapped.judge(trial, before=None)
        return StopAdvice(True, f"{stale}, and {verdict.reason}") if verdict.should_stop else GO_ON


def _lowest(losses: Iterable[float]) -> float | None:
    return min((loss for loss in losses if not math.isnan(loss)), default=None)


ENTRIES = (
    Rule(
        "patient",
        "Stops a trial that has not improved for some reports; with another rule, only if that "
        "agrees.",
        PatientSettings,
        PatientPruner,
    ),
)
