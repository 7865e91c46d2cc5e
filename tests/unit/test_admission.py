"""The memory that callers use on the server is bounded, per caller and in total;
waiting calls are admitted later.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from suggest.errors import InvalidArgument, RateLimited, TimedOut
from suggest.server import in_flight
from suggest.server.call_pool import HeavyCalls
from suggest.server.in_flight import CallerLimit, RequestBytes


def test_a_caller_has_a_limit_of_calls() -> None:
    limit = CallerLimit(2, "{caller} has {most} calls in flight")
    with limit.one_more("a"), limit.one_more("b"):
        with (
            limit.one_more("a"),
            pytest.raises(RateLimited, match="a has 2 calls in flight"),
            limit.one_more("a"),
        ):
            pass
        with limit.one_more("a"):
            pass


MIB = 1 << 20


# four of them may arrive at the same time
LARGE = in_flight.REQUEST_BYTES // 4 // in_flight._ARRIVING_COPIES


class Arrivals:
    """Requests that are being received, each as a task that ends when `end` is called for it."""

    def __init__(self) -> None:
        self.heavy = HeavyCalls()
        self.requests = RequestBytes(self.heavy)
        self.begun: list[str] = []
        self._tasks: dict[str, tuple[asyncio.Task[None], asyncio.Future[bytes]]] = {}

    async def add(self, name: str, caller: str) -> None:
        """Add a request of a caller. Its name is in `begun` once it may be received."""
        content = asyncio.get_running_loop().create_future()

        async def receive() -> None:
            async with self.requests.room(caller, f"Call by {caller}", LARGE) as room:
                self.begun.append(name)
                await room.read(content)

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


def test_a_caller_receives_half_at_a_time_and_delays_no_other_caller() -> None:
    async def play() -> None:
        arrivals = Arrivals()
        for name, caller in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b")):
            await arrivals.add(name, caller)
        assert arrivals.begun == ["a1", "a2", "b1"]
        await arrivals.end("a1")
        assert arrivals.begun == ["a1", "a2", "b1", "a3"]
        for name in ("a2", "a3", "b1"):
            await arrivals.end(name)

    asyncio.run(play())


def test_a_request_that_is_given_up_while_it_waits_takes_no_room() -> None:
    async def play() -> None:
        arrivals = Arrivals()
        for name in ("first", "second", "gone", "last"):
            await arrivals.add(name, "a")
        await arrivals.cancel("gone")
        await arrivals.end("first")
        assert arrivals.begun == ["first", "second", "last"]
        for name in ("second", "last"):
            await arrivals.end(name)
        assert arrivals.requests.total.has_room("a", in_flight.REQUEST_BYTES)

    asyncio.run(play())


def test_a_caller_with_small_requests_does_not_wait_for_one_with_large_ones() -> None:
    async def play() -> None:
        arrivals = Arrivals()
        await arrivals.add("first", "mallory")
        await arrivals.end("first", b"x" * 2 * MIB)
        for name in ("second", "third"):
            await arrivals.add(name, "mallory")
        for name in ("small", "small too"):
            await arrivals.add(name, "alice")
        assert arrivals.begun == ["first", "second", "small", "small too"]
        for name in ("small", "small too", "second"):
            await arrivals.end(name)
        assert arrivals.begun[4:] == ["third"]
        await arrivals.end("third")

    asyncio.run(play())


def test_a_slow_request_gives_way_to_a_caller_that_receives_nothing() -> None:
    async def play() -> None:
        arrivals = Arrivals()
        for caller in ("a", "b", "c", "d", "e"):
            await arrivals.add(caller, caller)
        assert isinstance(await arrivals.outcome("a"), TimedOut)
        assert "Call by a" in arrivals.heavy
        assert arrivals.begun == ["a", "b", "c", "d", "e"]
        for name in ("b", "c", "d", "e"):
            await arrivals.end(name)

    asyncio.run(play())


def test_requests_not_answered_yet_have_one_total_for_all_callers() -> None:
    async def play() -> None:
        requests = RequestBytes(HeavyCalls())
        async with contextlib.AsyncExitStack() as entered:

            async def arrive(caller: str, mib: int) -> None:
                room = await entered.enter_async_context(requests.room(caller, "Call", 1))
                room.resize(mib * MIB)

            for number, mib in enumerate((127, 64, 32, 16)):
                await arrive(f"127.0.0.{number}", mib)
            with pytest.raises(
                RateLimited, match=r"127\.0\.0\.3 has 16 MiB of unanswered requests"
            ):
                await arrive("127.0.0.3", 2)
            await arrive("127.0.0.9", 1)
        assert requests.total.has_room("127.0.0.0", in_flight.REQUEST_BYTES)

    asyncio.run(play())


def test_a_request_larger_than_its_share_is_refused_for_good() -> None:
    async def play() -> None:
        requests = RequestBytes(HeavyCalls())
        with pytest.raises(
            InvalidArgument, match="takes up to 129 MiB once decoded; at most 128 MiB"
        ):
            async with requests.room("a", "Call", MIB) as room:
                room.resize(129 * MIB)

    asyncio.run(play())
