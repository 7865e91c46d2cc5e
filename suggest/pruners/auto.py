"""The auto rule: chooses between the median rule and ASHA by the trials seen
so far, and needs no settings.

No trial is stopped before one has succeeded, because the length of trials is unknown until then.
After that, no trial is judged before a fifteenth of the steps of the longest succeeded trial. While
few trials have ended, the median rule judges, because it harms a short search least. Later ASHA
judges, because it saves more in a long one. The constants were chosen with `bench/pruning.py`. The
choice depends on the trials put so far, not on their order.
"""

from __future__ import annotations

from dataclasses import dataclass

from suggest.curves import TrialCurve
from suggest.pruners.asha import COUNTED, AshaPruner, AshaSettings
from suggest.pruners.percentile import MedianSettings, median_pruner
from suggest.pruners.pruner import GO_ON, Pruner, Rule
from suggest.settings import setting
from suggest.study import Objective
from suggest.trial import StopAdvice, TrialState

# With fewer ended trials, succeeded or pruned, the median rule judges.
FEW = 10
LEAST = 3  # succeeded trials that the median rule needs
# Trials are judged from 1/WARMUP of the longest succeeded trial's steps on.
WARMUP = 15
ETA = 3


@dataclass(frozen=True, slots=True)
class AutoSettings:
    warmup_steps: int = setting(
        0,
        "no trial is judged before this step; 0: a fifteenth of the steps of the longest succeeded "
        "trial",
        min=0,
    )


class AutoPruner:
    def __init__(self, objective: Objective, settings: AutoSettings) -> None:
        self._objective = objective
        self._settings = settings
        self._trials: dict[int, TrialCurve] = {}
        self._ended = 0
        self._longest = 0  # last step of a succeeded trial
        # The first step that is judged; None until a trial has succeeded.
        self._first: int | None = None
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
        """Create both rules and put all trials.

        Repeated when a longer trial has succeeded, which is rare.
        """
        self._median = median_pruner(self._objective, MedianSettings(first, 1, LEAST))
        self._asha = AshaPruner(self._objective, AshaSettings(first, ETA))
        for trial in self._trials.values():
            self._median.put(trial)
            self._asha.put(trial)


ENTRIES = (
    Rule(
        "auto",
        "Chooses among the others: the median while few trials have ended, asha later; the warm-up "
        "by their length.",
        AutoSettings,
        AutoPruner,
    ),
)
