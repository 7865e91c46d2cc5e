"""Successive halving by promotion: which paused trials continue with a larger fidelity.

ASHA, Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning", algorithm 2: a rung
is a fidelity, and a trial with a value at a rung continues when it is among the best 1/eta of the
trials with one. A request for trials gets a paused trial that may continue, from the highest rung
first, or else a new trial, so nothing waits for a rung to fill. With brackets (Hyperband, Li et al.
2018), a trial's number determines its first rung, and trials are compared within their bracket.

Promotion is a function of the trials: an engine that is rebuilt
from the store promotes the same ones.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from suggest.pruners.hyperband import bracket_of, bracket_shares
from suggest.study import Direction, Fidelity, StudySpec
from suggest.trial import Trial, TrialState

# Algorithms that distribute trials over brackets.
BRACKETED = frozenset({"hyperband", "bohb"})
PROMOTING = frozenset({"asha", "hyperband"})  # pruning rules that promotion replaces


def uses_brackets(spec: StudySpec) -> bool:
    """Return whether trials begin at different fidelities."""
    return spec.algorithm.name in BRACKETED or (
        spec.pruning is not None and spec.pruning.name == "hyperband"
    )


def promotion(spec: StudySpec) -> Promotion | None:
    """Return the rule of a study with a fidelity; None of one without."""
    if spec.fidelity is None:
        return None
    return Promotion(spec.fidelity, spec.objective.direction, brackets=uses_brackets(spec))


@dataclass(slots=True)
class _Rung:
    """The trials of one bracket at one fidelity.

    Those with a value are sorted by (loss, number); those that are paused there are kept beside.
    """

    reached: list[tuple[float, int]]
    paused: list[tuple[float, int]]


class Promotion:
    """Not thread-safe: its owner holds the study's lock."""

    def __init__(self, fidelity: Fidelity, direction: Direction, *, brackets: bool) -> None:
        self._fidelity = fidelity
        self._sign = direction.sign
        self._levels = fidelity.levels
        count = len(self._levels) if brackets else 1
        self._shares = bracket_shares(count, fidelity.eta)
        # By the level at which a trial began. A revision of the pruning rule
        # may bring brackets, or end them.
        self._rungs = [[_Rung([], []) for _ in self._levels] for _ in self._levels]
        # By trial: at each rung from its first one.
        self._losses: dict[int, list[float]] = {}
        self._paused_at: dict[int, int] = {}  # the rung, by trial
        # Trials that have reached the largest fidelity.
        self._complete = 0

    def first(self, number: int) -> float:
        """Return the fidelity with which a new trial begins."""
        return self._levels[bracket_of(number, self._shares)]

    def following(self, trial: Trial) -> float:
        """Return the fidelity with which a paused trial continues."""
        return self._levels[self._paused_at[trial.number] + 1]

    def is_last(self, fidelity: float | None) -> bool:
        return fidelity is None or fidelity >= self._levels[-1]

    def put(self, trial: Trial) -> None:
        """Put a new trial, or a new version of a known one."""
        number = trial.number
        bracket = self._levels.index(trial.rungs[0].fidelity) if trial.rungs else 0
        losses = self._losses.setdefault(number, [])
        for rung in trial.rungs[len(losses) :]:
            loss = self._sign * rung.value
            insort(self._rungs[bracket][bracket + len(losses)].reached, (loss, number))
            losses.append(loss)
        was, now = self._paused_at.pop(number, None), None
        if trial.state is TrialState.PAUSED and losses:
            now = self._paused_at[number] = bracket + len(losses) - 1
        if was != now:
            if was is not None:
                paused = self._rungs[bracket][was].paused
                del paused[bisect_left(paused, (losses[was - bracket], number))]
            if now is not None:
                insort(self._rungs[bracket][now].paused, (losses[now - bracket], number))
        if trial.state is TrialState.SUCCEEDED:
            self._complete += 1

    def next(self, count: int) -> list[int]:
        """Return up to `count` paused trials that may continue.

        The highest rung comes first, and its best trials before the others.
        """
        numbers: list[int] = []
        for number in self._promotable():
            if len(numbers) == count:
                break
            numbers.append(number)
        return numbers

    def _promotable(self) -> Iterator[int]:
        for level in reversed(range(len(self._levels) - 1)):
            for rungs in self._rungs:
                rung = rungs[level]
                promoted = len(rung.reached) // self._fidelity.eta
                for entry in rung.paused:
                    if bisect_left(rung.reached, entry) >= promoted:
                        break
                    yield entry[1]

    def last_resort(self) -> int | None:
        """Return the paused trial to continue so that the search ends with a complete trial.

        None if there is one.

        Used when no trial runs and no new one will begin: the best trial of the highest rung.
        """
        if self._complete:
            return None
        for level in reversed(range(len(self._levels) - 1)):
            waiting = [rungs[level].paused[0] for rungs in self._rungs if rungs[level].paused]
            if waiting:
                return min(waiting)[1]
        return None

    def waits_for(self, trial: Trial) -> str:
        """Return the reason of a trial that pauses: its fidelity, and what it waits for."""
        f = self._fidelity
        at, last = trial.rungs[-1].fidelity, self._levels[-1]
        rule = f"it continues when it is among the best 1/{f.eta} of those that reached it"
        return f"{f.parameter} {at:g} of {last:g}; {rule}"
