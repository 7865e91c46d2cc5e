"""A container's log reaches its file completely, once and in order, despite broken streams and killed controllers."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.runtime.kubernetes import logs
from controller.runtime.kubernetes.errors import ApiError, Unreachable
from controller.runtime.kubernetes.logs import LogFollower, PodContainer
from suggest.backoff import Backoff

POD, CONTAINER = "digits-0-a1-abcde", "trial"
START = datetime(2026, 11, 21, 9, 40, 0, tzinfo=UTC)
GONE = ApiError(404, "NotFound", f'pods "{POD}" not found')
WAITING = ApiError(400, "BadRequest", f'container "trial" in pod "{POD}" is waiting to start: PodInitializing')


@dataclass
class Node:
    """A kubelet's log of one container, behind an API server that cuts sinceTime to whole seconds.

    breaks: after how many bytes each stream ends, and whether with an error; then none does. answers: errors that come
    first. kept_from: older lines were rotated away.
    """

    lines: list[tuple[datetime, int, bytes]] = field(default_factory=list)  # time, nanoseconds below its microsecond
    ending: bytes = b"\n"
    breaks: list[tuple[int, bool]] = field(default_factory=list)
    answers: list[Exception] = field(default_factory=list)
    kept_from: int = 0
    chunk: int = 1 << 16
    zone: str = "Z"
    words: bytes = b""
    asked: list[str] = field(default_factory=list)
    over: bool = False
    more: asyncio.Event = field(default_factory=asyncio.Event)

    def print(self, text: bytes, *, after_s: float = 0.0) -> None:
        self.lines.append((START + timedelta(seconds=after_s), 0, text))
        self.more.set()

    def end(self) -> None:
        self.over = True
        self.more.set()

    def printed(self) -> bytes:
        return b"".join(text + b"\n" for _, _, text in self.lines)[:-1] + self.ending if self.lines else b""

    async def log(
        self, namespace: str, pod: str, *, container: str = "", since: str = "", follow: bool = True
    ) -> AsyncIterator[bytes]:
        assert (namespace, pod, container) == ("team-a", POD, CONTAINER)
        self.asked.append(since)
        if self.answers:
            raise self.answers.pop(0)
        left, broken = self.breaks.pop(0) if self.breaks else (1 << 60, False)
        from_time = datetime.fromisoformat(since).replace(microsecond=0) if since else START - timedelta(days=1)
        sent = self.kept_from
        if self.words:
            yield self.words
        while True:
            self.more.clear()
            text = b""
            for position in range(sent, len(self.lines)):
                time, nanoseconds, line = self.lines[position]
                if time >= from_time:
                    last = self.over and position == len(self.lines) - 1
                    text += self.stamp(time, nanoseconds) + b" " + line + (self.ending if last else b"\n")
            sent = len(self.lines)
            for start in range(0, len(text), self.chunk):
                piece = text[start : start + self.chunk][:left]
                left -= len(piece)
                if piece:
                    yield piece
                if not left:
                    if broken or not follow:  # see the tests of the last read
                        raise Unreachable("the server closed the connection")
                    return
            if self.over or not follow:
                return
            await self.more.wait()

    def stamp(self, time: datetime, nanoseconds: int) -> bytes:
        shown = time if self.zone == "Z" else time + timedelta(hours=2)
        return f"{shown:%Y-%m-%dT%H:%M:%S}.{shown.microsecond:06d}{nanoseconds:03d}{self.zone}".encode()


def follower(node: Node, folder: Path, grown: Callable[[], None] = lambda: None) -> LogFollower:
    return LogFollower(node, "team-a", PodContainer(POD, CONTAINER), folder, grown=grown)


async def eventually(holds: Callable[[], bool], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - files have no event
            await asyncio.sleep(0.001)


def text_of(folder: Path) -> bytes:
    path = folder / "log.txt"
    return path.read_bytes() if path.exists() else b""


def run_scenario(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]  # a coroutine function


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real back-offs, a hundred times faster."""
    monkeypatch.setattr(logs, "_BACKOFF", Backoff(0.001, 0.01))
    monkeypatch.setattr(logs, "_OFTEN_ENOUGH_S", 0.01)


