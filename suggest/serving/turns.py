"""Who works when: calls that write the same study come one after the other, and wait without a worker thread.

Otherwise the calls of one slow study would soon sit in all threads, waiting for its lock, and stop every other study.
Belongs to one event loop; nothing here knows what the work is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from suggest.errors import StudyBusy

MAX_WAITING = 256  # calls for one study; each holds its request
BUSY_PAUSE_S = 0.5  # what a client is told to wait then

_LARGE = "large calls"  # beside the studies' names, of which none has a blank

T = TypeVar("T")


class Turns:
    """`workers`: how many threads the executor has."""

    def __init__(self, executor: Executor, *, workers: int) -> None:
        self._executor = executor
        self._workers = workers
        self._submitted = 0  # and not done yet
        self._in_line = 0  # for their turn
        self._wanted = 0  # by callers that are still there
        self._idle = asyncio.Event()
        self._idle.set()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by study that somebody writes now

    @property
    def wanted(self) -> int:
        """Work that somebody waits for, begun or not."""
        return self._wanted

    def at_work(self) -> int:
        """Work that somebody waits for and that waits for no turn. Any thread may ask."""
        return self._wanted - self._in_line

    @property
    def waiting_for_study(self) -> int:
        return self._in_line

    @property
    def waiting_for_worker(self) -> int:
        return max(0, self._submitted - self._workers)

    async def run(self, study: str, work: Callable[[], T], *, large: bool = False) -> T:
        """In a thread, alone among the work for `study`; "" stands for work that needs no turn.

        Large work is done one piece at a time: each thread that computes makes all others wait for the interpreter.
        Cancelled while it waits: never done. Cancelled later: finished nevertheless, and only then comes the next.
        Raises StudyBusy: too many wait already.
        """
        self._wanted += 1
        self._idle.clear()
        try:
            return await self._run((study, _LARGE) if large else (study,), work)
        finally:
            self._wanted -= 1
            if not self._wanted:
                self._idle.set()

    async def idle(self) -> None:
        """Returns when nobody waits for anything."""
        await self._idle.wait()

    async def _run(self, wanted: tuple[str, ...], work: Callable[[], T]) -> T:
        taken: list[str] = []
        try:
            for each in filter(None, wanted):
                await self._turn(each)
                taken.append(each)
            done = self._executor.submit(work)
        except BaseException:
            self._pass_on(taken)
            raise
        self._submitted += 1
        try:
            return await asyncio.wrap_future(done)
        finally:
            if done.done():
                self._finished(taken)
            else:
                loop = asyncio.get_running_loop()
                done.add_done_callback(lambda _: loop.call_soon_threadsafe(self._finished, taken))

    async def _turn(self, study: str) -> None:
        waiting = self._waiting.get(study)
        if waiting is None:
            self._waiting[study] = deque()
            return
        if len(waiting) >= MAX_WAITING:
            raise StudyBusy(
                f"{study}: {len(waiting)} calls wait for it already, and one at a time writes it; try again later, or "
                "send fewer at once",
                retry_s=BUSY_PAUSE_S,
            )
        turn = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        self._in_line += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on([study])  # it came in the moment in which nobody wanted it any more
            elif turn in waiting:
                waiting.remove(turn)
            raise
        finally:
            self._in_line -= 1

    def _finished(self, taken: list[str]) -> None:
        self._submitted -= 1
        self._pass_on(taken)

    def _pass_on(self, taken: list[str]) -> None:
        for each in taken:
            waiting = self._waiting[each]
            while waiting and waiting[0].done():
                waiting.popleft()  # its call was cancelled, and is about to notice
            if waiting:
                waiting.popleft().set_result(None)
            else:
                del self._waiting[each]
