"""The contract of a pruning rule, how it is declared (`ENTRIES` of its module),
and when a judgment is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from suggest.curves import TrialCurve
from suggest.errors import Problem
from suggest.settings import Choosable
from suggest.study import Objective
from suggest.trial import StopAdvice

GO_ON = StopAdvice(False)


class Pruner(Protocol):
    """The pruner of one study. Not thread-safe: its owner holds the study's lock.

    A judgment depends on the curves that were put, not on their order. A call must not read every
    trial, because studies have tens of thousands. (Optuna's rules read a window.)
    """

    def put(self, trial: TrialCurve) -> None:
        """Take the trial's current curve.

        Called after each of its reports, and again when it has ended.

        Only unfinished trials are put again. A new attempt has a new curve. Failed,
        infeasible and cancelled trials are put too, if they have reported anything,
        and no longer count from then on.
        """
        ...

    def judge(self, trial: TrialCurve, *, before: int | None) -> StopAdvice:
        """Return whether a running trial should stop at its last step.

        Its current curve must have been put. `before` is the last step before the latest report;
        None for the first report. Later steps are not judged yet.
        """
        ...


def due(step: int, before: int | None, *, warmup: int, interval: int) -> bool:
    """Return whether a judgment is due after the step `before`, up to and including this one."""
    last = -1 if before is None else before
    return step >= warmup and last < (step - warmup) // interval * interval + warmup


@dataclass(frozen=True, slots=True)
class Rule(Choosable):
    """A pruning rule.

    `problems` and `build` take an instance of `settings_type`, which no type can express here.
    """

    build: Callable[[Objective, Any], Pruner]
    # Checks settings that are valid one by one.
    problems: Callable[[Any], Iterator[Problem]] | None = None
