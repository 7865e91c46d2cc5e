"""The deadline of the current call: the client's, or the server's default.

It is known during the call, in its task and in its worker thread.
Code that may block asks for the time left; code that computes for
long calls `check()` between steps, as long as it has written nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from suggest.errors import TimedOut, Unavailable

DEFAULT_S = 60.0  # for calls without a deadline
# the longest wait for a lock, whatever the deadline; four times as long as a store may hold one
LOCK_S = 20.0

_END: ContextVar[float | None] = ContextVar("deadline", default=None)
_STOPPED: ContextVar[threading.Event | None] = ContextVar("stopped", default=None)


def begin(given_s: float | None, *, stopped: threading.Event | None = None) -> None:
    """Begin a call with `given_s` seconds, or the server's default.

    `stopped` is set when the server ends what it has not finished.
    """
    _END.set(time.monotonic() + (DEFAULT_S if given_s is None else given_s))
    _STOPPED.set(stopped)


def check() -> None:
    """Check the deadline between two steps of a long computation.

    Raises:
        TimedOut: the call's time is up.
        Unavailable: the server is being stopped.
    """
    end = _END.get()
    if end is None:
        return
    if time.monotonic() > end:
        raise TimedOut(
            "not computed before the call's deadline; request fewer trials at once, or allow more "
            "time"
        )
    stopped = _STOPPED.get()
    if stopped is not None and stopped.is_set():
        raise Unavailable("this server is stopping; send the request again")


def left_s(at_most: float) -> float:
    """Return how long this call may still wait; `at_most` outside of a call."""
    end = _END.get()
    return at_most if end is None else max(0.0, min(at_most, end - time.monotonic()))


@contextmanager
def locked(lock: threading.Lock, *, late: Exception) -> Iterator[None]:
    """Hold the lock like `with lock`, but raise `late` if the call may not wait any longer."""
    if not lock.acquire(timeout=left_s(LOCK_S)):
        raise late
    try:
        yield
    finally:
        lock.release()
