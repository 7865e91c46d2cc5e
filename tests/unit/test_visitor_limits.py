"""What the pages of one visitor may use at once."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from controller.ui.visitor import MOST_FIGURES, MOST_STREAMS, VisitorLimits
from suggest.errors import RateLimited


def test_a_stream_beyond_the_limit_is_refused_until_another_has_ended() -> None:
    limits = VisitorLimits("this token")
    with ExitStack() as streams:
        for _ in range(MOST_STREAMS):
            streams.enter_context(limits.streaming())
        with pytest.raises(RateLimited, match=f"this token has {MOST_STREAMS} streams open"), limits.streaming():
            pass
    with limits.streaming():
        pass


def test_figures_are_drawn_one_at_a_time_and_not_all_wait() -> None:
    assert asyncio.run(most_at_once(MOST_FIGURES + 3)) == (1, 3)


async def most_at_once(requests: int) -> tuple[int, int]:
    """Return how many figures were drawn at once at most, and how many requests were refused."""
    limits, now, most, refused = VisitorLimits("this token"), 0, 0, 0

    async def draw() -> None:
        nonlocal now, most, refused
        try:
            async with limits.drawing():
                now += 1
                most = max(most, now)
                await asyncio.sleep(0)
                now -= 1
        except RateLimited:
            refused += 1

    await asyncio.gather(*(draw() for _ in range(requests)))
    await draw()
    return most, refused
