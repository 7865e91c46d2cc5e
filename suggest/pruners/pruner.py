"""What a pruning rule is asked, and what all rules share: when a judgement is due. Knows no rule."""

from __future__ import annotations

from typing import Protocol

from suggest.curves import TrialCurve
from suggest.trial import StopAdvice

GO_ON = StopAdvice(False)


class Pruner(Protocol):
    """One study's pruner. Not thread-safe: its owner holds the study's lock.

    Verdicts depend on the curves that were put, not on the order in which they came. One call must not look at every
    trial: studies have tens of thousands. (Rules of Optuna look at a window.)
    """

    def put(self, trial: TrialCurve) -> None:
        """The trial's curve as it is now: after each of its reports, and once more when it has ended.

        Only an unfinished trial is put again; in a new attempt it comes with another curve. Failed, infeasible and
        cancelled trials come too, if they have reported, and count for nothing from then on.
        """
        ...

    def judge(self, trial: TrialCurve, *, before: int | None) -> StopAdvice:
        """Should this running trial, which was put as it is now, stop at its last step?

        `before` is the last step that was there before the latest report, None for the first: what lies between has
        not been judged.
        """
        ...


def due(step: int, before: int | None, *, warmup: int, interval: int) -> bool:
    """Whether a judgement falls between the step before (exclusive) and this one; a late one is made up for."""
    last = -1 if before is None else before
    return step >= warmup and last < (step - warmup) // interval * interval + warmup
