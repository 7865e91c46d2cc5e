"""Prefetch: begin to compute a study's next proposal in a thread shortly after a call, before a
client asks for it.

The delay lets the reply to the call go out first. A proposal that is computed in this process is
prefetched on an idle machine only: a study that is busy, or whose turn comes late because the
machine is busy, is skipped, and its proposal is computed on demand. Prefetching never changes which
points are proposed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from suggest import threads
from suggest.errors import TunerError

AFTER_S = 0.0003
LATE_S = 0.002  # a thread that wakes up this late has waited for a CPU, so the machine is busy

WORTH_S = 0.02  # CPU time of a proposal up to which it is worth computing before a client asks
FAST_ONES = 3  # fast proposals after a slow one, before proposals are prefetched again

T = TypeVar("T")
log = logging.getLogger(__name__)


class ProposalCost:
    """Whether a study's proposals are cheap enough to compute before a client asks.

    They are computed in this process.

    A single slow proposal, for example one that imports modules, does not end prefetching for good.
    """

    def __init__(self) -> None:
        self._fast_ones_missing = 0

    def add(self, cpu_s: float) -> None:
        """Add the CPU time of a proposal."""
        self._fast_ones_missing = (
            max(0, self._fast_ones_missing - 1) if cpu_s < WORTH_S else FAST_ONES
        )

    @property
    def is_low(self) -> bool:
        return not self._fast_ones_missing


class Prefetcher(Generic[T]):
    """Calls `prepare` for one item at a time in a thread.

    The thread runs from the first later() until close().

    Args:
        prepare: Should return quickly if there is nothing to do.
        after_s: Delay of a call, in seconds.
        late_s: A call that would be later by more than this is skipped.
    """

    def __init__(
        self, prepare: Callable[[T], None], *, after_s: float = AFTER_S, late_s: float = LATE_S
    ) -> None:
        self._prepare = prepare
        self._after_s = after_s
        self._late_s = late_s
        self._due: dict[T, float] = {}  # the latest due time of each item, soonest first
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def later(self, item: T) -> None:
        """Schedule `prepare(item)`, because a proposal will be wanted soon."""
        with self._changed:
            if self._closed:
                return
            self._due.pop(item, None)
            self._due[item] = time.monotonic() + self._after_s
            if self._thread is None:
                self._thread = threads.started(self._run, "prefetch")
            elif len(self._due) == 1:
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (item := self._next()) is not None:
            try:
                self._prepare(item)
            # the proposal takes too much time or memory, or the server is stopping
            except TunerError as error:
                log.info("what=%s could not be prepared: %s", item, error)
            except Exception:  # the call that asks for the proposal gets the same error
                log.exception("what=%s could not be prepared", item)

    def _next(self) -> T | None:
        """Wait for the next item that is due; return None once closed."""
        with self._changed:
            while not self._closed:
                if not self._due:
                    self._changed.wait()
                    continue
                item, due_s = next(iter(self._due.items()))
                early_s = due_s - time.monotonic()
                if early_s > 0:
                    self._changed.wait(early_s)
                    continue
                del self._due[item]
                if early_s > -self._late_s:
                    return item
        return None