def copied(node: Node, folder: Path) -> LogFollower:
    """Follow the log of an ended container to its end."""
    followed = follower(node, folder)

    async def scenario() -> None:
        followed.begin()
        followed.ended()
        await eventually(lambda: followed.done, 12.0)
        await followed.close()

    run_scenario(scenario)
    return followed


LINES = st.lists(
    st.tuples(
        # Times that repeat, advance, and sometimes go back a little, as with two streams or an adjusted clock.
        st.sampled_from([0, 0, 0, 0, 1, 1000, 400_000, 1_000_000, 3_700_000, -1, -2_900_000]),
        st.sampled_from([0, 0, 1, 999]),
        st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"\xff"))
        | st.sampled_from([b"", b"accuracy=0.5", b"\r1/9\r2/9", b"2026-11-21T09:40:00Z not a stamp", b"x" * 300]),
    ),
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(
    lines=LINES,
    ending=st.sampled_from([b"\n", b""]),
    breaks=st.lists(st.tuples(st.integers(1, 900), st.booleans()), max_size=8),
    kills=st.lists(st.integers(0, 60), max_size=4),
    chunk=st.sampled_from([1, 7, 64, 1 << 16]),
    zone=st.sampled_from(["Z", "+02:00"]),
    piece=st.sampled_from([45, 100, 1 << 16]),
    note_s=st.sampled_from([0.0, 0.003, 10.0]),
)
def test_no_line_is_lost_or_duplicated_whatever_fails(
    lines: list[tuple[int, int, bytes]],
    ending: bytes,
    breaks: list[tuple[int, bool]],
    kills: list[int],
    chunk: int,
    zone: str,
    piece: int,
    note_s: float,
) -> None:
    node = Node(breaks=breaks, chunk=chunk, zone=zone)
    time = newest = START
    for step, nanoseconds, text in lines:
        time = max(time + timedelta(microseconds=step), newest - timedelta(seconds=3))
        newest = max(time, newest)
        node.lines.append((time, nanoseconds, text))
    node.over, node.ending = True, ending if not lines or lines[-1][2] else b"\n"

    async def scenario(root: Path) -> bytes:
        folder = root / "0"
        folder.mkdir()
        for life, turns in enumerate(kills, start=1):
            followed = follower(node, folder)
            followed.begin()
            for _ in range(turns):
                await asyncio.sleep(0)
            # The controller is killed here, so its successor finds only what is on the disk.
            heir = root / str(life)
            shutil.copytree(folder, heir)
            await followed.close()
            folder = heir
        followed = follower(node, folder)
        followed.begin()
        for _ in range(20):
            await asyncio.sleep(0)
        followed.ended()
        await eventually(lambda: followed.done)
        await followed.close()
        assert followed.trouble == ""
        return text_of(folder)

    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_PIECE_BYTES", piece)
        patch.setattr(logs, "_NOTE_S", note_s)
        assert asyncio.run(scenario(Path(root))) == node.printed()


def test_a_line_is_in_the_file_as_soon_as_it_was_in_the_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        node, told = Node(), asyncio.Event()
        followed = follower(node, tmp_path, told.set)
        followed.begin()
        for number in range(3):
            told.clear()
            node.print(b"step=%d" % number, after_s=number)
            await asyncio.wait_for(told.wait(), 5.0)
            assert text_of(tmp_path).endswith(b"step=%d\n" % number)
        await followed.close()

    run_scenario(scenario)


def test_a_progress_bar_is_in_the_file_before_its_line_ends(tmp_path: Path) -> None:
    class Drawing(Node):
        async def log(self, namespace: str, pod: str, *, container: str = "", since: str = "",
                      follow: bool = True) -> AsyncIterator[bytes]:  # fmt: skip
            yield self.stamp(START, 0) + b" \r1/9 accuracy=0.1"
            yield b"\r2/9 accuracy=0.2"
            await self.more.wait()

    async def scenario() -> None:
        followed = follower(Drawing(), tmp_path)
        followed.begin()
        await eventually(lambda: text_of(tmp_path) == b"\r1/9 accuracy=0.1\r2/9 accuracy=0.2")
        await followed.close()

    run_scenario(scenario)


