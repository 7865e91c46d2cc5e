"""Requests to the API server have one limit for a process, and namespaces share it."""

from __future__ import annotations

import asyncio

from controller.kube.log_streams import LogStreams
from controller.kube.loop_turns import LoopTurns
from controller.kube.request_limit import OWN, RequestLimit, Sender

A, B = Sender("team-a", "a"), Sender("team-b", "b")


class Requests:
    """Requests that last until they are answered. `sent`: the experiments, in order."""

    def __init__(self, limit: RequestLimit) -> None:
        self.limit = limit
        self.sent: list[str] = []
        self._answers: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def send(self, sender: Sender, count: int = 1) -> None:
        self._tasks += [asyncio.create_task(self._send(sender)) for _ in range(count)]
        await passes()

    async def answer(self, count: int) -> None:
        for answer in self._answers[:count]:
            answer.set()
        del self._answers[:count]
        await passes()

    async def _send(self, sender: Sender) -> None:
        async with self.limit.place(sender):
            self.sent.append(sender.experiment)
            self._answers.append(asyncio.Event())
            await self._answers[-1].wait()

    async def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def passes(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_thousand_waiting_requests_of_a_namespace_delay_none_of_another() -> None:
    async def check() -> None:
        requests = Requests(RequestLimit(10, per_s=10))
        await requests.send(A, 1000)
        assert requests.sent == ["a"] * 5
        await requests.send(B)
        assert requests.sent == ["a"] * 5 + ["b"]
        assert requests.limit.waiting == 995
        await requests.cancel()

    asyncio.run(check())


def test_of_many_busy_namespaces_the_one_with_the_fewest_requests_is_next() -> None:
    async def check() -> None:
        requests = Requests(RequestLimit(8, per_s=1e9))
        for n in range(4):
            await requests.send(Sender(f"team-{n}", "a"), 50)
        assert requests.sent == ["a"] * 8
        await requests.send(B)
        await requests.answer(1)
        assert requests.sent[8:] == ["b"]
        await requests.cancel()

    asyncio.run(check())


def test_the_experiments_of_a_namespace_take_turns() -> None:
    async def check() -> None:
        requests = Requests(RequestLimit(2, per_s=1e9))
        await requests.send(A, 100)
        await requests.send(Sender("team-a", "small"))
        for _ in range(3):
            await requests.answer(1)
        assert requests.sent.index("small") <= 2
        await requests.cancel()

    asyncio.run(check())


def test_a_request_of_the_process_itself_waits_for_none() -> None:
    async def check() -> None:
        requests = Requests(RequestLimit(4, per_s=4))
        for n in range(10):
            await requests.send(Sender(f"team-{n}", "a"), 10)
        await requests.send(OWN)
        assert requests.sent[-1] == OWN.experiment
        await requests.cancel()

    asyncio.run(check())


def test_so_many_requests_are_sent_in_a_second_however_fast_they_are_answered() -> None:
    async def check() -> None:
        now_s = 0.0
        loop = asyncio.get_running_loop()
        loop.time = lambda: now_s  # type: ignore[method-assign]
        requests = Requests(RequestLimit(10, per_s=10))
        await requests.send(A, 100)
        for second in range(1, 4):
            await requests.answer(100)
            assert len(requests.sent) == 5 * second
            now_s = float(second)
            await passes()
        del loop.time
        await requests.cancel()

    asyncio.run(check())


def test_a_canceled_request_leaves_its_place_to_others() -> None:
    async def check() -> None:
        requests = Requests(RequestLimit(2, per_s=1e9))
        await requests.send(A, 3)
        await requests.cancel()
        await requests.send(B)
        assert requests.sent == ["a", "b"]
        assert requests.limit.waiting == 0
        await requests.cancel()

    asyncio.run(check())


def test_a_thousand_tasks_of_a_namespace_delay_another_one_by_a_pass_of_the_event_loop() -> None:
    async def check() -> None:
        turns, worked = LoopTurns(), list[str]()

        async def work(sender: Sender) -> None:
            await turns.next(sender)
            worked.append(sender.experiment)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(1000):
                tasks.create_task(work(A))
            tasks.create_task(work(B))
        assert worked.index("b") <= 4
        assert len(worked) == 1001

    asyncio.run(check())


def test_a_namespace_whose_logs_have_all_streams_gives_one_to_another_namespace() -> None:
    async def check() -> list[tuple[str, bool]]:
        streams, followed = LogStreams(followed=3), list[tuple[str, bool]]()

        async def follow(sender: Sender) -> None:
            async with streams.turn(sender, lambda: True) as follows:
                followed.append((sender.experiment, follows))
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(follow(A)) for _ in range(4)]
        await passes()
        tasks += [asyncio.create_task(follow(B)) for _ in range(2)]
        await passes()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return followed

    assert asyncio.run(check()) == [
        *[("a", True)] * 3,
        ("a", False),
        ("b", True),
        ("b", False),
    ]
