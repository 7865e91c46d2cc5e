"""In-flight limits per caller: calls in flight, requests that are arriving, replies not yet sent.

This is the third limit on a caller, beside the rate of calls (`rate_limits`) and the share of threads (`keyed_queue`).
A caller over a limit is refused before its request is read, or waits. Belongs to the server's event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from suggest.errors import RateLimited

MAX_CALLS = 1000  # calls in flight of a caller
MAX_STREAMS = 32  # streams of a caller, which may be open forever: health and reflection
PLACE_BYTES = 4 << 20  # of a request that arrives; one that may be larger takes several places
ARRIVING = 16  # places of a caller's requests that are read at a time
ALL_ARRIVING = 48
REQUEST_BYTES = 32 << 20  # size of a caller's requests that were read but not answered
REPLY_BYTES = 16 << 20  # size of a caller's unsent replies above which it gets no further large reply
ALL_REPLY_BYTES = 96 << 20
_PAUSE_S = 0.5  # retry delay of a refused client


@dataclass(slots=True, eq=False)
class _CallerUsage:
    """What one caller, or all callers together, have in flight."""

    calls: int = 0
    streams: int = 0
    arriving: int = 0
    request_bytes: int = 0
    reply_bytes: int = 0
    # Requests that wait to be read, with the places that each takes.
    waiting: deque[tuple[asyncio.Future[None], int]] = field(default_factory=deque)

    @property
    def nothing(self) -> bool:
        return not (self.calls or self.streams or self.reply_bytes)


class InFlightLimits:
    """Counts what callers have in flight and enforces the limits.

    `on_released` is called when replies were sent, so that further ones may be built.
    """

    def __init__(self, on_released: Callable[[], None] = lambda: None) -> None:
        self.on_released = on_released
        self._held: dict[str, _CallerUsage] = {}  # by caller; only callers with anything in flight
        self._all = _CallerUsage()

    def enter(self, caller: str) -> None:
        """Count a call in flight until leave(). Raises RateLimited."""
        usage = self._of(caller)
        if usage.calls >= MAX_CALLS:
            raise RateLimited(
                f"{caller} has {usage.calls} calls in flight; send fewer at once, or wait for the replies",
                retry_s=_PAUSE_S,
            )
        usage.calls += 1

    def leave(self, caller: str) -> None:
        usage = self._held[caller]
        usage.calls -= 1
        self._forget(caller, usage)

    @asynccontextmanager
    async def streaming(self, caller: str) -> AsyncIterator[None]:
        """Count a streaming call until the block ends. Raises RateLimited."""
        usage = self._of(caller)
        if usage.streams >= MAX_STREAMS:
            raise RateLimited(f"{caller} has {usage.streams} streams open; close some first", retry_s=_PAUSE_S)
        usage.streams += 1
        try:
            yield
        finally:
            usage.streams -= 1
            self._forget(caller, usage)

    async def begin_arriving(self, caller: str, places: int = 1) -> None:
        """Wait until a request of the caller may be read. Call end_arriving() after reading it."""
        usage = self._held[caller]
        if not usage.waiting and self._may_arrive(usage, places):
            self._arrives(usage, places)
            return
        turn = asyncio.get_running_loop().create_future(), places
        usage.waiting.append(turn)
        try:
            await turn[0]
        except asyncio.CancelledError:
            if turn in usage.waiting:
                usage.waiting.remove(turn)
            else:
                self._arrived(usage, places)
            raise

    def end_arriving(self, caller: str, places: int = 1) -> None:
        self._arrived(self._held[caller], places)

    def take_request(self, caller: str, size: int) -> None:
        """Count the size of a request that was read, until release_request(). Raises RateLimited."""
        usage = self._held[caller]
        if usage.request_bytes and usage.request_bytes + size > REQUEST_BYTES:
            raise RateLimited(
                f"{caller} has {usage.request_bytes >> 20} MiB of unanswered requests here already; send fewer at once",
                retry_s=_PAUSE_S,
            )
        usage.request_bytes += size

    def release_request(self, caller: str, size: int) -> None:
        self._held[caller].request_bytes -= size

    def hold_reply(self, caller: str, size: int) -> None:
        """Count the size of a reply until release_reply(), when it was sent or the caller is gone."""
        self._of(caller).reply_bytes += size
        self._all.reply_bytes += size

    def release_reply(self, caller: str, size: int) -> None:
        usage = self._of(caller)  # after an empty reply, a caller whose call has ended is no longer in `_held`
        usage.reply_bytes -= size
        self._all.reply_bytes -= size
        self._forget(caller, usage)
        self.on_released()

    def full(self, caller: str) -> bool:
        """Return whether the caller gets no large reply now. A caller without unsent replies always gets one."""
        usage = self._held.get(caller)
        if usage is None or not usage.reply_bytes:
            return False
        return usage.reply_bytes >= min(REPLY_BYTES, ALL_REPLY_BYTES - self._all.reply_bytes)

    def _of(self, caller: str) -> _CallerUsage:
        usage = self._held.get(caller)
        if usage is None:
            usage = self._held[caller] = _CallerUsage()
        return usage

    def _forget(self, caller: str, usage: _CallerUsage) -> None:
        if usage.nothing:
            self._held.pop(caller, None)

    def _may_arrive(self, usage: _CallerUsage, places: int) -> bool:
        return usage.arriving + places <= ARRIVING and self._all.arriving + places <= ALL_ARRIVING

    def _arrives(self, usage: _CallerUsage, places: int) -> None:
        usage.arriving += places
        self._all.arriving += places

    def _arrived(self, usage: _CallerUsage, places: int) -> None:
        usage.arriving -= places
        self._all.arriving -= places
        # Admit the next request of the same caller, else one of any other caller; the order among those is irrelevant.
        for waiting_usage in (usage, *(self._held.values() if self._all.arriving >= ALL_ARRIVING // 2 else ())):
            while waiting_usage.waiting and self._may_arrive(waiting_usage, waiting_usage.waiting[0][1]):
                turn, its_places = waiting_usage.waiting.popleft()
                if not turn.done():
                    self._arrives(waiting_usage, its_places)
                    turn.set_result(None)
