"""The model behind `optuna:NAME`: one of Optuna's pruners, unchanged, over a window of trials.

Imports Optuna.

Only public methods are called. The pruner is called after each step of a trial, in the order of the
reports, as `Trial.should_prune` would call it. The attributes that successive halving sets on
trials are kept here. After a restart the pruner is called again for each step in the window, trial
by trial in the order of their numbers. Each call reads the whole window, so these rules are slower
than ours; `window` bounds the time.
"""

from __future__ import annotations

import copy
import math
from bisect import insort
from collections.abc import Mapping

# Any: Optuna's own type for attributes.
from typing import Any, TypeAlias

import optuna.pruners
from optuna.study import Study as OptunaStudy
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from suggest.curves import Curve, TrialCurve
from suggest.optuna_storage import WindowStorage, frozen_trial, quiet
from suggest.pruners.asha import COUNTED
from suggest.pruners.hyperband import HASHED
from suggest.pruners.pruner import GO_ON
from suggest.study import Objective
from suggest.trial import StopAdvice, TrialState

# These pruners record the rungs that a trial has reached.
SETTING_ATTRIBUTES = ("SuccessiveHalvingPruner", "HyperbandPruner")
# The arguments of a class of Optuna; a wrapped pruner is the name of its class.
Arguments: TypeAlias = Mapping[str, object]
_STATES = {TrialState.SUCCEEDED: OptunaState.COMPLETE, TrialState.PRUNED: OptunaState.PRUNED}


class _Window(WindowStorage):
    """The trials of the window by number, with the attributes that pruners set on them."""

    def __init__(self, direction: StudyDirection) -> None:
        super().__init__([direction], ())
        self.by_number: dict[int, FrozenTrial] = {}

    def get_study_name_from_id(self, study_id: int) -> str:
        return HASHED

    def get_trial(self, trial_id: int) -> FrozenTrial:
        return self.by_number[trial_id]

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        # Trials that were returned before must not change.
        changed = copy.copy(self.by_number[trial_id])
        changed.system_attrs = {**changed.system_attrs, key: value}
        self.hold(changed)

    def hold(self, trial: FrozenTrial) -> None:
        if self.by_number.get(trial.number) is not trial:
            self.drop(trial.number)
            self.by_number[trial.number] = trial
            insort(self._trials, trial, key=lambda each: each.number)

    def drop(self, number: int) -> None:
        if self.by_number.pop(number, None) is not None:
            self._trials = [each for each in self._trials if each.number != number]


class OptunaPruner:
    def __init__(
        self, objective: Objective, class_name: str, arguments: Arguments, *, window: int
    ) -> None:
        self._objective = objective
        self._class_name = class_name
        self._window = window
        self._storage = _Window(StudyDirection[objective.direction.name])
        with quiet():
            self._pruner = _new_pruner(class_name, arguments)
            self._study = OptunaStudy(HASHED, self._storage, pruner=self._pruner)
        names = {class_name, arguments.get("wrapped_pruner")}
        self._sets_attributes = not names.isdisjoint(SETTING_ATTRIBUTES)
        self._finished: list[int] = []
        self._best: tuple[float, int] | None = None  # loss, number
        # The newest curves that Optuna has not seen, in order of arrival.
        self._latest: dict[int, TrialCurve] = {}
        # The curves of unfinished trials that Optuna has seen.
        self._curves: dict[int, Curve] = {}
        # The steps at which Optuna would stop each running trial.
        self._stops: dict[int, set[int]] = {}

    def put(self, trial: TrialCurve) -> None:
        number = trial.number
        if trial.state not in COUNTED:
            self._latest.pop(number, None)
            self._end(number)
            self._storage.drop(number)
            return
        self._latest.pop(number, None)
        self._latest[number] = trial
        if trial.state.finished:
            insort(self._finished, number)
            if trial.state is TrialState.SUCCEEDED and trial.value is not None:
                loss = self._objective.direction.sign * trial.value
                self._best = min((loss, number), self._best or (math.inf, number))
            self._forget()

    def judge(self, trial: TrialCurve, *, before: int | None) -> StopAdvice:
        after = -1 if before is None else before
        for each in self._latest.values():
            self._show(each, after=after if each.number == trial.number else each.curve.steps[-1])
        self._latest.clear()
        stops = [step for step in self._stops.get(trial.number, ()) if step > after]
        if not stops:
            return GO_ON
        step = min(stops)
        shown, value = len(self._storage.by_number), trial.curve.at_or_before(step)
        return StopAdvice(
            True,
            f"{self._objective.metric} {value:.4g} at step {step} is not enough for Optuna's "
            f"{self._class_name}, which compared {shown} trials",
        )

    def _forget(self) -> None:
        """Drop the oldest finished trials beyond the window, except the best one."""
        while len(self._finished) > self._window:
            kept_best = self._best is not None and self._finished[0] == self._best[1]
            number = self._finished.pop(1 if kept_best else 0)
            self._latest.pop(number, None)
            self._storage.drop(number)

    def _show(self, trial: TrialCurve, *, after: int) -> None:
        """Ask Optuna about each step as if it were the trial's last one.

        These are all new steps if the pruner sets attributes on trials,
        otherwise only the steps after `after`.
        """
        number, curve = trial.number, trial.curve
        # A new trial, or a new attempt.
        if self._curves.get(number) is not curve:
            self._end(number)
            self._curves[number] = curve
            self._storage.hold(frozen_trial(number, OptunaState.RUNNING))
        frozen = self._storage.by_number[number]
        known = frozen.last_step if self._sets_attributes else after
        points = list(zip(curve.steps, curve.values, strict=True))
        frozen.intermediate_values = {
            step: value for step, value in points if known is not None and step <= known
        }
        for step, value in points:
            if known is None or step > known:
                frozen.intermediate_values[step] = value
                with quiet():
                    stops = self._pruner.prune(self._study, frozen)
                frozen = self._storage.by_number[number]
                if stops and not trial.state.finished:
                    self._stops.setdefault(number, set()).add(step)
        if trial.state.finished:
            frozen.value = trial.value
            frozen.state = _STATES[trial.state]
            self._end(number)

    def _end(self, number: int) -> None:
        """Forget the curve of a trial that has ended, or whose attempt has."""
        self._curves.pop(number, None)
        self._stops.pop(number, None)


def refusal(class_name: str, arguments: Arguments) -> str:
    """Return Optuna's error message for these settings; empty if it accepts them."""
    try:
        with quiet():
            _new_pruner(class_name, arguments)
    except (TypeError, ValueError) as error:
        return f"Optuna refuses these settings: {' '.join(str(error).split())}"
    return ""


def _new_pruner(class_name: str, arguments: Arguments) -> optuna.pruners.BasePruner:
    inner = arguments.get("wrapped_pruner")
    if isinstance(inner, str):
        arguments = {**arguments, "wrapped_pruner": _new_pruner(inner, {})}
    pruner: optuna.pruners.BasePruner = getattr(optuna.pruners, class_name)(**arguments)
    return pruner
