"""Calls that write one study come one after the other, and wait without a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from suggest.errors import StudyBusy
from suggest.serving.turns import MAX_WAITING, NOBODY, Turns

WITHIN_S = 10


@asynccontextmanager
async def turns(workers: int = 2) -> AsyncIterator[Turns]:
    with ThreadPoolExecutor(workers) as executor:
        yield Turns(executor, workers=workers)


async def until(condition: threading.Event) -> None:
    assert await asyncio.to_thread(condition.wait, WITHIN_S)


def test_many_calls_of_a_slow_study_hold_up_no_other() -> None:
    async def play() -> None:
        async with turns() as them:
            gate, order = threading.Event(), list[int]()

            def slow(number: int) -> None:
                gate.wait(WITHIN_S)
                order.append(number)

            calls = [asyncio.create_task(them.run("slow", lambda n=n: slow(n))) for n in range(20)]  # type: ignore[misc]
            await asyncio.sleep(0)
            assert await them.run("other", lambda: "answered") == "answered"
            assert await them.run("", lambda: "read") == "read"
            assert (them.waiting_for_study, them.waiting_for_worker) == (19, 0)
            gate.set()
            await asyncio.gather(*calls)
            assert order == list(range(20)), "in the order in which they came"
            assert them.waiting_for_study == 0

    asyncio.run(play())


def test_large_work_is_done_one_piece_at_a_time_and_holds_up_no_small_work() -> None:
    async def play() -> None:
        async with turns() as them:
            gate, under_way, most = threading.Event(), list[str](), list[int]()

            def large(study: str) -> None:
                under_way.append(study)
                most.append(len(under_way))
                gate.wait(WITHIN_S)
                under_way.remove(study)

            async def call(study: str) -> None:
                async with them.one_at_a_time(NOBODY):
                    await them.run(study, lambda: large(study))

            calls = [asyncio.create_task(call(study)) for study in "abcd"]
            await asyncio.sleep(0)
            assert await them.run("other", lambda: "answered") == "answered"
            calls[1].cancel()
            gate.set()
            await asyncio.gather(*calls, return_exceptions=True)
            assert most == [1, 1, 1]
            assert await them.run("b", lambda: "b has its turn") == "b has its turn"

    asyncio.run(play())


def test_a_queue_has_an_end() -> None:
    async def play() -> None:
        async with turns() as them:
            gate = threading.Event()
            calls = [asyncio.create_task(them.run("s", lambda: gate.wait(WITHIN_S))) for _ in range(MAX_WAITING + 1)]
            await asyncio.sleep(0)
            with pytest.raises(StudyBusy, match="256 calls wait for it already"):
                await them.run("s", lambda: None)
            gate.set()
            assert all(await asyncio.gather(*calls))
            assert await them.run("s", lambda: "again") == "again"

    asyncio.run(play())


def test_who_gives_up_waiting_is_never_served_and_makes_room() -> None:
    async def play() -> None:
        async with turns() as them:
            gate, done = threading.Event(), list[str]()
            first = asyncio.create_task(them.run("s", lambda: gate.wait(WITHIN_S)))
            second = asyncio.create_task(them.run("s", lambda: done.append("second")))
            third = asyncio.create_task(them.run("s", lambda: done.append("third")))
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.sleep(0)
            assert them.waiting_for_study == 1
            gate.set()
            await asyncio.gather(first, third)
            assert done == ["third"]

    asyncio.run(play())


def test_who_gives_up_just_before_its_turn_leaves_it_to_the_next() -> None:
    async def play() -> None:
        with ThreadPoolExecutor(1) as executor:
            them, gate = Turns(executor, workers=1), threading.Event()
            first = asyncio.create_task(them.run("s", lambda: gate.wait(WITHIN_S)))
            waiting = [asyncio.create_task(them.run("s", lambda: True)) for _ in range(3)]
            await asyncio.sleep(0)
            gate.set()
            executor.submit(int).result(WITHIN_S)  # the only thread: by now the first one's work is done
            await asyncio.sleep(0)  # and its task about to hear of it
            for gone in waiting[:2]:
                gone.cancel()
            assert await first
            assert await waiting[2]
            assert them.waiting_for_study == 0

    asyncio.run(play())


def test_what_was_begun_is_finished_before_the_next_though_nobody_waits_for_it() -> None:
    async def play() -> None:
        async with turns() as them:
            begun, gate, order = threading.Event(), threading.Event(), list[str]()

            def first() -> None:
                begun.set()
                gate.wait(WITHIN_S)
                order.append("first")

            one = asyncio.create_task(them.run("s", first))
            two = asyncio.create_task(them.run("s", lambda: order.append("second")))
            await until(begun)
            one.cancel()
            await asyncio.wait([one])
            assert not two.done()
            gate.set()
            await two
            assert order == ["first", "second"]

    asyncio.run(play())


def test_work_that_fails_passes_its_turn_on() -> None:
    async def play() -> None:
        async with turns() as them:
            with pytest.raises(ZeroDivisionError):
                await them.run("s", lambda: 1 // 0)
            assert await them.run("s", lambda: "next") == "next"

    asyncio.run(play())
