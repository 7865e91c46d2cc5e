"""The contract of a pruning rule, and what all rules share: when a judgement is due."""

from __future__ import annotations

from typing import Protocol

from suggest.curves import TrialCurve
from suggest.trial import StopAdvice

GO_ON = StopAdvice(False)


class Pruner(Protocol):
    """The pruner of one study. Not thread-safe: its owner holds the study's lock.

    A judgement depends on the curves that were put, not on their order. A call must not read every trial, because
    studies have tens of thousands. (Optuna's rules read a window.)
    """

    def put(self, trial: TrialCurve) -> None:
        """Take the trial's curve in its present form, after each of its reports and once more when it has ended.

        Only an unfinished trial is put again; in a new attempt it has another curve. Failed, infeasible and cancelled
        trials are put as well, if they have reported, and no longer count from then on.
        """
        ...

    def judge(self, trial: TrialCurve, *, before: int | None) -> StopAdvice:
        """Return whether a running trial, whose present curve was put before, should stop at its last step.

        `before` is the last step before the latest report, None for the first report. Later steps are not judged yet.
        """
        ...


def due(step: int, before: int | None, *, warmup: int, interval: int) -> bool:
    """Return whether a judgement falls between the step `before` (exclusive) and this one."""
    last = -1 if before is None else before
    return step >= warmup and last < (step - warmup) // interval * interval + warmup
