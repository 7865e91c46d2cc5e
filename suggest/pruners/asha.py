"""ASHA in its stopping variant: stop a trial at a rung if it is not among the best 1/eta of the
trials that reached it.

Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning", section 3: rung k is at
minSteps * eta**k. The paper pauses such a trial until it can be promoted; this rule stops it, like
Optuna's SuccessiveHalvingPruner. Among fewer than eta trials, the best one continues. All trials
that reached the rung count: succeeded, pruned and running.

The rule is asynchronous: a trial is judged once at each rung, against the trials that reached it
earlier. The same curves in another order give other verdicts, but the state kept here is a function
of the curves alone.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from dataclasses import dataclass

from suggest.curves import Curve, TrialCurve
from suggest.pruners.pruner import GO_ON, Rule
from suggest.settings import setting
from suggest.study import Objective
from suggest.trial import StopAdvice, TrialState

COUNTED = frozenset(
    {TrialState.QUEUED, TrialState.RUNNING, TrialState.SUCCEEDED, TrialState.PRUNED}
)


@dataclass(frozen=True, slots=True)
class AshaSettings:
    min_steps: int = setting(1, "the step of the first rung; no trial is judged before it", min=1)
    eta: int = setting(
        4,
        "the best 1/eta of the trials continue at each rung, and the next rung is at eta times the "
        "steps",
        min=2,
    )
    min_trials: int = setting(
        1, "trials at a rung, including this one, that a judgment requires", min=1
    )


class Rungs:
    """The sorted losses of trials at the rungs. NaN is left out, because it cannot be compared."""

    def __init__(self, objective: Objective, settings: AshaSettings) -> None:
        self._objective = objective
        self._min_steps = settings.min_steps
        self._eta = settings.eta
        self._min_trials = settings.min_trials
        self._columns: list[array[float]] = []

    def losses(self, curve: Curve) -> array[float]:
        """Return the loss of the first report at or after each rung that the curve has reached."""
        sign, steps = self._objective.direction.sign, curve.steps
        found, rung = array("d"), self._min_steps
        while rung <= steps[-1]:
            found.append(sign * curve.values[bisect_left(steps, rung)])
            rung *= self._eta
        return found

    def replace(self, old: array[float], new: array[float]) -> None:
        """Replace one trial's losses, given from the first rung on.

        Usually the new ones begin with the old ones.
        """
        for rung in range(max(len(old), len(new))):
            was, now = old[rung : rung + 1], new[rung : rung + 1]
            # By bytes, so that NaN equals itself.
            if was.tobytes() != now.tobytes():
                if was:
                    self._remove(rung, was[0])
                if now:
                    self._add(rung, now[0])

    def _add(self, rung: int, loss: float) -> None:
        while len(self._columns) <= rung:
            self._columns.append(array("d"))
        if not math.isnan(loss):
            insort(self._columns[rung], loss)

    def _remove(self, rung: int, loss: float) -> None:
        if not math.isnan(loss):
            column = self._columns[rung]
            del column[bisect_left(column, loss)]

    def judge(self, curve: Curve, *, before: int | None, first: int, among: str) -> StopAdvice:
        """Judge a trial at the rungs that it has reached since the step `before`.

        Args:
            first: The lowest rung at which this trial is judged.
            among: What the message calls the trials that it is compared with.
        """
        losses = self.losses(curve)
        metric = self._objective.metric
        sign = self._objective.direction.sign
        for rung in range(first, len(losses)):
            at = self._min_steps * self._eta**rung
            if before is not None and at <= before:
                continue
            loss, column = losses[rung], self._columns[rung]
            step = curve.steps[bisect_left(curve.steps, at)]
            if math.isnan(loss):
                return StopAdvice(
                    True, f"{metric} is nan at step {step}, where trials are judged at step {at}"
                )
            if len(column) < self._min_trials:
                continue
            kept = max(1, len(column) // self._eta)
            limit = column[kept - 1]
            if loss <= limit:
                continue
            value, last = sign * loss, sign * limit
            side = "below" if value < last else "above"
            best = "the best" if kept == 1 else f"the limit of the best {kept}"
            rung_text = f"{len(column)} {among} that reached step {at}"
            return StopAdvice(
                True,
                f"{metric} {value:.4g} at step {step} is {side} {last:.4g}, {best} of {rung_text}",
            )
        return GO_ON


class AshaPruner:
    def __init__(self, objective: Objective, settings: AshaSettings) -> None:
        self._rungs = Rungs(objective, settings)
        # The losses of unfinished trials that are in the rungs.
        self._entered: dict[int, array[float]] = {}

    def put(self, trial: TrialCurve) -> None:
        old = self._entered.pop(trial.number, None) or array("d")
        new = self._rungs.losses(trial.curve) if trial.state in COUNTED else array("d")
        self._rungs.replace(old, new)
        if not trial.state.finished:
            self._entered[trial.number] = new

    def judge(self, trial: TrialCurve, *, before: int | None) -> StopAdvice:
        return self._rungs.judge(trial.curve, before=before, first=0, among="trials")


ENTRIES = (
    Rule(
        "asha",
        "Stops a trial that is not among the best 1/eta at a rung; rungs are eta times apart "
        "(successive halving).",
        AshaSettings,
        AshaPruner,
    ),
)
