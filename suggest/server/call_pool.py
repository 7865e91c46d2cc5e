"""Runs calls in worker threads: those that write the same study one at a time,
and no caller in all threads.

A call waits without occupying a thread. Otherwise the calls of one slow study would soon occupy all
threads while they wait for its lock. Python runs one thread at a time, so calls that compute for
long are held to fewer threads than others. Nothing is predicted: a kind of call is heavy for some
seconds after one of them was.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from suggest import threads
from suggest.errors import Unavailable
from suggest.fair_share import FairShare, KeyedLock
from suggest.workers import thread_cpu_s

HEAVY_S = 0.1  # CPU time of a heavy call
HEAVY_THREADS = 2  # for heavy calls of all callers; a single caller has one of them
REPLY_BYTES = 4 << 20  # the largest reply, for which a call has room before it begins
ALL_REPLY_BYTES = 64 << 20  # of replies that are not sent yet
_REMEMBERED_S = 10.0  # how long a kind of call stays heavy
_MANY = 10_000  # kinds of calls to remember

T = TypeVar("T")


class HeavyCalls:
    """The kinds of calls, such as a method and its caller, that had a heavy call lately."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: dict[str, float] = {}

    def __contains__(self, kind: str) -> bool:
        return self._until.get(kind, 0.0) > self._now()

    def add(self, kind: str) -> None:
        if len(self._until) >= _MANY:
            self._until.clear()
        self._until[kind] = self._now() + _REMEMBERED_S


class CallPool:
    """Runs calls in the threads of an executor, which has `threads` of them."""

    def __init__(self, executor: Executor, *, threads: int) -> None:
        self._executor = executor
        self._threads = FairShare(threads)
        self._heavy_threads = FairShare(HEAVY_THREADS)
        self._replies = FairShare(ALL_REPLY_BYTES)
        self._studies = KeyedLock()
        self.heavy = HeavyCalls()
        self.wanted = 0  # calls whose callers still wait for the reply, begun or not
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting_for_study(self) -> int:
        return self._studies.waiting

    @property
    def waiting_for_thread(self) -> int:
        return self._threads.waiting + self._heavy_threads.waiting + self._replies.waiting

    async def run(
        self,
        caller: str,
        work: Callable[[], T],
        *,
        study: str = "",
        kind: str = "",
        is_heavy: bool = False,
    ) -> T:
        """Run `work` in a thread, one at a time for each `study`; "" means work that needs no lock.

        It is heavy if one of its kind was lately, or if the caller of this method says so: clients
        may name new studies without end, and each is new here.

        If cancelled while waiting, the work is never done. If cancelled later, the work still
        finishes, and only then the next one begins.

        Raises:
            StudyBusy: too many calls wait for the study.
            Unavailable: the pool was closed, or the system gives no more threads.
        """
        self.wanted += 1
        self._idle.clear()
        try:
            return await self._run(caller, work, study, kind, is_heavy)
        finally:
            self.wanted -= 1
            if not self.wanted:
                self._idle.set()

    # a callback; grpc's stubs do not export its type
    def sending(self, caller: str, size: int) -> Any:
        """Count a reply until the returned function is called: it is sent or the caller is gone."""
        self._replies.add(caller, size)

        def sent(_: object) -> None:
            self._replies.give(caller, size)

        return sent

    async def idle(self) -> None:
        """Wait until there are no calls."""
        await self._idle.wait()

    def close(self) -> None:
        """Let all calls that have not begun raise Unavailable."""
        stopping = Unavailable("this server is stopping; send the request again")
        for waited_for in (self._studies, self._heavy_threads, self._replies, self._threads):
            waited_for.close(stopping)

    async def _run(
        self, caller: str, work: Callable[[], T], study: str, kind: str, is_heavy: bool
    ) -> T:
        seconds = 0.0
        is_refused = False

        def timed() -> T:
            nonlocal seconds
            if is_refused:
                raise Unavailable(threads.NO_THREAD_LEFT)
            began = thread_cpu_s()
            try:
                return work()
            finally:
                seconds = thread_cpu_s() - began

        with contextlib.ExitStack() as taken:
            if study:
                await self._studies.acquire(study)
                taken.callback(self._studies.release, study)
            if is_heavy or kind in self.heavy:
                await self._heavy_threads.take(caller)
                taken.callback(self._heavy_threads.give, caller)
            await self._replies.take(caller, REPLY_BYTES)
            taken.callback(self._replies.give, caller, REPLY_BYTES)
            await self._threads.take(caller)
            taken.callback(self._threads.give, caller)
            try:
                done = self._executor.submit(timed)
            except RuntimeError as error:
                # The executor keeps the work, and its other threads would run it later.
                is_refused = True
                if threads.is_refused(error):
                    raise Unavailable(threads.NO_THREAD_LEFT) from error
                raise
            until_done = taken.pop_all()  # even if the caller is gone

        def ended() -> None:
            if seconds > HEAVY_S:
                self.heavy.add(kind)
            until_done.close()

        try:
            return await asyncio.wrap_future(done)
        finally:
            if done.done():
                ended()
            else:
                loop = asyncio.get_running_loop()
                done.add_done_callback(lambda _: loop.call_soon_threadsafe(ended))
