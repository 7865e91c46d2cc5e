"""In-flight limits: the bytes of requests that arrive and are decoded, in all; calls, streams and replies of a caller.

This is the third limit on a caller, beside the rate of calls (`rate_limits`) and the share of threads (`keyed_queue`).
Requests have one total for all callers without a name, who may come from any number of hosts, and another for those
with a token or a certificate. In both, a caller may have as much as is still free: alone it gets half, and there is
always room for the next one. Belongs to the server's event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from suggest.errors import InvalidArgument, RateLimited

MAX_CALLS = 1000  # calls in flight of a caller
MAX_STREAMS = 32  # streams of a caller, which may be open forever: health and reflection
ARRIVING_BYTES = 48 << 20  # of all requests that are being received; gRPC holds each up to three times
DECODED_BYTES = 256 << 20  # of all requests that were received but not answered
ARRIVAL_S = 30.0  # how long a request may take to arrive after its headers
SLOW_S = 0.1  # a request that arrives for longer gives way to a caller that has none
_LOOK_S = 0.05  # between two looks for slow requests
REPLY_BYTES = 16 << 20  # size of a caller's unsent replies above which it gets no further large reply
ALL_REPLY_BYTES = 96 << 20
_MANY = 10_000  # callers whose bytes are remembered
_PAUSE_S = 0.5  # retry delay of a refused client


class _Total:
    """Bytes of all callers together. A caller may hold as many as are still free."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free = limit
        self._held: Counter[str] = Counter()  # only callers that hold any

    @property
    def most(self) -> int:
        """The most that one caller may hold."""
        return self._limit // 2

    def held(self, caller: str) -> int:
        return self._held[caller]

    def has_room(self, caller: str, size: int) -> bool:
        return self._held[caller] + size <= self._free

    def take(self, caller: str, size: int) -> None:
        self._held[caller] += size
        self._free -= size

    def give_back(self, caller: str, size: int) -> None:
        self._held[caller] -= size
        self._free += size
        if not self._held[caller]:
            del self._held[caller]


class _Received:
    """How much each caller has sent lately: half of it is forgotten each second."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}  # bytes, and when they were counted

    def add(self, caller: str, size: int) -> None:
        now = time.monotonic()
        if len(self._counts) >= _MANY:
            self._counts.clear()
        self._counts[caller] = self._bytes_of(caller, now) + size, now

    def mib_of(self, caller: str) -> int:
        """Return whole MiB, so that all callers with small requests are equal."""
        return int(self._bytes_of(caller, time.monotonic())) >> 20

    def _bytes_of(self, caller: str, now: float) -> float:
        count, when = self._counts.get(caller, (0.0, now))
        remaining: float = 0.5 ** (now - when)
        return count * remaining


Turn: TypeAlias = "asyncio.Future[None]"


class Requests:
    """The requests of callers that share the totals: those that are being received, and those not answered yet."""

    def __init__(self) -> None:
        self._arriving = _Total(ARRIVING_BYTES)
        self._decoded = _Total(DECODED_BYTES)
        self._waiting: dict[str, deque[tuple[Turn, int]]] = {}  # by caller: requests of so many bytes
        self._received = _Received()
        self._reading: dict[asyncio.Timeout, float] = {}  # since when; the oldest first
        self._hurrying: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def arriving(self, caller: str, size: int) -> AsyncIterator[None]:
        """Wait until a request of at most `size` may be received, and count it until the block ends."""
        if caller in self._waiting or not self._has_room(caller, size):
            await self._turn(caller, size)
        else:
            self._take(caller, size)
        try:
            yield
        finally:
            self._arriving.give_back(caller, size)
            self._admit()

    async def in_time(self, caller: str, reading: Awaitable[bytes], size: int) -> bytes:
        """Return the request that is read, of at most `size`.

        Raises:
            TimeoutError: after ARRIVAL_S, or after SLOW_S if a caller waits that has none.
        """
        async with asyncio.timeout(ARRIVAL_S) as limit:
            self._reading[limit] = asyncio.get_running_loop().time()
            try:
                serialized = await reading
            finally:
                del self._reading[limit]
        self._received.add(caller, len(serialized) - size)
        return serialized

    def hold_decoded(self, caller: str, size: int) -> None:
        """Count a request by its decoded size until release_decoded(). Raises InvalidArgument, RateLimited."""
        if size > self._decoded.most:
            raise InvalidArgument.at(
                "",
                f"the request takes up to {size >> 20} MiB once decoded; at most {self._decoded.most >> 20} MiB: send "
                "less at once",
            )
        if not self._decoded.has_room(caller, size):
            raise RateLimited(
                f"{caller} has {self._decoded.held(caller) >> 20} MiB of unanswered requests here already, and other "
                "callers have theirs; send fewer at once",
                retry_s=_PAUSE_S,
            )
        self._decoded.take(caller, size)

    def release_decoded(self, caller: str, size: int) -> None:
        self._decoded.give_back(caller, size)

    async def _turn(self, caller: str, size: int) -> None:
        """Wait until the request has been given its room."""
        turn = asyncio.get_running_loop().create_future(), size
        self._waiting.setdefault(caller, deque()).append(turn)
        self._hurry_later()
        try:
            await turn[0]
        except asyncio.CancelledError:
            if turn[0].cancelled():
                self._leave(caller, turn)
            else:  # the turn came at the moment of the cancellation
                self._arriving.give_back(caller, size)
            self._admit()
            raise

    def _has_room(self, caller: str, size: int) -> bool:
        """Return whether a request may be received. Those who have sent much lately leave room for one of others."""
        kept_free = size if self._received.mib_of(caller) else 0
        return self._arriving.has_room(caller, size + kept_free)

    def _take(self, caller: str, size: int) -> None:
        """Give room to a request. Its caller has received all of it, until it is known to be smaller."""
        self._arriving.take(caller, size)
        self._received.add(caller, size)

    def _leave(self, caller: str, turn: tuple[Turn, int]) -> None:
        waiting = self._waiting.pop(caller)
        waiting.remove(turn)
        if waiting:
            # At the end, so that the callers take turns.
            self._waiting[caller] = waiting

    def _admit(self) -> None:
        """Give room to requests that wait for it, first to those of the callers that have sent least."""
        for caller in sorted(self._waiting, key=self._received.mib_of):
            turn = self._waiting[caller][0]
            if not turn[0].done() and self._has_room(caller, turn[1]):
                self._leave(caller, turn)
                self._take(caller, turn[1])
                turn[0].set_result(None)

    def _hurry_later(self) -> None:
        if self._hurrying is None:
            self._hurrying = asyncio.get_running_loop().call_later(_LOOK_S, self._hurry)

    def _hurry(self) -> None:
        """End slow requests, the oldest first: one for each caller that waits and has none."""
        self._hurrying = None
        now = asyncio.get_running_loop().time()
        left_out = [caller for caller in self._waiting if not self._arriving.held(caller)]
        slow = [limit for limit, began in self._reading.items() if now - began >= SLOW_S]
        for limit, _ in zip(slow, left_out, strict=False):
            limit.reschedule(now)
        if self._waiting:
            self._hurry_later()


@dataclass(slots=True, eq=False)
class _CallerUsage:
    """What one caller, or all callers together, have in flight."""

    calls: int = 0
    streams: int = 0
    reply_bytes: int = 0

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
        self._named, self._unnamed = Requests(), Requests()

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

    def requests(self, *, named: bool) -> Requests:
        """Return the requests of the callers that have a name, or of those that have none."""
        return self._named if named else self._unnamed

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
