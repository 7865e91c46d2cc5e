"""The auto rule: chooses among the others by what has been seen, and needs no setting.

Until a trial has succeeded none stops, for nobody knows how long trials are. From then on no trial is judged in the
first fifteenth of the longest succeeded one. While few trials have ended, a trial stops that is below the median, which
costs least among few; later ASHA's rungs judge, which save more among many. `bench/pruning.py` decided the figures.
What it chooses follows from the trials shown, in whatever order they came.
"""

from __future__ import annotations

from dataclasses import dataclass

from suggest.curves import TrialCurve
from suggest.pruners.asha import COUNTED, AshaPruner, AshaSettings
from suggest.pruners.percentile import PercentilePruner, PercentileSettings
from suggest.pruners.pruner import GO_ON, Pruner
from suggest.settings import setting
from suggest.study import Objective
from suggest.trial import StopAdvice, TrialState

FEW = 10  # ended trials, succeeded or pruned, below which the median judges
LEAST = 3  # succeeded trials that the median needs
WARMUP = 15  # one in so many steps of the longest succeeded trial
ETA = 3


@dataclass(frozen=True, slots=True)
class AutoSettings:
    warmup_steps: int = setting(
        0, "no trial is judged before this step; 0: a fifteenth of the steps of the longest that has succeeded", min=0
    )


class AutoPruner:
    def __init__(self, objective: Objective, settings: AutoSettings) -> None:
        self._objective = objective
        self._settings = settings
        self._trials: dict[int, TrialCurve] = {}
        self._ended = 0
        self._longest = 0  # last step of a succeeded trial
        self._first: int | None = None  # the first step that is judged, once that is known
        self._median: Pruner
        self._asha: Pruner

    def put(self, trial: TrialCurve) -> None:
        if trial.state in COUNTED:
            self._trials[trial.number] = trial
            self._ended += trial.state.finished
        else:
            self._trials.pop(trial.number, None)
        if trial.state is TrialState.SUCCEEDED:
            self._longest = max(self._longest, trial.curve.steps[-1])
            first = max(1, self._settings.warmup_steps or -(-self._longest // WARMUP))
            if first != self._first:
                self._first = first
                self._start(first)
                return
        if self._first is not None:
            self._median.put(trial)
            self._asha.put(trial)

    def judge(self, trial: TrialCurve, *, before: int | None) -> StopAdvice:
        if self._first is None:
            return GO_ON
        return (self._median if self._ended < FEW else self._asha).judge(trial, before=before)

    def _start(self, first: int) -> None:
        """With all that has been seen; again when a longer trial has succeeded, which is rare."""
        self._median = PercentilePruner(self._objective, PercentileSettings(50.0, first, 1, LEAST))
        self._asha = AshaPruner(self._objective, AshaSettings(first, ETA))
        for trial in self._trials.values():
            self._median.put(trial)
            self._asha.put(trial)
