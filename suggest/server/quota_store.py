"""A store that takes no more than a namespace has room for; otherwise the store that it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from suggest.errors import LimitReached
from suggest.server.limits_file import Limits
from suggest.server.quota import Rooms
from suggest.storage.store import Addition, Counts, Lease, Store, StudyRecord
from suggest.trial import Measurement, Trial


def limited(store: Store, limits: Callable[[], Limits]) -> Store:
    """`limits`: those that hold now. Closing it closes the store."""
    # It has all that a store has; what it passes on is seen by no checker.
    return cast(Store, _LimitedStore(store, limits))


class _LimitedStore:
    """What makes something takes it from its namespace's room. Raises LimitReached, and has written nothing then."""

    def __init__(self, store: Store, limits: Callable[[], Limits]) -> None:
        self._store = store
        self._rooms = Rooms(store.counts, limits)

    def insert_study(self, record: StudyRecord) -> bool:
        name = record.study.name
        try:
            with self._rooms.taking(name, Counts(studies=1)):
                if self._store.insert_study(record):
                    return True
                raise _NothingNew
        except _NothingNew:
            return False
        except LimitReached:
            if self._store.study(name) is None:
                raise
            return False  # a repetition is none the less answered

    def hand_out(self, lease: Lease, trials: Sequence[Trial], *, queued: int = 0) -> None:
        with self._rooms.taking(lease.name, Counts(trials=len(trials) - queued)):
            self._store.hand_out(lease, trials, queued=queued)

    def add_trial(self, lease: Lease, trial: Trial, *, request_id: str, measurements: Sequence[Measurement]) -> None:
        with self._rooms.taking(lease.name, Counts(trials=1, measurements=len(measurements))):
            self._store.add_trial(lease, trial, request_id=request_id, measurements=measurements)

    def add_trials(self, lease: Lease, additions: Sequence[Addition]) -> None:
        measured = sum(len(each.measurements) for each in additions)
        with self._rooms.taking(lease.name, Counts(trials=len(additions), measurements=measured)):
            self._store.add_trials(lease, additions)

    def add_measurements(self, lease: Lease, number: int, measurements: Sequence[Measurement]) -> None:
        with self._rooms.taking(lease.name, Counts(measurements=len(measurements))):
            self._store.add_measurements(lease, number, measurements)

    def finish_trial(self, lease: Lease, trial: Trial, measurements: Sequence[Measurement]) -> None:
        """Never refused: what was begun can be ended."""
        self._store.finish_trial(lease, trial, measurements)
        if measurements:
            self._rooms.note(lease.name, Counts(measurements=len(measurements)))

    def close(self) -> None:
        self._rooms.close()
        self._store.close()

    def __getattr__(self, name: str) -> Any:
        """All else is the store's own (Any: whatever that is)."""
        return getattr(self._store, name)


class _NothingNew(Exception):
    """Somebody has it already: the room is given back."""
