"""Wakes the one who waits for news, at the price of one future: they are many, and tasks for each would be dear.

News come in bursts, and each look costs, the more the less the machine has to spare: who waits rests first, so that at
most a twentieth of the time is spent looking.
"""

from __future__ import annotations

import asyncio
import time

_REST, _LONGEST_REST_S = 19, 0.2


class Bell:
    """What rang since `clear` is not lost: then nobody waits. News are for everybody, growth (of logs) for who asks."""

    def __init__(self) -> None:
        self._began_s = self._cost_s = 0.0
        self._news = self._growth = False
        self._waiting: asyncio.Future[None] | None = None
        self._waits_for_growth = False

    def clear(self) -> None:
        """A look begins."""
        self._news = self._growth = False
        self._began_s = time.monotonic()

    def looked(self) -> None:
        """It is done."""
        self._cost_s = time.monotonic() - self._began_s

    def news(self) -> None:
        self._news = True
        self._wake()

    def growth(self) -> None:
        self._growth = True
        if self._waits_for_growth:
            self._wake()

    async def wait(self, within_s: float, *, growth: bool) -> None:
        """One at a time."""
        await asyncio.sleep(min(_REST * self._cost_s, within_s, _LONGEST_REST_S))
        if self._news or (growth and self._growth):
            return
        loop = asyncio.get_running_loop()
        self._waiting, self._waits_for_growth = loop.create_future(), growth
        patience = loop.call_later(within_s, self._wake)
        try:
            await self._waiting
        finally:
            patience.cancel()
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
