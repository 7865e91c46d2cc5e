"""The model behind `optuna:NAME`: one of Optuna's pruners, unchanged, over a window of trials. This imports Optuna.

Only its public methods are called: it is asked after each step of a trial, in the order in which they came, as
`Trial.should_prune` would ask it. What successive halving notes of a trial is kept here; after a restart it is asked
again about every step of the window, trial by trial in the order of their numbers. One question looks at the whole
window, so it is slower than a rule of ours: `window` bounds it.
"""

from __future__ import annotations

import copy
import math
import warnings
from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager

# Any: Optuna's own type for attributes.
from typing import Any

import numpy as np
import optuna.pruners
from optuna.study import Study as OptunaStudy
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from suggest.curves import Curve, TrialCurve
from suggest.optuna_storage import WindowStorage
from suggest.pruners.asha import COUNTED
from suggest.pruners.hyperband import HASHED
from suggest.pruners.optuna_rule import CLASSES, NONE, OptunaSettings
from suggest.pruners.pruner import GO_ON
from suggest.study import Direction, Objective
from suggest.trial import StopAdvice, TrialState

TAKING_NOTES = ("successive-halving", "hyperband")
_STATES = {TrialState.SUCCEEDED: OptunaState.COMPLETE, TrialState.PRUNED: OptunaState.PRUNED}


class _Window(WindowStorage):
    """Trials by their numbers. Pruners note at which rungs a trial has been; that is kept with the trial."""

    def __init__(self, direction: StudyDirection) -> None:
        super().__init__([direction], ())
        self.by_number: dict[int, FrozenTrial] = {}

    def get_study_name_from_id(self, study_id: int) -> str:
        return HASHED

    def get_trial(self, trial_id: int) -> FrozenTrial:
        return self.by_number[trial_id]

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        changed = copy.copy(self.by_number[trial_id])  # who has asked for the trials has them as they were
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
    def __init__(self, objective: Objective, name: str, settings: OptunaSettings) -> None:
        self._objective = objective
        self._class_name, _ = CLASSES[name]
        self._window = settings.window
        maximize = objective.direction is Direction.MAXIMIZE
        self._storage = _Window(StudyDirection.MAXIMIZE if maximize else StudyDirection.MINIMIZE)
        with _quiet():
            self._pruner = _made(name, settings)
            self._study = OptunaStudy(HASHED, self._storage, pruner=self._pruner)
        self._takes_notes = not {name, settings.arguments.get("wrapped_pruner")}.isdisjoint(TAKING_NOTES)
        self._finished: list[int] = []
        self._best: tuple[float, int] | None = None  # loss, number
        self._latest: dict[int, TrialCurve] = {}  # news that Optuna has not seen, in order
        self._curves: dict[int, Curve] = {}  # that Optuna has seen of unfinished trials
        self._stops: dict[int, set[int]] = {}  # of running trials: the steps at which Optuna would stop them

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
            f"{self._objective.metric} {value:.4g} at step {step} is not enough for Optuna's {self._class_name}, "
            f"which compared {shown} trials",
        )

    def _forget(self) -> None:
        """Finished trials beyond the window, the best one excepted."""
        while len(self._finished) > self._window:
            kept_best = self._best is not None and self._finished[0] == self._best[1]
            number = self._finished.pop(1 if kept_best else 0)
            self._latest.pop(number, None)
            self._storage.drop(number)

    def _show(self, trial: TrialCurve, *, after: int) -> None:
        """Ask about each step as if it had been the last one: all new ones where Optuna takes notes, else those after
        this one."""
        number, curve = trial.number, trial.curve
        if self._curves.get(number) is not curve:  # a new trial, or a new attempt
            self._end(number)
            self._curves[number] = curve
            self._storage.hold(_frozen(number))
        frozen = self._storage.by_number[number]
        known = frozen.last_step if self._takes_notes else after
        points = list(zip(curve.steps, curve.values, strict=True))
        frozen.intermediate_values = {step: value for step, value in points if known is not None and step <= known}
        for step, value in points:
            if known is None or step > known:
                frozen.intermediate_values[step] = value
                with _quiet():
                    stops = self._pruner.prune(self._study, frozen)
                frozen = self._storage.by_number[number]
                if stops and not trial.state.finished:
                    self._stops.setdefault(number, set()).add(step)
        if trial.state.finished:
            frozen.value = trial.value
            frozen.state = _STATES[trial.state]
            self._end(number)

    def _end(self, number: int) -> None:
        """Of the trial, or of its attempt."""
        self._curves.pop(number, None)
        self._stops.pop(number, None)


def refusal(name: str, settings: OptunaSettings) -> str:
    """What Optuna says against these settings."""
    try:
        with _quiet():
            _made(name, settings)
    except (TypeError, ValueError) as error:
        return f"Optuna refuses these settings: {' '.join(str(error).split())}"
    return ""


def _made(name: str, settings: OptunaSettings) -> optuna.pruners.BasePruner:
    class_name, _ = CLASSES[name]
    arguments = settings.arguments
    if "wrapped_pruner" in arguments:
        inner = str(arguments["wrapped_pruner"])
        arguments["wrapped_pruner"] = None if inner == NONE else _made(inner, CLASSES[inner][1]())
    made: optuna.pruners.BasePruner = getattr(optuna.pruners, class_name)(**arguments)
    return made


def _frozen(number: int) -> FrozenTrial:
    return FrozenTrial(
        number=number,
        state=OptunaState.RUNNING,
        value=None,
        datetime_start=None,
        datetime_complete=None,
        params={},
        distributions={},
        user_attrs={},
        system_attrs={},
        intermediate_values={},
        trial_id=number,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna and NumPy warn of nan and of what is experimental; the answer says enough."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
