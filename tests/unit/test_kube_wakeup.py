"""A waiter pauses in proportion to the cost of observing, misses no change,
and wakes at once later.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from controller.kube.cluster import ReadingBudget
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


class Turns:
    """A reader on a clock of its own, whose turns take as long as the test says."""

    def __init__(self) -> None:
        self.now_s = 10.0
        self.wakeup = Wakeup(ReadingBudget(lambda: self.now_s), "user1")

    def read(self, cost_s: float, *, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.wakeup.clear()
        self.now_s += cost_s
        self.wakeup.observed()
        self.wakeup.notify()


def rest_of(turns: Turns, rests: list[float], *, within_s: float = 1.0) -> float:
    asyncio.run(turns.wakeup.wait(within_s, growth=False))
    return rests[-1]


@pytest.mark.parametrize(
    ("cost_s", "within_s", "rest_s"), [(0.009, 1.0, 0.1), (0.5, 1.0, 0.2), (0.5, 0.05, 0.05)]
)
def test_a_turn_beyond_the_share_of_reading_is_followed_by_a_pause(
    rests: list[float], cost_s: float, within_s: float, rest_s: float
) -> None:
    turns = Turns()
    turns.read(cost_s)
    assert rest_of(turns, rests, within_s=within_s) == pytest.approx(rest_s)


def test_a_burst_of_short_turns_is_read_at_once_and_a_lasting_one_takes_a_twentieth_of_the_time(
    rests: list[float],
) -> None:
    turns = Turns()
    for _ in range(4):
        turns.read(0.001)
        assert rest_of(turns, rests) == 0.0
    began_s, read_s = turns.now_s, 0.0
    for _ in range(1000):
        turns.read(0.001, after_s=rests[-1])
        read_s += 0.001
        rest_of(turns, rests)
    assert read_s / (turns.now_s - began_s) == pytest.approx(0.05, abs=0.002)


def test_long_turns_in_the_past_do_not_delay_later_ones(rests: list[float]) -> None:
    turns = Turns()
    for _ in range(100):
        turns.read(2.0)
    turns.read(0.001, after_s=1.0)
    assert rest_of(turns, rests) == 0.0


def test_a_wakeup_during_a_pause_or_an_action_is_not_lost(rests: list[float]) -> None:
    async def life() -> None:
        wakeup = Wakeup(ReadingBudget(), "user1")
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
        wakeup = Wakeup(ReadingBudget(), "user1")
        asyncio.get_running_loop().call_later(0.01, wakeup.notify)
        await asyncio.wait_for(wakeup.wait(60.0, growth=False), 10)

    asyncio.run(life())


def test_a_namespace_that_reads_much_lets_another_one_read_at_once() -> None:
    now_s = 10.0
    budget = ReadingBudget(lambda: now_s)
    for _ in range(100):
        budget.charge("team-a", 0.05)
        now_s += 0.05
    budget.charge("team-b", 0.003)
    assert budget.rest_s("team-a") == pytest.approx(0.2)
    assert budget.rest_s("team-b") == 0.0
