"""How many logs this process follows at a time: an open stream costs 300 KiB of memory.

Logs whose lines are awaited, by a pruner or by a canary, are followed first. The others are read
by turns, so many a second: thousands of pods must not become hundreds of requests a second. No
namespace keeps the streams or the turns from others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from controller.kube.request_limit import RequestLimit, Sender

FOLLOWED = 200
_READ_AT_ONCE = 16
READS_PER_S = 40.0


@dataclass(eq=False, slots=True)
class _Stream:
    namespace: str
    is_awaited: Callable[[], bool]
    limit: asyncio.Timeout


class LogStreams:
    """The logs of all experiments of a process, which are followed over one client."""

    def __init__(self, followed: int = FOLLOWED) -> None:
        self._most = followed
        self._open: dict[_Stream, None] = {}  # in the order in which they were opened
        self._turns = RequestLimit(_READ_AT_ONCE, READS_PER_S)

    @contextlib.asynccontextmanager
    async def turn(self, sender: Sender, is_awaited: Callable[[], bool]) -> AsyncIterator[bool]:
        """Wait for a turn. Yield whether the log may be followed; otherwise it may be read once.

        The block is left early, without an error, when a log
        whose lines are awaited takes the stream over.

        Args:
            is_awaited: Whether somebody waits for lines of the log now.
        """
        if not self._has_room(sender.namespace, is_awaited):
            async with self._turns.place(sender):
                yield False
            return
        stream = _Stream(sender.namespace, is_awaited, asyncio.timeout(None))
        self._open[stream] = None
        try:
            async with stream.limit:
                yield True
        except TimeoutError:
            if not stream.limit.expired():
                raise
        finally:
            self._open.pop(stream, None)

    def _has_room(self, namespace: str, is_awaited: Callable[[], bool]) -> bool:
        if len(self._open) < self._most:
            return True
        if not is_awaited():
            return False
        stream = self._newest_unawaited() or self._newest_of_most(namespace)
        if stream is None:
            return False
        del self._open[stream]
        stream.limit.reschedule(asyncio.get_running_loop().time())
        return True

    def _newest_unawaited(self) -> _Stream | None:
        return next((each for each in reversed(self._open) if not each.is_awaited()), None)

    def _newest_of_most(self, namespace: str) -> _Stream | None:
        """Return a stream of the namespace with most of them, if this one has two fewer."""
        counts = Counter(each.namespace for each in self._open)
        ((most, count),) = counts.most_common(1) or [("", 0)]
        if count < counts[namespace] + 2:
            return None
        return next(each for each in reversed(self._open) if each.namespace == most)
