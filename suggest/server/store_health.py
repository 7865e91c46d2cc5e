"""Store health as seen by calls: one log line when the store fails, one when it works again.

A thousand calls that fail for the same reason are a single event, logged with their number.
"""

from __future__ import annotations

import time
from collections import Counter

from suggest import events
from suggest.errors import StoreBroken, StoreUnavailable, TunerError


class StoreHealth:
    """Tracks failures of reads and of writes, separately because a full disk can be read. The server's loop owns it."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()  # by reason, since the start
        self._lost: dict[bool, tuple[float, int]] = {}  # by whether the calls write: (since when, failed calls)

    def refused(self, error: TunerError, *, writing: bool) -> None:
        if not isinstance(error, StoreBroken | StoreUnavailable):
            return
        self.errors[error.reason.lower()] += 1
        if writing not in self._lost:
            events.warn("store_lost", use=_USE[writing], reason=error.reason, error=str(error))
        since, failed = self._lost.get(writing, (time.monotonic(), 0))
        self._lost[writing] = since, failed + 1

    def answered(self, *, writing: bool) -> None:
        """Record a call that succeeded."""
        if writing in self._lost:
            since, failed = self._lost.pop(writing)
            events.warn("store_found", use=_USE[writing], seconds=time.monotonic() - since, failed_calls=failed)


_USE = {True: "writing", False: "reading"}
