"""The running trials of a study, whose points a model avoids.

Pure; makes no decisions about points.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from suggest.trial import Trial, TrialState

# The most recent running trials, whose points a proposal avoids (as constant liars).
LIARS = 64


class RunningTrials:
    def __init__(self) -> None:
        self._numbers: list[int] = []  # ascending
        self._trials: dict[int, Trial] = {}

    def put(self, trial: Trial) -> bool:
        """Keep the trial while it runs, and forget it afterwards. Return whether it runs."""
        number = trial.number
        if trial.state is TrialState.RUNNING:
            if number not in self._trials:
                insort(self._numbers, number)
            self._trials[number] = trial
            return True
        if self._trials.pop(number, None) is not None:
            del self._numbers[bisect_left(self._numbers, number)]
        return False

    @property
    def numbers(self) -> list[int]:
        """The numbers of the LIARS most recent trials, ascending."""
        return self._numbers[-LIARS:]

    @property
    def trials(self) -> list[Trial]:
        """The LIARS most recent trials, in the order of their numbers."""
        return [self._trials[number] for number in self.numbers]
