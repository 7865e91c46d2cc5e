"""Cooperative yielding: long computations pause between their steps, so that short calls get the GIL.

A short call takes the GIL some twenty times; beside a thread that computes without pausing it takes three times as
long. Asking for the GIL is not enough: NumPy releases and takes it so often that a waiting thread always wakes too
late. So long work sleeps for a moment between its steps, whether or not another call is known to wait.

One thread computes at a time (`computing`), step by step in turn: threads that share one GIL would each take as long as
all of them together.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

PATIENCE_S = 0.004  # before each piece: somewhat longer than a short call takes
_PAUSE_S = 0.0005
_BREATH_S = 0.00005  # enough for who waits to wake up and take over

T = TypeVar("T")

_AT_WORK: ContextVar[Callable[[], int] | None] = ContextVar("at_work", default=None)
_long: set[int] = set()  # the threads whose call gives way; they do not wait for each other
_unasked: set[int] = set()  # those whose long work no call waits for yet


def begin(at_work: Callable[[], int]) -> None:
    """at_work: how many calls are being worked on, this one among them."""
    _AT_WORK.set(at_work)


@contextmanager
def long_work() -> Iterator[None]:
    """What this thread does until the end is long; within other long work it changes nothing."""
    me = threading.get_ident()
    threads = _unasked if _AT_WORK.get() is None else _long
    if me in threads:
        yield
        return
    threads.add(me)
    try:
        yield
    finally:
        threads.discard(me)


def at_length(work: Callable[..., T], *given: Any) -> T:
    """Do it as long work."""
    with long_work():
        return work(*given)


class _FairLock:
    """First come, first served, which no lock of Python's is: the holder would take it back before others wake."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._holder = 0  # a thread; 0: free
        self._waiting: deque[tuple[int, threading.Event]] = deque()

    def acquire(self) -> None:
        with self._mutex:
            if not self._holder:
                self._holder = threading.get_ident()
                return
            turn = threading.Event()
            self._waiting.append((threading.get_ident(), turn))
        turn.wait()

    def release(self) -> None:
        with self._mutex:
            self._holder, turn = self._waiting.popleft() if self._waiting else (0, None)
        if turn is not None:
            turn.set()

    def pass_on(self) -> None:
        """To be called by any thread: if it holds the lock and another waits, it goes to the end of the queue."""
        if self._waiting and self.held:
            self.release()
            self.acquire()

    @property
    def held(self) -> bool:
        """By this thread."""
        return self._holder == threading.get_ident()


_computing = _FairLock()


@contextmanager
def computing() -> Iterator[None]:
    """What this thread computes until the end; between its pieces (`breathe`) other threads have their turns."""
    _computing.acquire()
    try:
        yield
    finally:
        _computing.release()


def breathe() -> None:
    """To be called between pieces of some tenths of a millisecond. Sleeps in long work only."""
    _computing.pass_on()
    me = threading.get_ident()
    if me in _long or me in _unasked:
        time.sleep(_BREATH_S)


def give_way() -> None:
    """To be called between pieces, without a lock that others need but that of `computing`, which is free meanwhile. In
    work that is not long it only takes turns with others that compute."""
    breathe()
    at_work = _AT_WORK.get()
    if at_work is None or threading.get_ident() not in _long:
        return
    computes = _computing.held
    if computes:
        _computing.release()
    end = time.monotonic() + PATIENCE_S
    while at_work() > len(_long) and time.monotonic() < end:
        time.sleep(_PAUSE_S)
    if computes:
        _computing.acquire()