def test_the_log_of_a_waiting_container_is_requested_until_it_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(answers=[WAITING] * 4)
        node.print(b"at last")
        followed = follower(node, tmp_path)
        followed.begin()
        await eventually(lambda: text_of(tmp_path) == b"at last\n")
        assert followed.trouble == ""
        await followed.close()

    run_scenario(scenario)


def test_a_container_that_never_ran_has_no_log(tmp_path: Path) -> None:
    followed = copied(Node(answers=[WAITING] * 100), tmp_path)
    assert (followed.done, followed.trouble, text_of(tmp_path)) == (True, "", b"")


def test_a_missing_pod_ends_the_log_and_keeps_what_was_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node()
        node.print(b"one")
        followed = follower(node, tmp_path)
        followed.begin()
        await eventually(lambda: text_of(tmp_path) == b"one\n")
        node.answers = [GONE]
        node.end()
        await eventually(lambda: followed.done)
        assert followed.trouble == "its pod was deleted before all of its log was read"
        followed.ended()
        await followed.close()
        heir = follower(Node(answers=[GONE]), tmp_path)
        heir.begin()
        await eventually(lambda: heir.done)
        await heir.close()
        assert text_of(tmp_path) == b"one\n"

    run_scenario(scenario)


def test_log_lines_written_before_a_kill_are_kept_when_the_pod_is_gone(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"one\ntwo\n")
    assert copied(Node(answers=[GONE]), tmp_path).done
    assert text_of(tmp_path) == b"one\ntwo\n"


def test_an_answer_of_a_node_that_does_not_know_the_pod_yet_is_not_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(answers=[ApiError(404, "NotFound", "the server could not find the requested resource")])
        node.print(b"here I am")
        followed = follower(node, tmp_path)
        followed.begin()
        await eventually(lambda: text_of(tmp_path) == b"here I am\n")
        await followed.close()

    run_scenario(scenario)


def test_lines_that_were_rotated_away_are_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(breaks=[(1 << 60, False)])
        node.print(b"one")
        node.print(b"two", after_s=0.5)
        followed = follower(node, tmp_path)
        followed.begin()
        await eventually(lambda: text_of(tmp_path) == b"one\ntwo\n")
        await followed.close()
        for number in range(5):
            node.print(b"lost", after_s=0.6 + number)
        node.kept_from = len(node.lines)
        node.print(b"three", after_s=7.0)
        node.end()
        heir = follower(node, tmp_path)
        heir.begin()
        await eventually(lambda: b"three" in text_of(tmp_path))
        assert text_of(tmp_path) == b"one\ntwo\nthree\n"
        assert heir.trouble == (
            "lines before 2026-11-21T09:40:07.000000000Z are missing: "
            "the node had rotated the log before they were read"
        )
        await heir.close()

    run_scenario(scenario)


