"""The population of `pbt`: its generations, and the parent of the next trial.

A generation has as many trials as the population has members, and each of them continues from a
trial of the previous generation. A trial that ends without a value is not a member, and another one
takes its place. The rule depends only on the outcome and the parent of each trial, so a study that
is loaded again continues in the same way. This module creates no points.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import NamedTuple

from suggest.study import Direction
from suggest.trial import OPEN, Trial, TrialState

# Share of a generation that must have a value before the next one begins.
ENOUGH = 0.5


class Offspring(NamedTuple):
    """The next trial: its parent, and whether it changes the parent's parameters.

    The parent of a new member is None.
    """

    parent: int | None
    explores: bool


class _Member(NamedTuple):
    """The data that the rule keeps of a trial.

    `loss` is None without a value; smaller is better.
    """

    parent: int | None
    state: TrialState
    loss: float | None

    @property
    def alive(self) -> bool:
        return self.state in OPEN or self.loss is not None


@dataclass(slots=True)
class _Generation:
    """One generation.

    ranked: (loss, number) of the trials with a value, the best first.
    alive: these trials and the open ones.
    """

    ranked: list[tuple[float, int]] = field(default_factory=list)
    alive: int = 0


class PbtPopulation:
    """Not thread-safe: its owner holds the study's lock."""

    def __init__(self, size: int, truncation: float, direction: Direction) -> None:
        self._size = size
        self._truncation = truncation
        self._sign = direction.sign
        self._enough = max(1, math.ceil(size * ENOUGH))
        self._members: dict[int, _Member] = {}
        self._clear()

    def _clear(self) -> None:
        self._generation_of: dict[int, int] = {}
        self._generations = [_Generation()]
        # Number of trials that continue from a trial; without cancelled ones.
        self._offspring: dict[int, int] = {}
        # Generations with a trial that may continue.
        self._with_room: set[int] = set()
        self._is_outdated = False  # a trial was put before its parent

    def __contains__(self, number: int) -> bool:
        return number in self._members

    def put(self, trial: Trial) -> None:
        """Take a new trial, or a new version of a known one."""
        value, loss = trial.value, None
        if trial.state is TrialState.SUCCEEDED and value is not None and math.isfinite(value):
            loss = self._sign * value
        self._put(trial.number, _Member(trial.parent, trial.state, loss))

    def _put(self, number: int, member: _Member) -> None:
        self.drop(number)
        self._members[number] = member
        parent = member.parent
        if parent is not None and parent not in self._generation_of:
            self._is_outdated = True
        if self._is_outdated:
            return
        at = self._generation_of[number] = 0 if parent is None else self._generation_of[parent] + 1
        if at == len(self._generations):
            self._generations.append(_Generation())
        self._count(member, at, 1)
        if member.loss is not None:
            insort(self._generations[at].ranked, (member.loss, number))
        self._look_for_room(at)

    def drop(self, number: int) -> None:
        """Forget a trial, which is the parent of no other one or is put again."""
        member = self._members.pop(number, None)
        if member is None or self._is_outdated:
            return
        at = self._generation_of[number]
        self._count(member, at, -1)
        if member.loss is not None:
            ranked = self._generations[at].ranked
            del ranked[bisect_left(ranked, (member.loss, number))]
        self._look_for_room(at)

    def _count(self, member: _Member, at: int, by: int) -> None:
        self._generations[at].alive += by * member.alive
        if member.parent is not None and member.state is not TrialState.CANCELLED:
            self._offspring[member.parent] = self._offspring.get(member.parent, 0) + by

    def _look_for_room(self, changed: int) -> None:
        """Recompute whether trials of a generation, or of the previous one, may continue."""
        for at in (changed - 1, changed):
            if at < 0:
                continue
            ranked = len(self._generations[at].ranked)
            following = self._generations[at + 1].alive if at + 1 < len(self._generations) else 0
            has_room = ranked >= self._enough and following < min(ranked, self._size)
            (self._with_room.add if has_room else self._with_room.discard)(at)

    def next(self, source: random.Random) -> Offspring | None:
        """Return the next trial, of the earliest generation with room.

        None if another trial has to end first.
        """
        self._update()
        if self._generations[0].alive < self._size:
            return Offspring(None, explores=False)
        if not self._with_room:
            return None
        ranked = self._generations[min(self._with_room)].ranked
        replaced = self._replaced(len(ranked))
        for _, number in ranked[: len(ranked) - replaced]:
            if not self._offspring.get(number):
                return Offspring(number, explores=False)
        # The others are among the worst, or have lost the trial that continued from them.
        return Offspring(source.choice(ranked[: max(1, replaced)])[1], explores=True)

    def _replaced(self, ended: int) -> int:
        """Return how many of a generation's `ended` trials are replaced.

        Of a whole generation, at least one.
        """
        least = 1 if self._truncation and ended >= self._size else 0
        return max(least, math.floor(self._truncation * ended))

    def _update(self) -> None:
        if not self._is_outdated:
            return
        # A parent has a smaller number.
        members = sorted(self._members.items())
        self._members = {}
        self._clear()
        for number, member in members:
            known = member.parent is None or member.parent in self._generation_of
            self._put(number, member if known else member._replace(parent=None))
