"""Store health as seen by calls: one log line when the store fails, one when it works again.

A thousand calls that fail for the same reason are a single event, logged with their number. A call
that succeeds does not show that the store works: a renewed lease or a repeated request may need no
write. So the store works again when calls succeed and none has failed for a while; clients repeat
what fails several times a second.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from suggest import events
from suggest.errors import StoreBroken, StoreUnavailable, TunerError

SETTLED_S = 3.0
_KINDS = {"unavailable": "unavailable", "store_broken": "broken"}


@dataclass(slots=True)
class _Outage:
    since_s: float
    last_s: float
    """When a call failed last."""
    failed: int


class StoreHealth:
    """Tracks failures of reads and of writes, separately because a full disk can be read.

    The server's loop owns it.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.errors: Counter[str] = Counter()  # by reason, since the start
        self._now_s = now_s
        self._lost: dict[bool, _Outage] = {}  # by whether the calls write

    def by_kind(self) -> dict[str, int]:
        """Return how many calls have failed, by what the store was."""
        return {kind: self.errors[reason] for reason, kind in _KINDS.items()}

    def refused(self, error: TunerError, *, writing: bool) -> None:
        if not isinstance(error, StoreBroken | StoreUnavailable):
            return
        self.errors[error.reason.lower()] += 1
        now_s = self._now_s()
        outage = self._lost.get(writing)
        if outage is None:
            events.warn("store_lost", use=_USE[writing], reason=error.reason, error=str(error))
            self._lost[writing] = _Outage(now_s, now_s, 1)
        else:
            outage.last_s = now_s
            outage.failed += 1

    def answered(self, *, writing: bool) -> None:
        """Record a call that succeeded."""
        outage = self._lost.get(writing)
        if outage is not None and self._now_s() - outage.last_s >= SETTLED_S:
            del self._lost[writing]
            seconds = outage.last_s - outage.since_s
            events.warn(
                "store_found", use=_USE[writing], seconds=seconds, failed_calls=outage.failed
            )


_USE = {True: "writing", False: "reading"}
