"""Background requests run concurrently, a few at a time; the next sender gets an earlier failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from controller.runtime.kubernetes import admission as module
from controller.runtime.kubernetes.admission import BackgroundRequests
from tests.kube.small_cluster import eventually

AWAY = RuntimeError("away")


class Desk:
    """Sends requests that last until they are released, and records the results."""

    def __init__(self) -> None:
        self.requests = BackgroundRequests(failed=self._failed)
        self.go = asyncio.Event()
        self.doing: set[str] = set()
        self.done: list[str] = []
        self.failures = 0

    def _failed(self) -> None:
        self.failures += 1

    async def work(self, name: str, *, error: Exception | None = None) -> None:
        self.doing.add(name)
        try:
            await self.go.wait()
        finally:
            self.doing.discard(name)
        if error is not None:
            raise error
        self.done.append(name)

    async def begin(self, *names: str, error: Exception | None = None) -> None:
        for name in names:
            await self.requests.send(name, self.work(name, error=error))

    async def fail(self, name: str) -> None:
        """Let a request fail, reported only by the call."""
        self.go.set()
        await self.begin(name, error=AWAY)
        await eventually(lambda: not self.requests.is_under_way(name))
        self.go.clear()


Test = Callable[..., Coroutine[Any, Any, None]]


def at_a_desk(test: Test) -> Callable[..., None]:
    @wraps(test)
    def wrapped(**fixtures: Any) -> None:
        async def main() -> None:
            desk = Desk()
            await asyncio.wait_for(test(desk, **fixtures), 10)
            await desk.requests.close()
            assert [each for each in asyncio.all_tasks() if each is not asyncio.current_task()] == []

        asyncio.run(main())

    del wrapped.__wrapped__  # type: ignore[attr-defined]  # pytest would ask it for its fixtures
    return wrapped


@at_a_desk
async def test_the_sender_of_a_background_request_does_not_wait(desk: Desk) -> None:
    await desk.begin("a")
    assert desk.requests.is_under_way("a")
    assert desk.done == []
    desk.go.set()
    await eventually(lambda: desk.done == ["a"])
    assert not desk.requests.is_under_way("a")


@at_a_desk
async def test_at_most_sixteen_are_done_at_once_and_all_of_them_in_the_end(desk: Desk) -> None:
    names = [str(number) for number in range(40)]
    await desk.begin(*names)
    await eventually(lambda: len(desk.doing) == 16)
    for _ in range(5):
        await asyncio.sleep(0)
    assert desk.doing == set(names[:16])
    desk.go.set()
    await eventually(lambda: desk.done == names)


@at_a_desk
async def test_a_sender_after_a_failure_waits_for_its_own_request_and_its_result(desk: Desk) -> None:
    await desk.fail("a")
    assert desk.failures == 1
    sending = asyncio.create_task(desk.begin("b", error=AWAY))
    await eventually(lambda: desk.doing == {"b"})
    assert not sending.done()
    desk.go.set()
    with pytest.raises(RuntimeError, match="away"):
        await sending
    assert desk.failures == 2


@at_a_desk
async def test_a_success_after_a_failure_ends_the_waiting(desk: Desk) -> None:
    await desk.fail("a")
    desk.go.set()
    await desk.begin("b")
    assert desk.done == ["b"]  # it was waited for
    desk.go.clear()
    await desk.begin("c")  # and this one is not
    assert desk.requests.is_under_way("c")
    desk.go.set()


@at_a_desk
async def test_waiting_covers_all_requests_and_raises_any_failure(desk: Desk) -> None:
    await desk.begin("a", error=AWAY)
    sending = asyncio.create_task(desk.requests.send("b", desk.work("b"), wait=True))
    await eventually(lambda: desk.doing == {"a", "b"})
    desk.go.set()
    with pytest.raises(RuntimeError, match="away"):
        await sending
    assert desk.done == ["b"]


@at_a_desk
async def test_settling_waits_for_one_request_whatever_its_result(desk: Desk) -> None:
    await desk.requests.settle("nobody")
    await desk.begin("a", error=AWAY)
    settling = asyncio.create_task(desk.requests.settle("a"))
    await eventually(lambda: desk.doing == {"a"})
    assert not settling.done()
    desk.go.set()
    await settling
    assert not desk.requests.is_under_way("a")


@at_a_desk
async def test_a_name_is_free_for_its_next_request_once_its_failure_is_reported(desk: Desk) -> None:
    await desk.fail("a")
    desk.go.set()
    await desk.begin("a")
    assert desk.done == ["a"]


@at_a_desk
async def test_closing_finishes_requests_in_progress(desk: Desk) -> None:
    names = [str(number) for number in range(20)]
    await desk.begin(*names)
    closing = asyncio.create_task(desk.requests.close())
    await eventually(lambda: len(desk.doing) == 16)
    assert not closing.done()
    desk.go.set()
    await closing
    assert desk.done == names


def test_closing_abandons_requests_that_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)

    async def main() -> None:
        desk = Desk()
        await desk.begin(*(str(number) for number in range(20)))
        await desk.requests.close()
        assert (desk.doing, desk.done, desk.failures) == (set(), [], 0)
        assert not any(desk.requests.is_under_way(str(number)) for number in range(20))

    asyncio.run(main())
