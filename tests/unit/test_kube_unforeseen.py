"""An unexpected exception stops neither reflectors nor logs:
it is logged once as a bug, and they restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from controller.core.attempt import RuntimeLost
from controller.kube.client import JOBS
from controller.kube.log_streams import LogStreams
from controller.kube.loop_turns import LoopTurns
from controller.kube.objects import AttemptObject, Raw
from controller.kube.reflector import Reflector, WatchTiming
from controller.kube.request_limit import Sender
from controller.runtime.kubernetes import logs
from controller.runtime.kubernetes.logs import LogCopying, LogFollower, PodContainer
from suggest.backoff import Backoff
from tests.kube.fake_api import FakeApi
from tests.kube.small_cluster import eventually

ODD: Raw = {"type": "ADDED", "object": {"metadata": {"name": "a"}}}
SENTENCE = (
    "what the cluster says of jobs cannot be read (KeyError: 'resourceVersion'); this is a bug"
)
# Every watch counts as a long one, so that the next one starts without a pause.
TIMING = WatchTiming(watch_s=(60.0, 60.0), backoff=Backoff(0.005, 0.02, 0.5), settled_s=0.0)


def bugs(caplog: pytest.LogCaptureFixture) -> list[type[BaseException] | None]:
    """Return the messages that were logged with a traceback."""
    return [
        record.exc_info[0]
        for record in caplog.records
        if record.exc_info and "bug" in record.getMessage()
    ]


def watches(api: FakeApi) -> int:
    return sum("watch" in query for _, _, query in api.requests)


def test_an_unexpected_event_is_logged_and_followed_by_a_list(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        seen: list[str] = []
        async with FakeApi() as api, api.client() as client:
            reflector: Reflector[AttemptObject] = Reflector(client, JOBS, "user1", timing=TIMING)
            view = reflector.view("user1", changed=lambda: seen.append(reflector.trouble))
            await reflector.start()
            for times, name in enumerate("abc", start=1):
                await eventually(lambda times=times: watches(api) == times)
                api.say(ODD)
                await eventually(
                    lambda times=times: seen.count(SENTENCE) == times and seen[-1] == ""
                )
                api.put("jobs", {"metadata": {"name": name, "namespace": "user1"}})
                await eventually(lambda name=name: name in view.objects)
            assert (reflector.trouble, reflector.error) == ("", None)
            await reflector.close()

    asyncio.run(main())
    assert bugs(caplog) == [KeyError]


def test_an_unexpected_error_is_reported_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    async def main() -> None:
        async with FakeApi() as api, api.client() as client:
            reflector: Reflector[AttemptObject] = Reflector(client, JOBS, "user1", timing=TIMING)
            await reflector.start()
            await eventually(lambda: watches(api) == 1)
            api.hold("GET", "/jobs")
            api.say(ODD)
            await eventually(lambda: api.held == 1)
            assert isinstance(reflector.error, RuntimeLost)
            assert (reflector.trouble, str(reflector.error)) == (SENTENCE, SENTENCE)
            api.release()
            await eventually(lambda: not reflector.trouble)
            await reflector.close()

    asyncio.run(main())


def test_an_unexpected_error_about_one_hidden_object_leaves_no_other_one_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    label = "tuner.dev/uid"

    async def main() -> None:
        errors = [KeyError("a")]

        def changed() -> None:
            if errors and "a" not in view.objects:
                raise errors.pop()

        async with FakeApi() as api, api.client() as client:
            reflector: Reflector[AttemptObject] = Reflector(
                client, JOBS, "user1", timing=TIMING, grouped_by=label
            )
            for name in "ab":
                about = {"name": name, "namespace": "user1", "labels": {label: "ours"}}
                api.put("jobs", {"metadata": about})
            view = reflector.view("user1", "ours", changed=lambda: None)
            await reflector.start()
            view.changed = changed
            for name in "ab":
                api.remove("jobs", "user1", name)
                await eventually(lambda name=name: name not in view.objects)
            assert not errors
            await reflector.close()

    asyncio.run(main())
    assert bugs(caplog) == [KeyError]


class OddNode:
    """A node that fails this many times, and then returns a single line."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.over = asyncio.Event()
        self.log_streams = LogStreams()
        self.turns = LoopTurns()

    async def may_stream(self) -> None: ...

    async def answers(self) -> bool:
        return True

    async def log(self, *_: str, follow: bool = True, **asked: Any) -> AsyncIterator[bytes]:
        if self.times:
            self.times -= 1
            raise KeyError("items")
        yield b"2026-11-21T09:40:00Z x=1\n"
        if follow:
            await self.over.wait()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_BACKOFF", Backoff(0.002, 0.002))
    monkeypatch.setattr(logs, "_OFTEN_ENOUGH_S", 0.002)


def follow(node: OddNode, folder: Path) -> LogFollower:
    follower = LogFollower(
        LogCopying(node, Sender("user1", "uid")),
        PodContainer("a-x", "trial"),
        folder,
        grown=lambda: None,
    )
    follower.begin()
    return follower


@pytest.mark.usefixtures("hasty")
def test_a_log_is_followed_again_after_an_unexpected_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        node = OddNode(3)
        follower = follow(node, tmp_path)
        await eventually(lambda: node.times < 3)
        assert not follower.done
        await eventually(lambda: follower.size == len(b"x=1\n"))
        assert (follower.trouble, follower.denied) == ("", None)
        follower.ended()
        await eventually(lambda: follower.done)
        await follower.close()
        assert follower.trouble == ""

    asyncio.run(main())
    assert (tmp_path / "log.txt").read_bytes() == b"x=1\n"
    assert bugs(caplog) == [KeyError]


@pytest.mark.usefixtures("hasty")
def test_the_rest_of_a_log_is_requested_again_after_an_unexpected_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        follower = follow(OddNode(3), tmp_path)
        follower.ended()
        await eventually(lambda: follower.done)
        await follower.close()
        assert follower.trouble == ""

    asyncio.run(main())
    assert (tmp_path / "log.txt").read_bytes() == b"x=1\n"
    assert bugs(caplog) == [KeyError]


@pytest.mark.usefixtures("hasty")
def test_an_unreadable_rest_of_a_log_is_abandoned_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PATIENCE_S", 0.1)

    async def main() -> None:
        follower = follow(OddNode(1 << 30), tmp_path)
        follower.ended()
        await eventually(lambda: follower.done)
        await follower.close()
        assert "its log cannot be read (KeyError: 'items'); this is a bug" in follower.trouble

    asyncio.run(main())
    assert bugs(caplog) == [KeyError]
