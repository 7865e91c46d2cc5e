"""Calls that write the same study run one after the other, and wait without a thread."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from suggest.errors import StudyBusy, Unavailable
from suggest.server.keyed_queue import ANY_KIND, LARGE_REPLY_BYTES, MAX_WAITING, NOBODY, CallKind, Flow, KeyedQueue

WITHIN_S = 10


@asynccontextmanager
async def turns(workers: int = 2) -> AsyncIterator[KeyedQueue]:
    with ThreadPoolExecutor(workers) as executor:
        yield KeyedQueue(executor, workers=workers)


async def until(condition: threading.Event) -> None:
    assert await asyncio.to_thread(condition.wait, WITHIN_S)


def test_many_calls_of_a_slow_study_hold_up_no_other() -> None:
    async def play() -> None:
        async with turns() as them:
            latch, order = threading.Event(), list[int]()

            def slow(number: int) -> None:
                latch.wait(WITHIN_S)
                order.append(number)

            calls = [asyncio.create_task(them.run("slow", lambda n=n: slow(n))) for n in range(20)]  # type: ignore[misc]
            await asyncio.sleep(0)
            assert await them.run("other", lambda: "answered") == "answered"
            assert await them.run("", lambda: "read") == "read"
            assert (them.waiting_for_study, them.waiting_for_worker) == (19, 0)
            latch.set()
            await asyncio.gather(*calls)
            assert order == list(range(20)), "in the order in which they came"
            assert them.waiting_for_study == 0

    asyncio.run(play())


def test_large_work_is_done_one_piece_at_a_time_and_holds_up_no_small_work() -> None:
    async def play() -> None:
        async with turns() as them:
            latch, under_way, most = threading.Event(), list[str](), list[int]()

            def large(study: str) -> None:
                under_way.append(study)
                most.append(len(under_way))
                latch.wait(WITHIN_S)
                under_way.remove(study)

            async def call(study: str) -> None:
                async with them.one_at_a_time(NOBODY):
                    await them.run(study, lambda: large(study))

            calls = [asyncio.create_task(call(study)) for study in "abcd"]
            await asyncio.sleep(0)
            assert await them.run("other", lambda: "answered") == "answered"
            calls[1].cancel()
            latch.set()
            await asyncio.gather(*calls, return_exceptions=True)
            assert most == [1, 1, 1]
            assert await them.run("b", lambda: "b has its turn") == "b has its turn"

    asyncio.run(play())


def test_a_queue_has_a_maximum_length() -> None:
    async def play() -> None:
        async with turns() as them:
            latch = threading.Event()
            calls = [asyncio.create_task(them.run("s", lambda: latch.wait(WITHIN_S))) for _ in range(MAX_WAITING + 1)]
            await asyncio.sleep(0)
            with pytest.raises(StudyBusy, match="256 calls already wait"):
                await them.run("s", lambda: None)
            latch.set()
            assert all(await asyncio.gather(*calls))
            assert await them.run("s", lambda: "again") == "again"

    asyncio.run(play())


def test_a_canceled_waiter_is_never_served_and_frees_its_place() -> None:
    async def play() -> None:
        async with turns() as them:
            latch, done = threading.Event(), list[str]()
            first = asyncio.create_task(them.run("s", lambda: latch.wait(WITHIN_S)))
            second = asyncio.create_task(them.run("s", lambda: done.append("second")))
            third = asyncio.create_task(them.run("s", lambda: done.append("third")))
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
            them, latch = KeyedQueue(executor, workers=1), threading.Event()
            first = asyncio.create_task(them.run("s", lambda: latch.wait(WITHIN_S)))
            waiting = [asyncio.create_task(them.run("s", lambda: True)) for _ in range(3)]
            await asyncio.sleep(0)
            latch.set()
            executor.submit(int).result(WITHIN_S)  # the only thread: by now the first one's work is done
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

            one = asyncio.create_task(them.run("s", first))
            two = asyncio.create_task(them.run("s", lambda: order.append("second")))
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
                await them.run("s", lambda: 1 // 0)
            assert await them.run("s", lambda: "next") == "next"

    asyncio.run(play())


async def begun_by(them: KeyedQueue, flows: list[Flow], kinds: list[CallKind] | None = None) -> list[str]:
    """Run work for each flow in turn, and return the flows whose work has started."""
    latch, begun = threading.Event(), list[str]()

    def work(flow: Flow) -> None:
        begun.append(flow.caller or flow.namespace)
        latch.wait(WITHIN_S)

    calls = [
        asyncio.create_task(them.run("", functools.partial(work, flow), flow=flow, kind=kind))
        for flow, kind in zip(flows, kinds or [ANY_KIND] * len(flows), strict=True)
    ]
    await asyncio.sleep(0)
    while len(begun) < len(calls) - them.waiting_for_worker:
        await asyncio.to_thread(lambda: None)
    seen = sorted(begun)
    latch.set()
    await asyncio.gather(*calls)
    return seen


def test_one_caller_leaves_threads_for_others_and_they_for_the_next() -> None:
    async def play() -> None:
        async with turns(16) as them:
            flows = [Flow(caller, f"{number % 3}") for caller in "abcd" for number in range(40)]
            begun = await begun_by(them, flows)
            assert {caller: begun.count(caller) for caller in "abcd"} == {"a": 9, "b": 4, "c": 2, "d": 1}

    asyncio.run(play())


def test_one_namespace_of_a_caller_leaves_a_thread_for_its_others() -> None:
    async def play() -> None:
        async with turns(16) as them:
            begun = await begun_by(them, [Flow("", namespace) for namespace in "xy" for _ in range(40)])
            assert {namespace: begun.count(namespace) for namespace in "xy"} == {"x": 8, "y": 1}

    asyncio.run(play())


def test_calls_that_are_known_to_be_long_have_a_quarter_of_the_threads() -> None:
    async def play() -> None:
        async with turns(16) as them:
            long = CallKind("long")
            await them.run("", lambda: burn(0.15), kind=long)
            flows = [Flow(caller) for caller in "abc" for _ in range(10)]
            begun = await begun_by(them, flows, [long] * len(flows))
            assert {caller: begun.count(caller) for caller in "abc"} == {"a": 3, "b": 1, "c": 0}

    asyncio.run(play())


def burn(seconds: float) -> None:
    """Use processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_the_caller_that_has_cost_least_goes_first() -> None:
    async def play() -> None:
        async with turns(1) as them:
            latch, order = threading.Event(), list[str]()
            first = asyncio.create_task(them.run("", lambda: latch.wait(WITHIN_S), flow=Flow("other")))
            await asyncio.sleep(0)

            def work(caller: str, seconds: float) -> None:
                order.append(caller)
                burn(seconds)

            calls = [
                asyncio.create_task(them.run("", functools.partial(work, caller, seconds), flow=Flow(caller)))
                for caller, seconds in (("costly", 0.02), ("cheap", 0.0))
                for _ in range(5)
            ]
            await asyncio.sleep(0)
            latch.set()
            await asyncio.gather(first, *calls)
            assert order == ["costly", *["cheap"] * 5, *["costly"] * 4]

    asyncio.run(play())


