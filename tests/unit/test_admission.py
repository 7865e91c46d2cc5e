"""The memory that callers use on the server is bounded, per caller and in total; waiting calls are admitted later."""

from __future__ import annotations

import asyncio

import pytest

from suggest.errors import InvalidArgument, RateLimited
from suggest.server import in_flight
from suggest.server.in_flight import InFlightLimits, Requests


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


MIB = 1 << 20


class Arrivals:
    """Requests that are being received, each as a task that ends when `end` is called for it."""

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self.begun: list[str] = []
        self._tasks: dict[str, tuple[asyncio.Task[None], asyncio.Future[bytes]]] = {}

    async def add(self, name: str, caller: str, size: int) -> None:
        """Add a request of a caller. Its name is in `begun` once it may be received."""
        content = asyncio.get_running_loop().create_future()

        async def receive() -> None:
            async with self.requests.arriving(caller, size):
                self.begun.append(name)
                await self.requests.in_time(caller, content, size)

        self._tasks[name] = asyncio.create_task(receive()), content
        await asyncio.sleep(0)

    async def end(self, name: str, content: bytes = b"") -> None:
        task, arriving = self._tasks[name]
        arriving.set_result(content)
        await task
        await asyncio.sleep(0)

    async def cancel(self, name: str) -> None:
        task, _ = self._tasks[name]
        task.cancel()
        await asyncio.wait([task])

    async def outcome(self, name: str) -> BaseException | None:
        task, _ = self._tasks[name]
        await asyncio.wait([task])
        return task.exception()


def test_a_caller_receives_as_much_at_a_time_as_is_free_and_delays_no_other_caller() -> None:
    async def play() -> None:
        arrivals = Arrivals(InFlightLimits().requests(named=False))
        for name, caller in (("a1", "a"), ("a2", "a"), ("b1", "b")):
            await arrivals.add(name, caller, in_flight.ARRIVING_BYTES // 3)
        assert arrivals.begun == ["a1", "b1"]
        await arrivals.end("b1")
        assert arrivals.begun == ["a1", "b1"], "a has a third, and would leave a third"
        await arrivals.add("c1", "c", in_flight.ARRIVING_BYTES // 3)
        await arrivals.end("a1")
        assert arrivals.begun == ["a1", "b1", "c1", "a2"]
        for name in ("c1", "a2"):
            await arrivals.end(name)

    asyncio.run(play())


def test_a_request_that_is_given_up_while_it_waits_takes_no_room() -> None:
    async def play() -> None:
        arrivals = Arrivals(InFlightLimits().requests(named=False))
        for name in ("first", "gone", "last"):
            await arrivals.add(name, "a", in_flight.ARRIVING_BYTES // 2)
        await arrivals.cancel("gone")
        await arrivals.end("first")
        assert arrivals.begun == ["first", "last"]
        await arrivals.end("last")

    asyncio.run(play())


def test_a_caller_with_small_requests_does_not_wait_for_those_with_large_ones() -> None:
    async def play() -> None:
        arrivals = Arrivals(InFlightLimits().requests(named=False))
        for turn in range(3):
            await arrivals.add(f"large{turn}", "mallory", 16 * MIB)
            await arrivals.end(f"large{turn}", b"x" * 16 * MIB)
        for caller in ("mallory", "eve"):
            await arrivals.add(caller, caller, 16 * MIB)
            await arrivals.add(f"{caller}, waiting", caller, 16 * MIB)
        await arrivals.add("small", "alice", 16 * MIB)
        assert arrivals.begun[3:] == ["mallory", "eve", "small"]
        for name in ("small", "mallory", "eve"):
            await arrivals.end(name)
        for name in ("mallory, waiting", "eve, waiting"):
            await arrivals.end(name)

    asyncio.run(play())


def test_a_slow_request_gives_way_to_a_caller_that_receives_nothing() -> None:
    async def play() -> None:
        arrivals = Arrivals(InFlightLimits().requests(named=False))
        for caller in ("a", "b", "c"):
            await arrivals.add(caller, caller, in_flight.ARRIVING_BYTES // 3)
        await arrivals.add("d", "d", in_flight.ARRIVING_BYTES // 3)
        assert isinstance(await arrivals.outcome("a"), TimeoutError)
        assert arrivals.begun == ["a", "b", "c", "d"]
        for name in ("b", "c", "d"):
            await arrivals.end(name)

    asyncio.run(play())


def test_requests_not_answered_yet_have_one_total_for_all_callers_without_a_name() -> None:
    limits = InFlightLimits()
    unnamed, named = limits.requests(named=False), limits.requests(named=True)
    for number, mib in enumerate((128, 64, 32, 16)):
        unnamed.hold_decoded(f"127.0.0.{number}", mib * MIB)
    with pytest.raises(RateLimited, match=r"127\.0\.0\.0 has 128 MiB of unanswered requests"):
        unnamed.hold_decoded("127.0.0.0", MIB)
    unnamed.hold_decoded("127.0.0.9", MIB)
    named.hold_decoded("alice", 128 * MIB)
    unnamed.release_decoded("127.0.0.0", 128 * MIB)
    unnamed.hold_decoded("127.0.0.9", 64 * MIB)


def test_a_request_larger_than_its_share_is_refused_for_good() -> None:
    requests = InFlightLimits().requests(named=False)
    with pytest.raises(InvalidArgument, match="takes up to 129 MiB once decoded; at most 128 MiB"):
        requests.hold_decoded("a", 129 * MIB)


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
