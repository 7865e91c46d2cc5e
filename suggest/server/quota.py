"""How much a namespace may have, and how much it has.

What is there is counted when a namespace is first written to and again now and then, in the background; in between,
what passes here is added up, so that no write waits for a count. Before anything is refused it is counted anew, unless
that was a moment ago. So one server keeps its limits but for what is being written at that moment; of what other
servers write on the same database, and of what was deleted, it learns at the next count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TimesUp
from contextlib import contextmanager

from suggest import deadline
from suggest.errors import LimitReached, TunerError
from suggest.server.limits_file import Limits, Room
from suggest.storage.store import Counts
from suggest.study import StudyName

RECOUNT_S = 60.0  # at most this often of its own accord
AGAIN_S = 1.0  # at most this often before a refusal
_WAIT_S = 0.2  # of a write for the first count
_PATIENCE_S = 5.0  # of a write that would be refused
_SHARE = 20  # counting takes at most one part in so many of the time


class _Namespace:
    """What is known of one. Everything in it is touched under its lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.added = Counts()  # by this server, ever
        self.base: Counts | None = None  # what was counted, less what had been added then
        self.counted_at = 0.0  # when the last count began
        self.took_s = 0.0
        self.counting: Future[None] | None = None


class Rooms:
    """`limits`: those that hold now. Thread-safe; close() ends the counting."""

    def __init__(self, count: Callable[[str], Counts], limits: Callable[[], Limits]) -> None:
        self._count = count
        self._limits = limits
        self._namespaces: dict[str, _Namespace] = {}
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="counting")

    @contextmanager
    def taking(self, name: StudyName, need: Counts) -> Iterator[None]:
        """Around a write of so much more. Raises LimitReached."""
        namespace = self._namespaces.setdefault(name.namespace, _Namespace())
        if namespace.base is None:
            self._wait(self._recount(name.namespace, namespace, not_since_s=RECOUNT_S), _WAIT_S)
        elif time.monotonic() - namespace.counted_at > RECOUNT_S:
            self._recount(name.namespace, namespace, not_since_s=RECOUNT_S)
        if not self._add(name.namespace, namespace, need):
            self._wait(self._recount(name.namespace, namespace, not_since_s=AGAIN_S), _PATIENCE_S)
            if not self._add(name.namespace, namespace, need):
                raise self._full(name.namespace, namespace, need)
        try:
            yield
        except BaseException:
            with namespace.lock:
                namespace.added = namespace.added.minus(need)
            raise

    def note(self, name: StudyName, more: Counts) -> None:
        """What is not refused counts too."""
        namespace = self._namespaces.setdefault(name.namespace, _Namespace())
        with namespace.lock:
            namespace.added = namespace.added.plus(more)

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)

    def _add(self, name: str, namespace: _Namespace, need: Counts) -> bool:
        room = self._limits().room_of(name)
        with namespace.lock:
            if namespace.base is not None and _short(room, namespace.base.plus(namespace.added), need):
                return False
            namespace.added = namespace.added.plus(need)
            return True

    def _full(self, name: str, namespace: _Namespace, need: Counts) -> LimitReached:
        room = self._limits().room_of(name)
        used = (namespace.base or Counts()).plus(namespace.added)
        what = _short(room, used, need) or "trials"
        there, most, more = getattr(used, what), getattr(room, what), getattr(need, what)
        return LimitReached(
            f"the namespace {name} has {there:,} of the {most:,} {what} that it may have, and {more:,} more were asked "
            f"for; delete studies that nobody needs, or have the server's operator raise {what} in its file of limits",
            limit=what,
            subject=f"namespaces/{name}",
        )

    def _recount(self, name: str, namespace: _Namespace, *, not_since_s: float) -> Future[None] | None:
        """The count that is under way, or a new one; None if there was one lately."""
        with namespace.lock:
            if namespace.counting is not None and not namespace.counting.done():
                return namespace.counting
            pause_s = max(not_since_s, _SHARE * namespace.took_s)
            if namespace.counted_at and time.monotonic() - namespace.counted_at < pause_s:
                return None
            namespace.counted_at = time.monotonic()
            namespace.counting = self._executor.submit(self._counted, name, namespace)
            return namespace.counting

    def _counted(self, name: str, namespace: _Namespace) -> None:
        began = time.monotonic()
        added = namespace.added
        try:
            found = self._count(name)
        except TunerError:
            return  # whoever writes next learns why
        with namespace.lock:
            namespace.base = found.minus(added)
            namespace.took_s = time.monotonic() - began

    @staticmethod
    def _wait(counting: Future[None] | None, patience_s: float) -> None:
        if counting is not None:
            try:
                counting.result(deadline.left_s(patience_s))
            except TimesUp:
                return


def _short(room: Room, used: Counts, need: Counts) -> str:
    """What there would be too much of, or "" """
    for what in Counts._fields:
        most, more = getattr(room, what), getattr(need, what)
        if more and most is not None and getattr(used, what) + more > most:
            return what
    return ""