def test_a_caller_that_takes_no_replies_is_given_no_further_large_ones() -> None:
    async def play() -> None:
        full = {"slow reader": True}
        with ThreadPoolExecutor(4) as executor:
            them = KeyedQueue(executor, workers=4, full=lambda caller: full.get(caller, False))
            lists, flow = CallKind("list"), Flow("slow reader")
            await them.run("", lambda: b"x" * 2 * LARGE_REPLY_BYTES, flow=Flow("other"), kind=lists, reply_bytes=len)
            waits = asyncio.create_task(them.run("", lambda: b"", flow=flow, kind=lists, reply_bytes=len))
            assert await them.run("", lambda: "small", flow=flow) == "small"
            assert await them.run("", lambda: "other", flow=Flow("other"), kind=lists, reply_bytes=len) == "other"
            assert not waits.done()
            full.clear()
            them.look_again()
            assert await waits == b""

    asyncio.run(play())


def test_a_burst_of_unknown_calls_does_not_get_round_the_limit_on_unsent_replies() -> None:
    async def play() -> None:
        sent: list[int] = []
        limited = True
        with ThreadPoolExecutor(2) as executor:
            them = KeyedQueue(executor, workers=2, full=lambda caller: limited and bool(sent))
            lists = CallKind("list")
            call = functools.partial(them.run, "", kind=lists, reply_bytes=lambda _: 2 * LARGE_REPLY_BYTES)
            calls = [asyncio.create_task(call(functools.partial(sent.append, n))) for n in range(12)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            assert await them.run("", lambda: "small") == "small"
            assert len(sent) <= 2, "only as many as had begun before the size of their replies was known"
            limited = False
            them.look_again()
            await asyncio.gather(*calls)
            assert sorted(sent) == list(range(12))

    asyncio.run(play())


def test_calls_that_have_not_started_are_rejected_on_shutdown() -> None:
    async def play() -> None:
        async with turns(1) as them:
            latch = threading.Event()
            begun = asyncio.create_task(them.run("s", lambda: latch.wait(WITHIN_S)))
            waiting = [asyncio.create_task(them.run(study, lambda: None)) for study in ("s", "", "t")]
            await asyncio.sleep(0)
            them.close()
            assert {type(e) for e in await asyncio.gather(*waiting, return_exceptions=True)} == {Unavailable}
            latch.set()
            assert await begun
            assert await them.run("s", lambda: "as before") == "as before"
            assert (them.waiting_for_study, them.waiting_for_worker) == (0, 0)

    asyncio.run(play())


def test_a_waiter_canceled_as_it_is_rejected_does_not_pass_on_the_turn_of_another() -> None:
    async def play() -> None:
        async with turns(2) as them:
            latch, late = threading.Event(), list[bool]()
            begun = asyncio.create_task(them.run("s", lambda: latch.wait(WITHIN_S)))
            waiting = asyncio.create_task(them.run("s", lambda: None))
            await asyncio.sleep(0)
            them.close()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            after = asyncio.create_task(them.run("s", lambda: late.append(latch.is_set())))
            await asyncio.sleep(0)
            await them.run("other", lambda: None)  # the second thread: it would have done that work before
            latch.set()
            assert await begun
            await after
            assert late == [True]

    asyncio.run(play())


def test_work_that_fails_costs_its_caller_as_much_as_other_work() -> None:
    async def play() -> None:
        async with turns(1) as them:

            def fail() -> None:
                burn(0.03)
                raise Unavailable("out of order")

            with pytest.raises(Unavailable):
                await them.run("", fail, flow=Flow("failing"))
            await them.run("", lambda: None, flow=Flow("modest"))
            latch, order = threading.Event(), list[str]()
            calls = [asyncio.create_task(them.run("", lambda: latch.wait(WITHIN_S), flow=Flow("other")))]
            for caller in ("failing", "modest"):
                work = functools.partial(order.append, caller)
                calls.append(asyncio.create_task(them.run("", work, flow=Flow(caller))))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            latch.set()
            await asyncio.gather(*calls)
            assert order == ["modest", "failing"]

    asyncio.run(play())
