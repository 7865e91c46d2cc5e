"""Who waits for news rests in proportion to what a look costs, misses nothing meanwhile, and is woken at once later."""

from __future__ import annotations

import asyncio
import time

import pytest

from controller.runtime.kubernetes import bell as module
from controller.runtime.kubernetes.bell import Bell


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        taken.append(seconds)
        await sleep(0)

    monkeypatch.setattr(module.asyncio, "sleep", noted)
    return taken


def a_look(bell: Bell, monkeypatch: pytest.MonkeyPatch, *, cost_s: float) -> None:
    now_s = iter([10.0, 10.0 + cost_s])
    with monkeypatch.context() as patched:
        patched.setattr(module.time, "monotonic", lambda: next(now_s))
        bell.clear()
        bell.looked()


@pytest.mark.parametrize(("cost_s", "within_s", "rest_s"), [(0.001, 1.0, 0.019), (0.5, 1.0, 0.2), (0.5, 0.05, 0.05)])
def test_a_look_that_costs_more_is_followed_by_a_longer_rest(
    rests: list[float], monkeypatch: pytest.MonkeyPatch, cost_s: float, within_s: float, rest_s: float
) -> None:
    bell = Bell()
    a_look(bell, monkeypatch, cost_s=cost_s)
    bell.news()
    asyncio.run(bell.wait(within_s, growth=False))
    assert rests == [pytest.approx(rest_s)]


def test_what_rings_while_somebody_rests_or_acts_is_not_lost(rests: list[float]) -> None:
    async def life() -> None:
        bell = Bell()
        bell.clear()
        bell.looked()
        bell.news()
        await asyncio.wait_for(bell.wait(60.0, growth=False), 10)
        await asyncio.wait_for(bell.wait(60.0, growth=False), 10)  # until the next look
        bell.clear()
        bell.growth()
        await asyncio.wait_for(bell.wait(60.0, growth=True), 10)
        before_s = time.monotonic()
        await bell.wait(0.05, growth=False)  # nobody waits for growth
        assert time.monotonic() - before_s > 0.04

    asyncio.run(life())


def test_news_wake_who_waits() -> None:
    async def life() -> None:
        bell = Bell()
        asyncio.get_running_loop().call_later(0.01, bell.news)
        await asyncio.wait_for(bell.wait(60.0, growth=False), 10)

    asyncio.run(life())
