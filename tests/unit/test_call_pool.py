"""Calls that write the same study run one after the other, and wait without a thread."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from suggest.errors import StudyBusy, Unavailable
from suggest.fair_share import MAX_WAITING
from suggest.server.call_pool import CallPool, HeavyCalls

WITHIN_S = 10
MIB = 1 << 20
T = TypeVar("T")


@asynccontextmanager
async def turns(workers: int = 2) -> AsyncIterator[CallPool]:
    with ThreadPoolExecutor(workers) as executor:
        yield CallPool(executor, threads=workers)


def write(them: CallPool, study: str, work: Callable[[], T]) -> Coroutine[Any, Any, T]:
    """Run a call that writes a study, of a caller that writes no other."""
    return them.run(f"caller of {study}", work, study=study)


async def until(condition: threading.Event) -> None:
    assert await asyncio.to_thread(condition.wait, WITHIN_S)


def test_many_calls_of_a_slow_study_hold_up_no_other() -> None:
    async def play() -> None:
        async with turns() as them:
            latch, order = threading.Event(), list[int]()

            def slow(number: int) -> None:
                latch.wait(WITHIN_S)
                order.append(number)

            calls = [
                asyncio.create_task(write(them, "slow", lambda n=n: slow(n))) for n in range(20)
            ]  # type: ignore[misc]
            await asyncio.sleep(0)
            assert await write(them, "other", lambda: "answered") == "answered"
            assert await write(them, "", lambda: "read") == "read"
            assert (them.waiting_for_study, them.waiting_for_thread) == (19, 0)
            latch.set()
            await asyncio.gather(*calls)
            assert order == list(range(20)), "in the order in which they came"
            assert them.waiting_for_study == 0

    asyncio.run(play())


def test_a_queue_has_a_maximum_length() -> None:
    async def play() -> None:
        async with turns() as them:
            latch = threading.Event()
            calls = [
                asyncio.create_task(write(them, "s", lambda: latch.wait(WITHIN_S)))
                for _ in range(MAX_WAITING + 1)
            ]
            await asyncio.sleep(0)
            with pytest.raises(StudyBusy, match="256 calls already wait"):
                await write(them, "s", lambda: None)
            latch.set()
            assert all(await asyncio.gather(*calls))
            assert await write(them, "s", lambda: "again") == "again"

    asyncio.run(play())


def test_a_call_for_which_no_thread_can_start_is_refused_and_never_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def play() -> None:
        async with turns() as them:
            latch, done = threading.Event(), list[str]()
            first = asyncio.create_task(write(them, "s", lambda: latch.wait(WITHIN_S)))
            await asyncio.sleep(0)
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", no_thread)
                with pytest.raises(Unavailable, match=r"cannot start another thread; .*ulimit -u"):
                    await write(them, "other", lambda: done.append("refused"))
            latch.set()
            await first
            await write(them, "other", lambda: done.append("later"))
            assert done == ["later"]

    asyncio.run(play())


def test_a_canceled_waiter_is_never_served_and_frees_its_place() -> None:
    async def play() -> None:
        async with turns() as them:
            latch, done = threading.Event(), list[str]()
            first = asyncio.create_task(write(them, "s", lambda: latch.wait(WITHIN_S)))
            second = asyncio.create_task(write(them, "s", lambda: done.append("second")))
            third = asyncio.create_task(write(them, "s", lambda: done.append("third")))
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.sleep(0)
            assert them.waiting_for_study == 1
            latch.set()
            await asyncio.gather(first, third)
            assert done == ["third"]

    asyncio.run(play())


def test_a_waiter_canceled_just_before_its_turn_passes_it_on() -> None:
    async def play() -> None:
        with ThreadPoolExecutor(1) as executor:
            them, latch = CallPool(executor, threads=1), threading.Event()
            first = asyncio.create_task(write(them, "s", lambda: latch.wait(WITHIN_S)))
            waiting = [asyncio.create_task(write(them, "s", lambda: True)) for _ in range(3)]
            await asyncio.sleep(0)
            latch.set()
            # the only thread: by now the first one's work is done
            executor.submit(int).result(WITHIN_S)
            await asyncio.sleep(0)  # and its task about to hear of it
            for gone in waiting[:2]:
                gone.cancel()
            assert await first
            assert await waiting[2]
            assert them.waiting_for_study == 0

    asyncio.run(play())


def test_a_started_call_finishes_before_the_next_one_even_if_its_caller_is_gone() -> None:
    async def play() -> None:
        async with turns() as them:
            begun, latch, order = threading.Event(), threading.Event(), list[str]()

            def first() -> None:
                begun.set()
                latch.wait(WITHIN_S)
                order.append("first")

            one = asyncio.create_task(write(them, "s", first))
            two = asyncio.create_task(write(them, "s", lambda: order.append("second")))
            await until(begun)
            one.cancel()
            await asyncio.wait([one])
            assert not two.done()
            latch.set()
            await two
            assert order == ["first", "second"]

    asyncio.run(play())


def test_work_that_fails_passes_its_turn_on() -> None:
    async def play() -> None:
        async with turns() as them:
            with pytest.raises(ZeroDivisionError):
                await write(them, "s", lambda: 1 // 0)
            assert await write(them, "s", lambda: "next") == "next"

    asyncio.run(play())


async def begun_by(them: CallPool, callers: list[str], kind: str = "") -> dict[str, int]:
    """Run work for each caller in turn, and return how many calls of each begin while none ends."""
    latch, begun = threading.Event(), list[str]()

    def work(caller: str) -> None:
        begun.append(caller)
        latch.wait(WITHIN_S)

    calls = [
        asyncio.create_task(them.run(caller, functools.partial(work, caller), kind=kind))
        for caller in callers
    ]
    await asyncio.sleep(0)
    while len(begun) < len(calls) - them.waiting_for_thread:
        await asyncio.to_thread(lambda: None)
    counts = {caller: begun.count(caller) for caller in sorted(set(callers))}
    latch.set()
    await asyncio.gather(*calls)
    return counts


def test_one_caller_leaves_threads_for_others_and_they_for_the_next() -> None:
    async def play() -> None:
        async with turns(8) as them:
            assert await begun_by(them, ["a", "b", "c", "d"] * 10) == {
                "a": 2,
                "b": 2,
                "c": 2,
                "d": 1,
            }
            assert await begun_by(them, ["a"] * 40) == {"a": 4}

    asyncio.run(play())


def burn(seconds: float) -> None:
    """Use processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_kind_of_call_that_took_long_has_few_threads() -> None:
    async def play() -> None:
        async with turns(8) as them:
            await them.run("a", lambda: burn(0.15), kind="long")
            assert await begun_by(them, ["a"] * 10, "long") == {"a": 1}
            assert await begun_by(them, ["a", "b", "c"] * 10, "long") == {"a": 1, "b": 1, "c": 0}
            assert await begun_by(them, ["a"] * 10, "short") == {"a": 4}

    asyncio.run(play())


