"""The clock of the shell.

The core never reads a clock; it is passed the time. Tests use clocks of their own.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """Return the wall clock time in UTC, for records."""

    def elapsed_s(self) -> float:
        """Return the seconds since a fixed moment, for durations. Never goes backwards."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def elapsed_s(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
