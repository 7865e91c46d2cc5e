"""The curve rule: predict a trial's final value from the curves of succeeded trials, and stop it
unless it may be best.

Baker et al. 2018, "Accelerating Neural Architecture Search using Performance Prediction": a
regression on the curve so far predicts the final value, and a trial is stopped if its probability
of beating the best trial is below a threshold. `curve_model` has the regression. It uses the
succeeded trials with the highest numbers, at most WINDOW of them.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass

from suggest.curves import Curve, TrialCurve
from suggest.pruners.pruner import GO_ON, Rule, due
from suggest.settings import setting
from suggest.study import Objective
from suggest.trial import StopAdvice, TrialState

WINDOW = 200


@dataclass(frozen=True, slots=True)
class CurveSettings:
    probability: float = setting(
        0.05,
        "a trial stops if its predicted probability of becoming the best is lower",
        min=0,
        max=1,
    )
    warmup_steps: int = setting(2, "no trial is judged before this step", min=0)
    interval: int = setting(1, "steps between judgments, counted from warmupSteps", min=1)
    min_trials: int = setting(10, "succeeded trials that a judgment requires", min=5)


class CurvePruner:
    def __init__(self, objective: Objective, settings: CurveSettings) -> None:
        self._objective = objective
        self._settings = settings
        # (number, curve, final loss), by number.
        self._finished: list[tuple[int, Curve, float]] = []
        self._best: tuple[float, int] | None = None  # final loss, number
        self._count = 0

    def put(self, trial: TrialCurve) -> None:
        if trial.state is not TrialState.SUCCEEDED:
            return
        final = self._final(trial)
        if final is None:
            return
        self._count += 1
        insort(self._finished, (trial.number, trial.curve, final), key=lambda each: each[0])
        del self._finished[:-WINDOW]
        self._best = min((final, trial.number), self._best or (math.inf, 0))

    def judge(self, trial: TrialCurve, *, before: int | None) -> StopAdvice:
        step, settings = trial.curve.steps[-1], self._settings
        if not due(step, before, warmup=settings.warmup_steps, interval=settings.interval):
            return GO_ON
        if self._count < settings.min_trials or self._best is None:
            return GO_ON
        # Imports NumPy.
        from suggest.pruners.curve_model import predict

        best, number = self._best
        sign, metric = self._objective.direction.sign, self._objective.metric
        predicted = predict(
            trial.curve, [(curve, final) for _, curve, final in self._finished], sign
        )
        if predicted is None:
            return GO_ON
        chance = predicted.chance_below(best)
        if chance >= settings.probability:
            return GO_ON
        return StopAdvice(
            True,
            f"{metric} {trial.curve.values[-1]:.4g} at step {step} is predicted to end at "
            f"{sign * predicted.loss:.4g} ± {predicted.deviation:.2g}, with a chance of "
            f"{chance:.2g} to beat {sign * best:.4g} of trial {number}",
        )

    def _final(self, trial: TrialCurve) -> float | None:
        value = trial.value
        if value is None and (extreme := self._objective.extreme) is not None:
            value = trial.curve.best(extreme)
        elif value is None:
            value = trial.curve.values[-1]
        if value is None or not math.isfinite(value):
            return None
        return self._objective.direction.sign * value


ENTRIES = (
    Rule(
        "curve",
        "Predicts the final value from the curves of succeeded trials, and stops a trial that will "
        "not be the best.",
        CurveSettings,
        CurvePruner,
    ),
)