def test_a_large_call_has_few_threads_even_if_it_is_the_first_of_its_kind() -> None:
    async def play() -> None:
        async with turns(8) as them:
            latch = threading.Event()
            calls = [
                asyncio.create_task(
                    them.run("a", lambda: latch.wait(WITHIN_S), kind=f"new {n}", is_heavy=True)
                )
                for n in range(3)
            ]
            await asyncio.sleep(0)
            assert them.waiting_for_thread == 2
            latch.set()
            await asyncio.gather(*calls)

    asyncio.run(play())


def test_a_kind_of_call_is_heavy_for_ten_seconds() -> None:
    now_s = 100.0
    heavy = HeavyCalls(lambda: now_s)
    heavy.add("long")
    assert "long" in heavy
    assert "short" not in heavy
    now_s += 10.0
    assert "long" not in heavy


def test_a_caller_that_takes_no_replies_begins_no_further_calls_until_it_does() -> None:
    async def play() -> None:
        async with turns(4) as them:
            sent = [them.sending("slow reader", 4 * MIB) for _ in range(8)]
            waits = asyncio.create_task(them.run("slow reader", lambda: "read"))
            assert await them.run("other", lambda: "other") == "other"
            assert not waits.done()
            sent.pop()(None)
            assert await waits == "read"
            for each in sent:
                each(None)

    asyncio.run(play())


def test_calls_that_have_not_started_are_rejected_on_shutdown() -> None:
    async def play() -> None:
        async with turns(1) as them:
            latch = threading.Event()
            begun = asyncio.create_task(write(them, "s", lambda: latch.wait(WITHIN_S)))
            waiting = [
                asyncio.create_task(write(them, study, lambda: None)) for study in ("s", "", "t")
            ]
            await asyncio.sleep(0)
            them.close()
            assert {type(e) for e in await asyncio.gather(*waiting, return_exceptions=True)} == {
                Unavailable
            }
            latch.set()
            assert await begun
            assert await write(them, "s", lambda: "as before") == "as before"
            assert (them.waiting_for_study, them.waiting_for_thread) == (0, 0)

    asyncio.run(play())


def test_a_waiter_canceled_as_it_is_rejected_does_not_pass_on_the_turn_of_another() -> None:
    async def play() -> None:
        async with turns(2) as them:
            latch, late = threading.Event(), list[bool]()
            begun = asyncio.create_task(write(them, "s", lambda: latch.wait(WITHIN_S)))
            waiting = asyncio.create_task(write(them, "s", lambda: None))
            await asyncio.sleep(0)
            them.close()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            after = asyncio.create_task(write(them, "s", lambda: late.append(latch.is_set())))
            await asyncio.sleep(0)
            # the second thread: it would have done that work before
            await write(them, "other", lambda: None)
            latch.set()
            assert await begun
            await after
            assert late == [True]

    asyncio.run(play())
