"""A waiter pauses in proportion to the cost of observing, misses no change, and wakes at once later."""

from __future__ import annotations

import asyncio
import time

import pytest

from controller.runtime.kubernetes.runtime import Wakeup


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        taken.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    return taken


def a_look(wakeup: Wakeup, monkeypatch: pytest.MonkeyPatch, *, cost_s: float) -> None:
    now_s = iter([10.0, 10.0 + cost_s])
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: next(now_s))
        wakeup.clear()
        wakeup.observed()


@pytest.mark.parametrize(("cost_s", "within_s", "rest_s"), [(0.001, 1.0, 0.019), (0.5, 1.0, 0.2), (0.5, 0.05, 0.05)])
def test_an_expensive_turn_is_followed_by_a_longer_pause(
    rests: list[float], monkeypatch: pytest.MonkeyPatch, cost_s: float, within_s: float, rest_s: float
) -> None:
    wakeup = Wakeup()
    a_look(wakeup, monkeypatch, cost_s=cost_s)
    wakeup.notify()
    asyncio.run(wakeup.wait(within_s, growth=False))
    assert rests == [pytest.approx(rest_s)]


def test_a_wakeup_during_a_pause_or_an_action_is_not_lost(rests: list[float]) -> None:
    async def life() -> None:
        wakeup = Wakeup()
        wakeup.clear()
        wakeup.observed()
        wakeup.notify()
        await asyncio.wait_for(wakeup.wait(60.0, growth=False), 10)
        await asyncio.wait_for(wakeup.wait(60.0, growth=False), 10)  # until the next look
        wakeup.clear()
        wakeup.notify_log_growth()
        await asyncio.wait_for(wakeup.wait(60.0, growth=True), 10)
        before_s = time.monotonic()
        await wakeup.wait(0.05, growth=False)  # nobody waits for growth
        assert time.monotonic() - before_s > 0.04

    asyncio.run(life())


def test_a_change_wakes_the_waiter() -> None:
    async def life() -> None:
        wakeup = Wakeup()
        asyncio.get_running_loop().call_later(0.01, wakeup.notify)
        await asyncio.wait_for(wakeup.wait(60.0, growth=False), 10)

    asyncio.run(life())
