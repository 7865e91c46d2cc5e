"""Background requests run concurrently, a few at a time;
the next sender gets an earlier failure.
"""

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


class Sender:
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


def with_sender(test: Test) -> Callable[..., None]:
    @wraps(test)
    def wrapped(**fixtures: Any) -> None:
        async def main() -> None:
            sender = Sender()
            await asyncio.wait_for(test(sender, **fixtures), 10)
            await sender.requests.close()
            assert [
                each for each in asyncio.all_tasks() if each is not asyncio.current_task()
            ] == []

        asyncio.run(main())

    del wrapped.__wrapped__  # type: ignore[attr-defined]  # pytest would ask it for its fixtures
    return wrapped


@with_sender
async def test_the_sender_of_a_background_request_does_not_wait(sender: Sender) -> None:
    await sender.begin("a")
    assert sender.requests.is_under_way("a")
    assert sender.done == []
    sender.go.set()
    await eventually(lambda: sender.done == ["a"])
    assert not sender.requests.is_under_way("a")


@with_sender
async def test_at_most_sixteen_are_done_at_once_and_all_of_them_in_the_end(sender: Sender) -> None:
    names = [str(number) for number in range(40)]
    await sender.begin(*names)
    await eventually(lambda: len(sender.doing) == 16)
    for _ in range(5):
        await asyncio.sleep(0)
    assert sender.doing == set(names[:16])
    sender.go.set()
    await eventually(lambda: sender.done == names)


@with_sender
async def test_a_sender_after_a_failure_waits_for_its_own_request_and_its_result(
    sender: Sender,
) -> None:
    await sender.fail("a")
    assert sender.failures == 1
    sending = asyncio.create_task(sender.begin("b", error=AWAY))
    await eventually(lambda: sender.doing == {"b"})
    assert not sending.done()
    sender.go.set()
    with pytest.raises(RuntimeError, match="away"):
        await sending
    assert sender.failures == 2


@with_sender
async def test_a_success_after_a_failure_ends_the_waiting(sender: Sender) -> None:
    await sender.fail("a")
    sender.go.set()
    await sender.begin("b")
    assert sender.done == ["b"]  # it was waited for
    sender.go.clear()
    await sender.begin("c")  # and this one is not
    assert sender.requests.is_under_way("c")
    sender.go.set()


@with_sender
async def test_waiting_covers_all_requests_and_raises_any_failure(sender: Sender) -> None:
    await sender.begin("a", error=AWAY)
    sending = asyncio.create_task(sender.requests.send("b", sender.work("b"), wait=True))
    await eventually(lambda: sender.doing == {"a", "b"})
    sender.go.set()
    with pytest.raises(RuntimeError, match="away"):
        await sending
    assert sender.done == ["b"]


@with_sender
async def test_settling_waits_for_one_request_whatever_its_result(sender: Sender) -> None:
    await sender.requests.settle("nobody")
    await sender.begin("a", error=AWAY)
    settling = asyncio.create_task(sender.requests.settle("a"))
    await eventually(lambda: sender.doing == {"a"})
    assert not settling.done()
    sender.go.set()
    await settling
    assert not sender.requests.is_under_way("a")


@with_sender
async def test_a_name_is_free_for_its_next_request_once_its_failure_is_reported(
    sender: Sender,
) -> None:
    await sender.fail("a")
    sender.go.set()
    await sender.begin("a")
    assert sender.done == ["a"]


@with_sender
async def test_closing_finishes_requests_in_progress(sender: Sender) -> None:
    names = [str(number) for number in range(20)]
    await sender.begin(*names)
    closing = asyncio.create_task(sender.requests.close())
    await eventually(lambda: len(sender.doing) == 16)
    assert not closing.done()
    sender.go.set()
    await closing
    assert sender.done == names


def test_closing_abandons_requests_that_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)

    async def main() -> None:
        sender = Sender()
        await sender.begin(*(str(number) for number in range(20)))
        await sender.requests.close()
        assert (sender.doing, sender.done, sender.failures) == (set(), [], 0)
        assert not any(sender.requests.is_under_way(str(number)) for number in range(20))

    asyncio.run(main())
