"""Store health as the calls see it: one log line when the store is lost, one when it is found again.

A thousand calls that fail for one reason are one event, with their number.
"""

from __future__ import annotations

import time
from collections import Counter

from suggest import events
from suggest.errors import StoreBroken, StoreUnavailable, TunerError


class StoreHealth:
    """Belongs to the server's loop. Reading and writing are lost and found separately: a full disk can be read."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()  # by reason, of all time
        self._lost: dict[
            bool, tuple[float, int]
        ] = {}  # by whether it is for writing: since when, and calls that failed

    def refused(self, error: TunerError, *, writing: bool) -> None:
        if not isinstance(error, StoreBroken | StoreUnavailable):
            return
        self.errors[error.reason.lower()] += 1
        if writing not in self._lost:
            events.warn("store_lost", use=_USE[writing], reason=error.reason, error=str(error))
        since, failed = self._lost.get(writing, (time.monotonic(), 0))
        self._lost[writing] = since, failed + 1

    def answered(self, *, writing: bool) -> None:
        """A call has succeeded."""
        if writing in self._lost:
            since, failed = self._lost.pop(writing)
            events.warn("store_found", use=_USE[writing], seconds=time.monotonic() - since, failed_calls=failed)


_USE = {True: "writing", False: "reading"}
