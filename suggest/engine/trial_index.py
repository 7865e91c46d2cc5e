"""The trials of one study in memory: unfinished trials, the states of all trials,
and the requests that got them.

A finished trial takes a kilobyte and is rarely read again, since the sampler has learned from it.
The index drops it if `FinishedTrials` can read it again. This module has no rules about trials.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Protocol

from suggest.curves import Report, TrialCurve
from suggest.trial import Trial, TrialBatch, TrialState

_STATES = tuple(TrialState)
_CODES = {state: code for code, state in enumerate(_STATES)}
_NONE = 255


class FinishedTrials(Protocol):
    """Reads finished trials again, in their present state. It is not asked for cancelled ones."""

    def trial(self, number: int) -> Trial | None: ...

    def trials(self) -> Iterable[Trial]:
        """Return all trials in the order of their numbers, deleted ones as cancelled."""
        ...

    def report(self, number: int) -> Report:
        """Return everything that the trial reported."""
        ...

    def curves(self) -> Iterable[TrialCurve]:
        """Return the curves of succeeded and pruned trials in the order of their numbers."""
        ...


class TrialIndex:
    """The trials of one study. Without a `source` it also keeps finished trials."""

    def __init__(self, source: FinishedTrials | None) -> None:
        self._source = source
        self._kept: dict[int, Trial] = {}
        self._states = bytearray()
        self._count = 0
        # Two parallel columns: the hashes of request ids, ascending,
        # and for each a trial of that request.
        self._hashes = array("q")
        self._numbers = array("q")

    def __len__(self) -> int:
        return self._count

    @property
    def next_number(self) -> int:
        return len(self._states)

    def state(self, number: int) -> TrialState | None:
        """Return the trial's state; None if there is no such trial."""
        code = self._states[number] if 0 <= number < len(self._states) else _NONE
        return None if code == _NONE else _STATES[code]

    def get(self, number: int) -> Trial | None:
        cached = self._kept.get(number)
        if cached is not None or self._source is None or self.state(number) is None:
            return cached
        return self._source.trial(number)

    def fill(self, trials: Iterable[Trial]) -> Iterator[Trial]:
        """Put all of these trials once, and yield each of them."""
        ranges: list[tuple[int, int]] = []
        for trial in trials:
            self._put(trial)
            if trial.request_id:
                ranges.append((hash(trial.request_id), trial.number))
            yield trial
        ranges.sort()
        self._hashes.extend(key for key, _ in ranges)
        self._numbers.extend(number for _, number in ranges)

    def put(self, trial: Trial) -> None:
        """Put a new trial, or a new version of a known one."""
        number = trial.number
        old = self._kept.get(number)
        before = "" if old is None else old.request_id
        # The request of a finished trial does not change any more.
        if before != trial.request_id and (old is not None or self.state(number) is None):
            if before:
                self._unlist(before, number)
            if trial.request_id:
                self._list(trial.request_id, number)
        self._put(trial)

    def put_batch(self, batch: TrialBatch) -> None:
        """Put new trials, whose numbers follow those of all others."""
        assert batch.first >= len(self._states), "the trials of a batch are new"
        if self._source is None:
            self._kept.update((trial.number, trial) for trial in batch.trials())
        self._states.extend([_NONE] * (batch.first - len(self._states)))
        self._states.extend([_CODES[state] for state in batch.states])
        self._count += len(batch)

    def _put(self, trial: Trial) -> None:
        number = trial.number
        if number >= len(self._states):
            self._states.extend([_NONE] * (number + 1 - len(self._states)))
        self._count += self._states[number] == _NONE
        self._states[number] = _CODES[trial.state]
        # A deleted trial is passed as a cancelled one, and cannot be read again.
        if self._source is None or not trial.finished or trial.state is TrialState.CANCELLED:
            self._kept[number] = trial
        else:
            self._kept.pop(number, None)

    def all(self) -> Iterator[Trial]:
        """Return all trials in the order of their numbers."""
        if self._source is not None:
            return iter(self._source.trials())
        return (self._kept[number] for number in sorted(self._kept))

    def in_states(self, *states: TrialState) -> Iterator[int]:
        """Return the numbers of the trials in one of these states, ascending."""
        codes = {_CODES[state] for state in states}
        return (number for number, state in enumerate(self._states) if state in codes)

    def of_request(self, request_id: str) -> tuple[Trial, ...]:
        """Return the trials of a request in the order of their numbers."""
        key = hash(request_id)
        first, last = bisect_left(self._hashes, key), bisect_right(self._hashes, key)
        trials = [
            trial
            for number in sorted(self._numbers[first:last])
            if (trial := self.get(number)) is not None
        ]
        return tuple(trial for trial in trials if trial.request_id == request_id)

    def _list(self, request_id: str, number: int) -> None:
        index = bisect_right(self._hashes, hash(request_id))
        self._hashes.insert(index, hash(request_id))
        self._numbers.insert(index, number)

    def _unlist(self, request_id: str, number: int) -> None:
        index = bisect_left(self._hashes, hash(request_id))
        while self._numbers[index] != number:
            index += 1
        del self._hashes[index], self._numbers[index]
