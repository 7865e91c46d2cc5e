"""How many logs this process follows at a time: an open stream costs 300 KiB of memory.

Logs whose lines are awaited, by a pruner or by a canary, are followed first. The others are read
by turns, so many a second: thousands of pods must not become hundreds of requests a second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

FOLLOWED = 200
_READ_AT_ONCE = 16
READS_PER_S = 40.0


@dataclass(eq=False, slots=True)
class _Stream:
    is_awaited: Callable[[], bool]
    limit: asyncio.Timeout


class LogStreams:
    """The logs of all experiments of a process, which are followed over one client."""

    def __init__(self, followed: int = FOLLOWED) -> None:
        self._most = followed
        self._open: dict[_Stream, None] = {}  # in the order in which they were opened
        self._turns = asyncio.Semaphore(_READ_AT_ONCE)
        self._next_turn_s = float("-inf")

    @contextlib.asynccontextmanager
    async def turn(self, is_awaited: Callable[[], bool]) -> AsyncIterator[bool]:
        """Wait for a turn. Yield whether the log may be followed; otherwise it may be read once.

        The block is left early, without an error, when a log
        whose lines are awaited takes the stream over.

        Args:
            is_awaited: Whether somebody waits for lines of the log now.
        """
        if not self._has_room(is_awaited):
            async with self._turns:
                await self._until_next_turn()
                yield False
            return
        stream = _Stream(is_awaited, asyncio.timeout(None))
        self._open[stream] = None
        try:
            async with stream.limit:
                yield True
        except TimeoutError:
            if not stream.limit.expired():
                raise
        finally:
            self._open.pop(stream, None)

    async def _until_next_turn(self) -> None:
        now_s = asyncio.get_running_loop().time()
        turn_s = max(now_s, self._next_turn_s)
        self._next_turn_s = turn_s + 1 / READS_PER_S
        await asyncio.sleep(turn_s - now_s)

    def _has_room(self, is_awaited: Callable[[], bool]) -> bool:
        if len(self._open) < self._most:
            return True
        if not is_awaited():
            return False
        unawaited = next(
            (stream for stream in reversed(self._open) if not stream.is_awaited()), None
        )
        if unawaited is None:
            return False
        del self._open[unawaited]
        unawaited.limit.reschedule(asyncio.get_running_loop().time())
        return True