def test_an_error_of_the_node_in_place_of_the_log_is_not_a_line(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(words=b"failed to try resolving symlinks in path", over=True)
        followed = follower(node, tmp_path)
        followed.begin()
        await eventually(lambda: followed.trouble != "")
        assert (followed.trouble, text_of(tmp_path)) == ("failed to try resolving symlinks in path", b"")
        node.words = b""
        node.print(b"one")
        await eventually(lambda: text_of(tmp_path) == b"one\n")
        assert followed.trouble == ""
        await followed.close()

    run_scenario(scenario)


def test_the_rest_of_a_line_from_before_the_requested_second_is_dropped(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(lines=[(START, 0, b"one")])
        followed = follower(node, tmp_path)
        followed.begin()
        await eventually(lambda: text_of(tmp_path) == b"one\n")
        await followed.close()
        node.words = b"of a long line, without a stamp\n"
        node.print(b"two", after_s=1)
        node.end()
        heir = copied_in(node, tmp_path)
        await eventually(lambda: heir.done)
        await heir.close()
        assert (text_of(tmp_path), heir.trouble) == (b"one\ntwo\n", "")

    run_scenario(scenario)


def copied_in(node: Node, folder: Path) -> LogFollower:
    followed = follower(node, folder)
    followed.begin()
    followed.ended()
    return followed


def test_a_full_disk_is_reported_and_nothing_is_missing_once_there_is_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node()
        node.print(b"one")
        (tmp_path / "log.txt").mkdir()  # no byte can be written there either
        followed = follower(node, tmp_path)
        followed.begin()
        await eventually(lambda: followed.trouble.startswith(f"cannot write {tmp_path / 'log.txt'}: "))
        node.print(b"two", after_s=1)
        (tmp_path / "log.txt").rmdir()
        await eventually(lambda: text_of(tmp_path) == b"one\ntwo\n")
        await eventually(lambda: followed.trouble == "")
        await followed.close()

    run_scenario(scenario)


def test_an_unreadable_end_of_a_log_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_PATIENCE_S", 0.05)
    node = Node(answers=[Unreachable("no route to the node")] * 1000)
    assert copied(node, tmp_path).trouble == ("the end of its log could not be read within 0 s: no route to the node")


def test_while_the_cluster_does_not_answer_or_let_us_read_the_rest_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(logs, "_BACKOFF", Backoff(0.001, 0.02))
    refusal = 'pods "x" is forbidden: User "u" cannot get resource "pods/log" in API group "" in the namespace "team-a"'

    async def play() -> None:
        node = Node(answers=[Unreachable("away")] * 20 + [ApiError(403, "Forbidden", refusal)] * 20)
        node.print(b"score=1")
        node.end()
        followed = follower(node, tmp_path)
        followed.ended()
        followed.begin()
        barred = False
        while not followed.done:
            followed.extend_time_limit()
            barred |= followed.barred is not None
            await asyncio.sleep(0.005)
        assert (barred, followed.barred, followed.trouble) == (True, None, "")

    asyncio.run(play())
    assert text_of(tmp_path) == b"score=1\n"


def test_the_log_of_another_pod_is_appended_to_the_first(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"of the first pod\n")
    (tmp_path / "log.position").write_text(
        '{"pod": "another", "container": "trial", "offset": 17, "newest": "2027", "second": 9, "floor": 0, '
        '"counts": {"9": 1}, "done": true}'
    )
    copied(Node(lines=[(START, 0, b"of the second")], over=True), tmp_path)
    assert text_of(tmp_path) == b"of the first pod\nof the second\n"


def test_a_final_read_that_ends_within_a_line_is_repeated(tmp_path: Path) -> None:
    class Cut(Node):
        async def log(self, namespace: str, pod: str, *, container: str = "", since: str = "",
                      follow: bool = True) -> AsyncIterator[bytes]:  # fmt: skip
            self.asked.append(since)
            whole = self.stamp(START, 0) + b" accuracy=0.75\n"
            yield whole if len(self.asked) > 1 else whole[:-3]

    copied(Cut(), tmp_path)
    assert text_of(tmp_path) == b"accuracy=0.75\n"


def test_a_log_read_to_its_end_is_not_requested_again(tmp_path: Path) -> None:
    node = Node(lines=[(START, 0, b"one")], over=True)
    copied(node, tmp_path)
    asked = len(node.asked)
    assert copied(node, tmp_path).done
    assert len(node.asked) == asked


def test_an_end_may_be_reported_repeatedly(tmp_path: Path) -> None:
    node = Node(lines=[(START, 0, b"one")])

    async def scenario() -> None:
        followed = follower(node, tmp_path)
        followed.begin()
        await eventually(lambda: text_of(tmp_path) != b"" or node.asked != [])
        node.end()
        while not followed.done:
            followed.ended()  # each look at the pod says so, also while the stream is being let go
            await asyncio.sleep(0)
        await followed.close()

    run_scenario(scenario)
    assert text_of(tmp_path) == b"one\n"


def test_a_line_without_end_passes_through_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    class Endless(Node):
        async def log(self, namespace: str, pod: str, *, container: str = "", since: str = "",
                      follow: bool = True) -> AsyncIterator[bytes]:  # fmt: skip
            yield self.stamp(START, 0) + b" "
            for _ in range(256):
                yield b"x" * (1 << 16)
            yield b"\n"

    tracemalloc.start()
    try:
        copied(Endless(), tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    assert (tmp_path / "log.txt").stat().st_size == (16 << 20) + 1
