"""The trials that a model is fitted to: the best of all history and the most recent ones, whatever the history.

Bounded work and memory: keeping it costs a bisection for each finished trial, reading it costs its size. Each finished
trial is put once. What is recent goes by the trial's number, never by when it ended, so that a restart sees the same
window.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator

from suggest.study import Direction
from suggest.trial import Trial, TrialState

BEST = 25  # as many as Optuna's gamma ever takes for good ones


class Window:
    def __init__(self, direction: Direction, size: int) -> None:
        self.finished = 0  # how many trials there were to learn from, those that have left the window too
        self._sign = -1.0 if direction is Direction.MAXIMIZE else 1.0
        self._size = size
        self._finished: dict[int, Trial] = {}
        self._numbers: list[int] = []
        self._succeeded: list[tuple[float, int]] = []  # (loss, number), the BEST lowest
        self._pruned: list[tuple[float, float, int]] = []  # (-step, loss, number): Optuna's order of pruned trials
        self._running: list[int] = []
        self._open: dict[int, Trial] = {}

    def put(self, trial: Trial) -> None:
        number = trial.number
        if trial.state is TrialState.RUNNING:
            if number not in self._open:
                insort(self._running, number)
            self._open[number] = trial
            return
        if self._open.pop(number, None) is not None:
            del self._running[bisect_left(self._running, number)]
        if _teaches(trial):
            self.finished += 1
            self._finished[number] = trial
            insort(self._numbers, number)
            self._rank(trial)
            if len(self._numbers) > 2 * self._size:
                self._forget()

    def _rank(self, trial: Trial) -> None:
        if trial.state is TrialState.PRUNED:
            if trial.value is None or trial.step is None:
                return
            insort(self._pruned, (-trial.step, self._sign * trial.value, trial.number))
            del self._pruned[BEST:]
        elif trial.value is not None:
            insort(self._succeeded, (self._sign * trial.value, trial.number))
            del self._succeeded[BEST:]

    def _forget(self) -> None:
        """Those that are neither recent nor among the best: no trial that comes later makes them so again."""
        ranked = {number for *_, number in self._succeeded} | {number for *_, number in self._pruned}
        for number in self._numbers[: -self._size]:
            if number not in ranked:
                del self._finished[number]
        self._numbers = sorted(ranked.union(self._numbers[-self._size :]))

    def learnt(self) -> Iterator[Trial]:
        """Finished trials in the order of their numbers, at most the window's size."""
        ranked = [number for *_, number in self._succeeded] + [number for *_, number in self._pruned]
        chosen = set(ranked[:BEST])
        earliest = len(self._numbers)
        while earliest and len(chosen) < self._size:  # some of the recent ones are among the best
            latest, earliest = earliest, max(0, earliest - (self._size - len(chosen)))
            chosen.update(self._numbers[earliest:latest])
        return (self._finished[number] for number in sorted(chosen))

    def running(self, most: int) -> Iterator[Trial]:
        """The `most` recent running trials, in the order of their numbers."""
        return (self._open[number] for number in self._running[-most:])


def _teaches(trial: Trial) -> bool:
    """Succeeded with a finite value, or pruned; failed, infeasible and cancelled ones have nothing to tell a model."""
    if trial.state is TrialState.PRUNED:
        return trial.value is None or math.isfinite(trial.value)
    return trial.state is TrialState.SUCCEEDED and trial.value is not None and math.isfinite(trial.value)
