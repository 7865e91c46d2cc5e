"""Limits on what is in flight: calls and streams of a caller,
and the bytes of requests of all callers.

A request counts from before it arrives until it is answered: first as the largest that its port
receives, then by what it decodes to. Belongs to the server's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Iterator

from suggest.errors import InvalidArgument, RateLimited, TimedOut
from suggest.fair_share import FairShare
from suggest.server.call_pool import HeavyCalls

MAX_CALLS = 1000  # calls in flight of a caller
MAX_STREAMS = 32  # streams of a caller, which may be open forever: health and reflection
REQUEST_BYTES = 256 << 20  # of all requests
ARRIVAL_S = 30.0  # how long a request may take to arrive after its headers
SLOW_S = 0.1  # a request that arrives for longer gives way to a caller that has none
_ARRIVING_COPIES = 3  # gRPC holds a request that arrives up to three times
HEAVY_BYTES = 256 << 10  # a larger request is heavy
_PAUSE_S = 0.5  # retry delay of a refused client


class CallerLimit:
    """At most `most` at a time of what each caller has."""

    def __init__(self, most: int, message: str) -> None:
        """`message` has the fields `caller` and `most`."""
        self._most = most
        self._message = message
        self._counts: Counter[str] = Counter()  # only callers that have any

    @contextlib.contextmanager
    def one_more(self, caller: str) -> Iterator[None]:
        """Count one until the block ends. Raises RateLimited."""
        if self._counts[caller] >= self._most:
            raise RateLimited(
                self._message.format(caller=caller, most=self._most), retry_s=_PAUSE_S
            )
        self._counts[caller] += 1
        try:
            yield
        finally:
            self._counts[caller] -= 1
            if not self._counts[caller]:
                del self._counts[caller]


class RequestBytes:
    """The bytes of the requests of callers that share one total.

    `heavy` are the calls whose requests were large or slow. They arrive in a quarter of the total,
    so that there is room for others.
    """

    def __init__(self, heavy: HeavyCalls) -> None:
        self.heavy = heavy
        self.total = FairShare(REQUEST_BYTES)
        self.arriving_heavy = FairShare(REQUEST_BYTES // 4)
        self._reading: dict[asyncio.Timeout, float] = {}  # since when; the oldest first
        self._left_out = 0  # calls that wait, and whose callers have no other

    def room(self, caller: str, kind: str, most_bytes: int) -> RequestRoom:
        """Return the room of a request of at most `most_bytes`, entered before it is read."""
        return RequestRoom(self, caller, kind, most_bytes * _ARRIVING_COPIES)

    async def take(self, share: FairShare, caller: str, size: int) -> None:
        """Wait for room for a request that is to arrive.

        If its caller has no other, slow requests give way to it.
        """
        is_left_out = not (share.has_room(caller, size) or share.held(caller))
        self._left_out += is_left_out
        try:
            if is_left_out:
                self._hurry()
            await share.take(caller, size)
        finally:
            self._left_out -= is_left_out

    async def in_time(self, reading: Awaitable[bytes]) -> bytes:
        """Return the request that is read. Raises TimeoutError."""
        async with asyncio.timeout(SLOW_S if self._left_out else ARRIVAL_S) as limit:
            self._reading[limit] = asyncio.get_running_loop().time()
            try:
                return await reading
            finally:
                self._reading.pop(limit, None)

    def _hurry(self) -> None:
        """Let the oldest request that arrives end as soon as it is slow."""
        for limit, began in self._reading.items():
            limit.reschedule(max(began + SLOW_S, asyncio.get_running_loop().time()))
            del self._reading[limit]
            return


class RequestRoom:
    """The room of one request.

    Entering waits until the request may arrive; leaving gives the room back.
    """

    def __init__(self, requests: RequestBytes, caller: str, kind: str, size: int) -> None:
        self._requests = requests
        self._caller = caller
        self._kind = kind
        self._size = size
        self._arrival = contextlib.ExitStack()

    async def __aenter__(self) -> RequestRoom:
        requests, caller, size = self._requests, self._caller, self._size
        with contextlib.ExitStack() as taken:
            if self._kind in requests.heavy:
                await requests.take(requests.arriving_heavy, caller, size)
                taken.callback(requests.arriving_heavy.give, caller, size)
            await requests.take(requests.total, caller, size)
            self._arrival = taken.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._arrival.close()
        self._requests.total.give(self._caller, self._size)

    async def read(self, reading: Awaitable[bytes]) -> bytes:
        """Return the request that is read.

        Raises TimedOut after ARRIVAL_S, or after SLOW_S while others wait.
        """
        try:
            serialized = await self._requests.in_time(reading)
        except TimeoutError:
            self._requests.heavy.add(self._kind)
            raise TimedOut(
                f"the request did not arrive within {ARRIVAL_S:g} s, or was slow while others "
                f"waited; send it again"
            ) from None
        if len(serialized) > HEAVY_BYTES:
            self._requests.heavy.add(self._kind)
        return serialized

    def resize(self, size: int) -> None:
        """Count the request, which has arrived, by its decoded size.

        Raises InvalidArgument, RateLimited.
        """
        total, caller = self._requests.total, self._caller
        most = total.total // 2
        if size > most:
            raise InvalidArgument.at(
                "",
                f"the request takes up to {size >> 20} MiB once decoded; at most {most >> 20} "
                f"MiB: send less at once",
            )
        if size > self._size and not total.has_room(caller, size - self._size):
            held = total.held(caller) - self._size
            raise RateLimited(
                f"{caller} has {held >> 20} MiB of unanswered requests here already, and other "
                "callers have theirs; send fewer at once",
                retry_s=_PAUSE_S,
            )
        total.add(caller, size)
        total.give(caller, self._size)
        self._size = size
        self._arrival.close()
