"""What the pages of one visitor may use at once, so that others are served
meanwhile: streams, and figures.

A visitor is a token, or anyone with the link. Belongs to the server's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from suggest.errors import RateLimited

MOST_STREAMS = 100  # a visible page has one or two, and a browser at most six
MOST_FIGURES = 50  # being read, drawn or waiting; a page requests ten
_RETRY_S = 1.0


class VisitorLimits:
    """Counts what one visitor, called `name` in refusals, uses."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._streams = 0
        self._figures = 0
        # Drawing holds the GIL: of each visitor, one thread draws at a time,
        # and one computes slow figures.
        self._turn = asyncio.Semaphore(1)
        self._slow_turn = asyncio.Semaphore(1)

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Count a stream until the block ends. Raises RateLimited."""
        if self._streams >= MOST_STREAMS:
            raise RateLimited(
                f"{self._name} has {self._streams} streams open, the most that it may have; close "
                f"some pages",
                retry_s=_RETRY_S,
            )
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    @contextmanager
    def requesting_figure(self) -> Iterator[None]:
        """Count a figure from its request until the block ends. Raises RateLimited."""
        if self._figures >= MOST_FIGURES:
            raise RateLimited(
                f"{self._name} has requested {self._figures} figures at once, the most that it "
                "may; wait for some of them",
                retry_s=_RETRY_S,
            )
        self._figures += 1
        try:
            yield
        finally:
            self._figures -= 1

    def turn(self, *, slow: bool) -> asyncio.Semaphore:
        """Return what a figure holds while it is drawn.

        It does not hold it while its record is read, which may take long.
        """
        return self._slow_turn if slow else self._turn
