"""The memory that callers use on the server is bounded, per caller and in total; waiting calls are admitted later."""

from __future__ import annotations

import asyncio

import pytest

from suggest.errors import RateLimited
from suggest.server import in_flight
from suggest.server.in_flight import InFlightLimits


def test_a_caller_has_a_limit_of_calls_and_streams() -> None:
    async def play() -> None:
        them = InFlightLimits()
        for _ in range(in_flight.MAX_CALLS):
            them.enter("a")
        with pytest.raises(RateLimited, match="a has 1000 calls in flight"):
            them.enter("a")
        them.enter("b")
        them.leave("a")
        them.enter("a")
        async with asyncio.TaskGroup() as group:
            over = asyncio.Event()

            async def stream() -> None:
                async with them.streaming("a"):
                    await over.wait()

            for _ in range(in_flight.MAX_STREAMS):
                group.create_task(stream())
            await asyncio.sleep(0)
            with pytest.raises(RateLimited, match="a has 32 streams open"):
                async with them.streaming("a"):
                    pass
            over.set()

    asyncio.run(play())


def test_a_few_requests_of_a_caller_arrive_at_a_time_and_delay_no_other_caller() -> None:
    async def play() -> None:
        them = InFlightLimits()
        for _ in range(in_flight.ARRIVING):
            them.enter("a")
            await them.begin_arriving("a")
        them.enter("a")
        waits = asyncio.create_task(them.begin_arriving("a"))
        them.enter("b")
        await them.begin_arriving("b")
        await asyncio.sleep(0)
        assert not waits.done()
        them.end_arriving("a")
        await waits
        gone = asyncio.create_task(them.begin_arriving("a"))
        last = asyncio.create_task(them.begin_arriving("a"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        them.end_arriving("a")
        await last

    asyncio.run(play())


def test_requests_that_may_be_larger_take_several_places_while_they_arrive() -> None:
    async def play() -> None:
        them = InFlightLimits()
        for _ in range(in_flight.ARRIVING // 4):
            them.enter("a")
            await them.begin_arriving("a", 4)
        them.enter("a")
        small = asyncio.create_task(them.begin_arriving("a"))
        large = asyncio.create_task(them.begin_arriving("a", 4))
        await asyncio.sleep(0)
        assert not small.done()
        them.end_arriving("a", 4)
        await small
        await asyncio.sleep(0)
        assert not large.done(), "three places are free"
        them.end_arriving("a")
        await large

    asyncio.run(play())


def test_a_caller_has_a_limit_of_request_bytes() -> None:
    them = InFlightLimits()
    them.enter("a")
    them.take_request("a", in_flight.REQUEST_BYTES + 1)  # gRPC limits the size of a single call
    with pytest.raises(RateLimited, match="32 MiB of unanswered requests"):
        them.take_request("a", 1)
    them.release_request("a", in_flight.REQUEST_BYTES + 1)
    them.take_request("a", 1)


def test_unread_replies_block_further_replies_to_that_caller_until_they_are_read() -> None:
    messages = list[str]()
    them = InFlightLimits(lambda: messages.append("room"))
    them.hold_reply("a", in_flight.REPLY_BYTES)
    assert them.full("a")
    assert not them.full("b")
    them.release_reply("a", in_flight.REPLY_BYTES)
    assert not them.full("a")
    assert messages == ["room"]


def test_all_callers_share_a_limit_of_reply_bytes_but_each_gets_its_first_reply() -> None:
    them = InFlightLimits()
    callers = [f"caller {n}" for n in range(20)]
    for caller in callers:
        while not them.full(caller):
            them.hold_reply(caller, 3 << 20)
    held = {caller: them._held[caller].reply_bytes for caller in callers}
    assert held["caller 0"] == 18 << 20
    assert set(list(held.values())[10:]) == {3 << 20}, "the first of each"


def test_an_empty_reply_is_released_after_its_call_has_left() -> None:
    released: list[str] = []
    limits = InFlightLimits(on_released=lambda: released.append("alice"))
    limits.enter("alice")
    limits.hold_reply("alice", 0)
    limits.leave("alice")
    limits.release_reply("alice", 0)
    assert released == ["alice"]
    assert not limits.full("alice")
