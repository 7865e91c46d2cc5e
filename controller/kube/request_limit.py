"""The limit of the requests that a process sends to its API server, and whose requests go first.

Namespaces share the limit, and within a namespace its experiments take turns: one that has much to
send waits for its own requests, not for those of others. What the process sends for itself, such as
the renewal of its lease, and the lists of its informers, waits for nobody.

A request occupies a place until it is answered, and for at least PLACES / PER_S seconds. So PLACES
limits the requests at a time, and PER_S those of a second, with one rule for both: each namespace
may have as many places as are still free.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from suggest.fair_share import FairShare

# The API server answers 600 at a time by default. A trial takes about five requests, and one
# processor cannot look after 100 trials a second: the rate protects the server, and slows no search
# down. A namespace alone has half of both: 64 at a time, and 250 a second.
PLACES = 128
PER_S = 500.0
MOST_PER_S = 10_000.0


@dataclass(frozen=True, slots=True)
class Sender:
    """Whose requests they are. experiment: its uid."""

    namespace: str
    experiment: str


OWN = Sender("", "")  # of the process itself


class RequestLimit:
    """The places of the requests of one process. Belongs to one event loop."""

    def __init__(self, places: int = PLACES, per_s: float = PER_S) -> None:
        self._shares = FairShare(places)
        self._least_s = places / per_s

    @property
    def waiting(self) -> int:
        """Return how many requests wait for a place."""
        return self._shares.waiting

    @asynccontextmanager
    async def place(self, sender: Sender) -> AsyncIterator[None]:
        """Occupy a place within the block. Wait for it, unless the process sends for itself."""
        if sender == OWN:
            self._shares.add(sender.namespace)
        else:
            await self._shares.take(sender.namespace, part=sender.experiment)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._least_s
        try:
            yield
        finally:
            if loop.time() < until_s:
                loop.call_at(until_s, self._shares.give, sender.namespace)
            else:
                self._shares.give(sender.namespace)

    async def begin(self, sender: Sender) -> None:
        """Wait to send a request whose answer is a stream, which occupies no place."""
        async with self.place(sender):
            pass
