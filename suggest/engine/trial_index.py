"""The trials of one study in memory: open ones whole, of finished ones their states, and who asked for which.

A finished trial is rarely read again and takes a kilobyte: the index forgets it where `FinishedTrials` can read it
again. The sampler has already learned from it. No rule about trials lives here.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Protocol

from suggest.curves import Report, TrialCurve
from suggest.trial import Trial, TrialState

_STATES = tuple(TrialState)
_CODES = {state: code for code, state in enumerate(_STATES)}
_NONE = 255


class FinishedTrials(Protocol):
    """Tells finished trials again, as they are now; those that were cancelled nobody asks it for."""

    def trial(self, number: int) -> Trial | None: ...

    def trials(self) -> Iterable[Trial]:
        """All, in the order of their numbers; a deleted one as cancelled."""
        ...

    def report(self, number: int) -> Report:
        """All that it reported."""
        ...

    def curves(self) -> Iterable[TrialCurve]:
        """Of the succeeded and the pruned trials, those that have one, in the order of their numbers."""
        ...


class TrialIndex:
    """`source`: None where finished trials are to be kept here."""

    def __init__(self, source: FinishedTrials | None) -> None:
        self._source = source
        self._kept: dict[int, Trial] = {}
        self._states = bytearray()
        self._count = 0
        # Requests by their hashes, rising, each with a trial of it; beside each other.
        self._hashes = array("q")
        self._numbers = array("q")

    def __len__(self) -> int:
        return self._count

    @property
    def next_number(self) -> int:
        return len(self._states)

    def state(self, number: int) -> TrialState | None:
        """None: there is no such trial."""
        code = self._states[number] if 0 <= number < len(self._states) else _NONE
        return None if code == _NONE else _STATES[code]

    def get(self, number: int) -> Trial | None:
        kept = self._kept.get(number)
        if kept is not None or self._source is None or self.state(number) is None:
            return kept
        return self._source.trial(number)

    def fill(self, trials: Iterable[Trial]) -> Iterator[Trial]:
        """Put all of these, once, and pass them on one by one."""
        asked: list[tuple[int, int]] = []
        for trial in trials:
            self._put(trial)
            if trial.request_id:
                asked.append((hash(trial.request_id), trial.number))
            yield trial
        asked.sort()
        self._hashes.extend(key for key, _ in asked)
        self._numbers.extend(number for _, number in asked)

    def put(self, trial: Trial) -> None:
        """A new trial, or a new version of a known one."""
        number = trial.number
        old = self._kept.get(number)
        before = "" if old is None else old.request_id
        # A finished trial's request changes no more.
        if before != trial.request_id and (old is not None or self.state(number) is None):
            if before:
                self._unlist(before, number)
            if trial.request_id:
                self._list(trial.request_id, number)
        self._put(trial)

    def _put(self, trial: Trial) -> None:
        number = trial.number
        if number >= len(self._states):
            self._states.extend([_NONE] * (number + 1 - len(self._states)))
        self._count += self._states[number] == _NONE
        self._states[number] = _CODES[trial.state]
        # A deleted trial comes as a cancelled one, and nobody can tell it again.
        if self._source is None or not trial.finished or trial.state is TrialState.CANCELLED:
            self._kept[number] = trial
        else:
            self._kept.pop(number, None)

    def all(self) -> Iterator[Trial]:
        """In the order of their numbers."""
        if self._source is not None:
            return iter(self._source.trials())
        return (self._kept[number] for number in sorted(self._kept))

    def in_states(self, *states: TrialState) -> Iterator[int]:
        """The numbers of the trials in one of these states, rising."""
        codes = {_CODES[state] for state in states}
        return (number for number, state in enumerate(self._states) if state in codes)

    def of_request(self, request_id: str) -> tuple[Trial, ...]:
        """In the order of their numbers."""
        key = hash(request_id)
        first, last = bisect_left(self._hashes, key), bisect_right(self._hashes, key)
        found = [trial for number in sorted(self._numbers[first:last]) if (trial := self.get(number)) is not None]
        return tuple(trial for trial in found if trial.request_id == request_id)

    def _list(self, request_id: str, number: int) -> None:
        place = bisect_right(self._hashes, hash(request_id))
        self._hashes.insert(place, hash(request_id))
        self._numbers.insert(place, number)

    def _unlist(self, request_id: str, number: int) -> None:
        place = bisect_left(self._hashes, hash(request_id))
        while self._numbers[place] != number:
            place += 1
        del self._hashes[place], self._numbers[place]
