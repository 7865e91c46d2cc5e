"""A container's log reaches its file completely, once and in order,
despite broken streams and killed controllers.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from controller.core.metric_lines import GAP_LINE
from controller.kube.errors import ApiError, Unreachable
from controller.kube.log_streams import READS_PER_S, LogStreams
from controller.kube.loop_turns import LoopTurns
from controller.kube.request_limit import Sender
from controller.runtime.kubernetes import logs
from controller.runtime.kubernetes.logs import LogCopying, LogFollower, PodContainer
from suggest.backoff import Backoff

POD, CONTAINER = "digits-0-a1-abcde", "trial"
START = datetime(2026, 11, 21, 9, 40, 0, tzinfo=UTC)
GONE = ApiError(404, "NotFound", f'pods "{POD}" not found')
WAITING = ApiError(
    400, "BadRequest", f'container "trial" in pod "{POD}" is waiting to start: PodInitializing'
)


@dataclass
class Node:
    """A kubelet's log of one container, behind an API server that cuts sinceTime to whole seconds.

    breaks: after how many bytes each stream ends, and whether with an error; then none does.
    errors: those that come first. kept_from: older lines were rotated away.
    """

    # time, nanoseconds below its microsecond
    lines: list[tuple[datetime, int, bytes]] = field(default_factory=list)
    ending: bytes = b"\n"
    breaks: list[tuple[int, bool]] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    kept_from: int = 0
    chunk: int = 1 << 16
    zone: str = "Z"
    words: bytes = b""
    restarted_at: int = 0  # earlier lines are those of the container before it was restarted
    asked: list[str] = field(default_factory=list)
    over: bool = False
    more: asyncio.Event = field(default_factory=asyncio.Event)
    log_streams: LogStreams = field(default_factory=LogStreams)
    turns: LoopTurns = field(default_factory=LoopTurns)

    async def may_stream(self) -> None: ...

    async def answers(self) -> bool:
        return True

    def print(self, text: bytes, *, after_s: float = 0.0) -> None:
        self.lines.append((START + timedelta(seconds=after_s), 0, text))
        self.more.set()

    def end(self) -> None:
        self.over = True
        self.more.set()

    def printed(self) -> bytes:
        return (
            b"".join(text + b"\n" for _, _, text in self.lines)[:-1] + self.ending
            if self.lines
            else b""
        )

    def log(
        self,
        namespace: str,
        pod: str,
        *,
        container: str = "",
        since: str = "",
        last_lines: int = 0,
        previous: bool = False,
        follow: bool = True,
    ) -> AsyncIterator[bytes]:
        assert (namespace, pod, container) == ("team-a", POD, CONTAINER)
        self.asked.append(since)
        return self.stream(since, last_lines, previous, follow)

    async def stream(
        self, since: str, last_lines: int, previous: bool, follow: bool
    ) -> AsyncIterator[bytes]:
        if self.errors:
            raise self.errors.pop(0)
        left, broken = self.breaks.pop(0) if self.breaks else (1 << 60, False)
        from_time = (
            datetime.fromisoformat(since).replace(microsecond=0)
            if since
            else START - timedelta(days=1)
        )
        sent = max(self.kept_from, len(self.lines) - last_lines) if last_lines else self.kept_from
        if previous and not self.restarted_at:
            raise ApiError(
                400,
                "BadRequest",
                f'previous terminated container "{CONTAINER}" in pod "{POD}" not found',
            )
        until = self.restarted_at if previous else None
        sent = sent if previous else max(sent, self.restarted_at)
        if self.words:
            yield self.words
        while True:
            self.more.clear()
            text = b""
            for position in range(sent, len(self.lines) if until is None else until):
                time, nanoseconds, line = self.lines[position]
                if time >= from_time:
                    last = self.over and position == len(self.lines) - 1
                    text += (
                        self.stamp(time, nanoseconds)
                        + b" "
                        + line
                        + (self.ending if last else b"\n")
                    )
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


def follower(
    node: Node,
    folder: Path,
    grown: Callable[[], None] = lambda: None,
    *,
    read_after_s: float | None = None,
    restarts: int = 0,
) -> LogFollower:
    """Return a follower.

    read_after_s: that it begins so many seconds after the container has. restarts: before that.
    """
    started = None if read_after_s is None else START
    of = PodContainer(POD, CONTAINER, started=started, restarts=restarts)
    now = START + timedelta(seconds=read_after_s or 0)
    return LogFollower(
        LogCopying(node, Sender("team-a", "uid"), now=lambda: now),
        of,
        folder,
        grown=grown,
    )


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


def copied(
    node: Node, folder: Path, *, read_after_s: float | None = None, restarts: int = 0
) -> LogFollower:
    """Follow the log of an ended container to its end."""
    followed = follower(node, folder, read_after_s=read_after_s, restarts=restarts)

    async def scenario() -> None:
        followed.begin()
        followed.ended()
        await eventually(lambda: followed.done, 12.0)
        await followed.close()

    run_scenario(scenario)
    return followed


LINES = st.lists(
    st.tuples(
        # Times that repeat, advance, and sometimes go back a little,
        # as with two streams or an adjusted clock.
        st.sampled_from([0, 0, 0, 0, 1, 1000, 400_000, 1_000_000, 3_700_000, -1, -2_900_000]),
        st.sampled_from([0, 0, 1, 999]),
        st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"\xff"))
        | st.sampled_from(
            [b"", b"accuracy=0.5", b"\r1/9\r2/9", b"2026-11-21T09:40:00Z not a stamp", b"x" * 300]
        ),
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


def test_the_copy_of_a_long_log_is_capped(tmp_path: Path) -> None:
    of = PodContainer(POD, CONTAINER)
    copying = LogCopying(Node(()), Sender("team-a", "uid"), limit_bytes=1 << 20)
    followed = LogFollower(copying, of, tmp_path, grown=lambda: None)

    async def scenario() -> None:
        for begin in range(0, 400_000, 1000):
            lines = b"".join(b"line %d\n" % number for number in range(begin, begin + 1000))
            followed.add(lines, whole=len(lines))
        await followed.close()

    run_scenario(scenario)
    status = (tmp_path / "log.txt").stat()
    assert status.st_size > 4 << 20
    assert status.st_blocks * 512 < 3 << 19
    assert text_of(tmp_path).startswith(b"line 0\nline 1\n")
    assert text_of(tmp_path).endswith(b"line 399999\n")


def test_a_progress_bar_is_in_the_file_before_its_line_ends(tmp_path: Path) -> None:
    class Drawing(Node):
        async def stream(self, *asked: Any) -> AsyncIterator[bytes]:
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
        node = Node(errors=[WAITING] * 4)
        node.print(b"at last")
        followed = follower(node, tmp_path)
        followed.begin()
        await eventually(lambda: text_of(tmp_path) == b"at last\n")
        assert followed.trouble == ""
        await followed.close()

    run_scenario(scenario)


def test_a_container_that_never_ran_has_no_log(tmp_path: Path) -> None:
    followed = copied(Node(errors=[WAITING] * 100), tmp_path)
    assert (followed.done, followed.trouble, text_of(tmp_path)) == (True, "", b"")


def test_a_node_that_learns_late_that_a_container_ran_is_asked_again(tmp_path: Path) -> None:
    node = Node(errors=[WAITING] * 4)
    node.print(b"at last")
    node.end()
    followed = copied(node, tmp_path, read_after_s=0)
    assert (followed.trouble, text_of(tmp_path)) == ("", b"at last\n")


def test_a_missing_pod_ends_the_log_and_keeps_what_was_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node()
        node.print(b"one")
        followed = follower(node, tmp_path)
        followed.begin()
        await eventually(lambda: text_of(tmp_path) == b"one\n")
        node.errors = [GONE]
        node.end()
        await eventually(lambda: followed.done)
        assert followed.trouble == "its pod was deleted before all of its log was read"
        followed.ended()
        await followed.close()
        heir = follower(Node(errors=[GONE]), tmp_path)
        heir.begin()
        await eventually(lambda: heir.done)
        await heir.close()
        assert text_of(tmp_path) == b"one\n"

    run_scenario(scenario)


def test_log_lines_written_before_a_kill_are_kept_when_the_pod_is_gone(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"one\ntwo\n")
    assert copied(Node(errors=[GONE]), tmp_path).done
    assert text_of(tmp_path) == b"one\ntwo\n"


def test_an_answer_of_a_node_that_does_not_know_the_pod_yet_is_not_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(
            errors=[ApiError(404, "NotFound", "the server could not find the requested resource")]
        )
        node.print(b"here I am")
        followed = follower(node, tmp_path)
        followed.begin()
        await eventually(lambda: text_of(tmp_path) == b"here I am\n")
        await followed.close()

    run_scenario(scenario)


def read_before_a_detach(node: Node, folder: Path) -> None:
    """Copy what the log has now, and end like a controller that detaches."""
    expected = node.printed()

    async def scenario() -> None:
        followed = follower(node, folder)
        followed.begin()
        await eventually(lambda: text_of(folder) == expected)
        await followed.close()

    run_scenario(scenario)


def a_node_that_rotates_while_nobody_reads(folder: Path) -> Node:
    node = Node()
    node.print(b"one")
    node.print(b"two", after_s=0.5)
    read_before_a_detach(node, folder)
    for number in range(5):
        node.print(b"lost", after_s=0.6 + number)
    node.kept_from = len(node.lines)
    return node


def test_lines_that_were_rotated_away_are_marked_in_the_copy_and_the_rest_is_read(
    tmp_path: Path,
) -> None:
    node = a_node_that_rotates_while_nobody_reads(tmp_path)
    node.print(b"three", after_s=7.0)
    node.end()
    assert copied(node, tmp_path).trouble == ""
    assert text_of(tmp_path) == (
        b"one\ntwo\n# tuner: gap: lines printed between 2026-11-21T09:40:00.500Z and "
        b"2026-11-21T09:40:07.000Z are "
        b"missing: the node had rotated the log before they were read\nthree\n"
    )
    assert copied(node, tmp_path).done
    assert text_of(tmp_path).count(b"gap") == 1


def test_a_gap_before_an_unfinished_line_is_marked_once(tmp_path: Path) -> None:
    node = a_node_that_rotates_while_nobody_reads(tmp_path)
    node.print(b"50%\r" + b"x" * 200, after_s=7.0)
    # Each stream breaks within the line, whose beginning is in the copy already.
    node.breaks = [(100, True), (120, True), (1 << 60, False)]
    node.end()
    copied(node, tmp_path)
    assert text_of(tmp_path).count(b"gap") == 1
    assert text_of(tmp_path).endswith(b"read\n50%\r" + b"x" * 200 + b"\n")


def test_a_rotated_end_is_reported(tmp_path: Path) -> None:
    node = a_node_that_rotates_while_nobody_reads(tmp_path)
    node.end()
    followed = copied(node, tmp_path)
    assert (
        followed.trouble
        == "the end of its log may be missing: the node had rotated the log before it was read"
    )


def test_rotating_lines_that_were_read_is_not_a_gap(tmp_path: Path) -> None:
    node = Node()
    for number in range(6):
        node.print(b"%d" % number, after_s=number / 10)
    read_before_a_detach(node, tmp_path)
    node.kept_from = 5  # the last line that was read is still there
    node.print(b"new", after_s=0.9)
    node.end()
    assert copied(node, tmp_path).trouble == ""
    assert text_of(tmp_path) == b"0\n1\n2\n3\n4\n5\nnew\n"


def test_a_rotation_while_an_idle_log_is_followed_is_not_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_IDLE_S", 0.01)

    async def scenario() -> None:
        node = Node()
        node.print(b"epoch=9 accuracy=0.9")
        followed = follower(node, tmp_path)
        followed.begin()
        await eventually(lambda: text_of(tmp_path) != b"")
        await asyncio.sleep(0.02)  # it prints nothing, and the node rotates what it has printed
        node.kept_from = len(node.lines)
        followed.ended()
        node.end()
        await eventually(lambda: followed.done)
        assert followed.trouble == ""

    run_scenario(scenario)
    assert text_of(tmp_path) == b"epoch=9 accuracy=0.9\n"


def test_what_a_container_printed_before_a_restart_is_read_first(tmp_path: Path) -> None:
    node = Node()
    node.print(b"one")
    read_before_a_detach(node, tmp_path)
    node.print(b"two", after_s=1)
    node.restarted_at = 2
    node.print(b"again", after_s=20)
    node.end()
    assert copied(node, tmp_path).trouble == ""
    assert text_of(tmp_path) == b"one\ntwo\nagain\n"


def test_a_restarted_container_that_prints_nothing_more_has_no_gap(tmp_path: Path) -> None:
    node = Node()
    node.print(b"one")
    read_before_a_detach(node, tmp_path)
    node.restarted_at = 1
    node.end()
    assert copied(node, tmp_path).trouble == ""
    assert text_of(tmp_path) == b"one\n"


@pytest.mark.parametrize("before", [b"one\n", b""], ids=["it printed", "it printed nothing"])
def test_a_container_that_was_restarted_before_anybody_read_has_lost_no_line(
    tmp_path: Path, before: bytes
) -> None:
    node = Node()
    if before:
        node.print(before.strip())
        node.restarted_at = 1
    node.print(b"again", after_s=20)
    node.end()
    assert copied(node, tmp_path, restarts=1).trouble == ""
    assert text_of(tmp_path) == before + b"again\n"


def test_a_container_that_was_restarted_twice_before_anybody_read_may_lack_lines(
    tmp_path: Path,
) -> None:
    node = Node()
    node.print(b"two")
    node.restarted_at = 1
    node.print(b"three", after_s=20)
    node.end()
    copied(node, tmp_path, restarts=2)
    assert text_of(tmp_path) == (
        b"# tuner: gap: lines printed before 2026-11-21T09:40:00.000Z may be missing: its "
        b"container was restarted 2 times before its log was read, and a node keeps the log "
        b"before the last restart only\ntwo\nthree\n"
    )


def a_late_first_line(*, after_s: float) -> Node:
    node = Node()
    node.print(b"step=9", after_s=after_s)
    node.end()
    return node


def test_a_log_whose_beginning_nobody_read_may_lack_it(tmp_path: Path) -> None:
    copied(a_late_first_line(after_s=40), tmp_path / "7" / "1", read_after_s=600)
    assert text_of(tmp_path / "7" / "1") == (
        b"# tuner: gap: lines printed before 2026-11-21T09:40:40.000Z may be missing: nobody read "
        b"the log in the "
        b"container's first 40 s, and a node keeps only its end\nstep=9\n"
    )


@pytest.mark.parametrize(
    ("read_after_s", "first_line_s"),
    [
        pytest.param(5, 300, id="it was read while it printed nothing"),
        pytest.param(600, 2, id="its first line is as old as its container"),
    ],
)
def test_a_beginning_that_cannot_have_been_rotated_is_not_missed(
    tmp_path: Path, read_after_s: float, first_line_s: float
) -> None:
    copied(a_late_first_line(after_s=first_line_s), tmp_path / "7" / "1", read_after_s=read_after_s)
    assert text_of(tmp_path / "7" / "1") == b"step=9\n"


def test_a_trial_whose_predecessors_print_little_has_lost_no_beginning(tmp_path: Path) -> None:
    copied(Node(lines=[(START, 0, b"step=1")], over=True), tmp_path / "0" / "1")
    copied(a_late_first_line(after_s=40), tmp_path / "7" / "1", read_after_s=600)
    assert text_of(tmp_path / "7" / "1") == b"step=9\n"


def test_predecessors_that_lack_a_part_or_have_not_ended_prove_nothing(tmp_path: Path) -> None:
    copied(a_late_first_line(after_s=40), tmp_path / "0" / "1", read_after_s=600)
    running = tmp_path / "1" / "1"
    running.mkdir(parents=True)
    (running / "log.position").write_text('{"pod": "x", "container": "trial", "done": false}')
    copied(a_late_first_line(after_s=40), tmp_path / "7" / "1", read_after_s=600)
    assert b"may be missing" in text_of(tmp_path / "7" / "1")


def test_a_rotation_between_two_streams_of_an_idle_log_is_not_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_IDLE_S", 0.0)
    clock = START + timedelta(seconds=5)

    async def scenario() -> None:
        node = Node(breaks=[(52, False)])  # the first stream ends behind the first line
        node.print(b"epoch=1 accuracy=0.9")
        of = PodContainer(POD, CONTAINER)
        copying = LogCopying(node, Sender("team-a", "uid"), now=lambda: clock)
        followed = LogFollower(copying, of, tmp_path, grown=lambda: None)
        followed.begin()
        await eventually(lambda: text_of(tmp_path) != b"")
        node.kept_from = 1
        await eventually(lambda: len(node.asked) > 1)
        node.print(b"epoch=2 accuracy=0.8", after_s=400)
        await eventually(lambda: b"epoch=2" in text_of(tmp_path))
        await followed.close()

    run_scenario(scenario)
    assert text_of(tmp_path) == b"epoch=1 accuracy=0.9\nepoch=2 accuracy=0.8\n"


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(read=st.integers(1, 30), printed=st.integers(0, 30), rotated=st.integers(0, 60))
def test_a_gap_is_reported_if_and_only_if_unread_lines_were_rotated(
    read: int, printed: int, rotated: int
) -> None:
    node = Node()
    for number in range(read):
        node.print(b"%d" % number, after_s=number / 7)
    with tempfile.TemporaryDirectory() as root:
        read_before_a_detach(node, Path(root))
        for number in range(read, read + printed):
            node.print(b"%d" % number, after_s=number / 7)
        node.kept_from = min(rotated, read + printed)
        # If the node has rotated exactly what was read, nobody knows whether more was rotated.
        assume(node.kept_from != read)
        node.end()
        trouble = copied(node, Path(root)).trouble
        assert bool(trouble or b"# tuner: gap" in text_of(Path(root))) == (node.kept_from > read)


def test_an_error_of_the_node_in_place_of_the_log_is_not_a_line(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = Node(words=b"failed to try resolving symlinks in path", over=True)
        followed = follower(node, tmp_path)
        followed.begin()
        await eventually(lambda: followed.trouble != "")
        assert (followed.trouble, text_of(tmp_path)) == (
            "failed to try resolving symlinks in path",
            b"",
        )
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
        await eventually(
            lambda: followed.trouble.startswith(f"cannot write {tmp_path / 'log.txt'}: ")
        )
        node.print(b"two", after_s=1)
        (tmp_path / "log.txt").rmdir()
        await eventually(lambda: text_of(tmp_path) == b"one\ntwo\n")
        await eventually(lambda: followed.trouble == "")
        await followed.close()

    run_scenario(scenario)


def test_the_end_of_a_log_is_not_abandoned_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PATIENCE_S", 0.2)

    async def scenario() -> None:
        node = Node()
        node.print(b"one")
        (tmp_path / "log.txt").mkdir()  # no byte can be written there either
        followed = copied_in(node, tmp_path)
        await eventually(lambda: "cannot write" in str(followed.denied))
        await asyncio.wait([asyncio.create_task(asyncio.sleep(1.0))])
        assert not followed.done
        (tmp_path / "log.txt").rmdir()
        await eventually(lambda: followed.done)
        assert (text_of(tmp_path), followed.trouble, followed.denied) == (b"one\n", "", None)

    run_scenario(scenario)


def test_an_unreadable_end_of_a_log_is_abandoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PATIENCE_S", 0.05)
    node = Node(errors=[Unreachable("no route to the node")] * 1000)
    reason = "the end of its log could not be read: nothing arrived for 0 s: no route to the node"
    assert copied(node, tmp_path).trouble == reason


class FarNode(Node):
    """Answers each request after 20 ms."""

    async def stream(self, *asked: Any) -> AsyncIterator[bytes]:
        await asyncio.sleep(0.02)
        async for piece in super().stream(*asked):
            yield piece


def test_time_in_a_queue_of_this_process_is_no_silence_of_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PATIENCE_S", 0.1)

    class Queued(Node):
        async def may_stream(self) -> None:
            await asyncio.sleep(0.5)

    node = Queued()
    node.print(b"accuracy=0.9")
    node.end()

    async def scenario() -> None:
        followed = follower(node, tmp_path)
        followed.ended()
        followed.begin()
        await eventually(lambda: followed.done)
        assert (text_of(tmp_path), followed.trouble) == (b"accuracy=0.9\n", "")

    run_scenario(scenario)


def test_time_in_which_the_event_loop_stands_still_is_no_silence_of_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PATIENCE_S", 0.1)
    node = FarNode()
    node.print(b"accuracy=0.9")
    node.end()

    async def scenario() -> None:
        followed = follower(node, tmp_path)
        followed.ended()
        followed.begin()
        while not followed.done:
            await asyncio.sleep(0.001)
            time.sleep(0.15)  # noqa: ASYNC251 - other work blocks the loop
        assert (text_of(tmp_path), followed.trouble) == (b"accuracy=0.9\n", "")

    run_scenario(scenario)


def test_no_end_of_a_log_is_abandoned_while_the_api_server_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PATIENCE_S", 0.05)
    asked = 0

    class Away(Node):
        async def answers(self) -> bool:
            nonlocal asked
            asked += 1
            if asked == 3:
                self.errors.clear()
            return asked > 3

    node = Away(errors=[Unreachable("connection refused")] * 1_000_000)
    node.print(b"accuracy=0.9")
    node.end()

    async def scenario() -> None:
        followed = follower(node, tmp_path)
        followed.begin()
        followed.ended()
        await eventually(lambda: followed.done)
        assert (followed.trouble, text_of(tmp_path)) == ("", b"accuracy=0.9\n")
        await followed.close()

    run_scenario(scenario)


class SlowNode(Node):
    """Sends a piece every 20 ms. stalls_in_order: nothing arrives of more than the last lines."""

    stalls_in_order = False

    async def stream(self, since: str, last_lines: int, *asked: Any) -> AsyncIterator[bytes]:
        async for piece in super().stream(since, last_lines, *asked):
            await asyncio.sleep(60 if self.stalls_in_order and not last_lines else 0.02)
            yield piece


def test_a_log_that_arrives_slowly_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PATIENCE_S", 0.2)
    node = SlowNode(chunk=50)
    for number in range(30):
        node.print(b"step=%d" % number, after_s=number)
    node.end()
    assert copied(node, tmp_path).trouble == ""  # it takes three times the patience
    assert text_of(tmp_path) == node.printed()


def test_the_end_is_read_where_the_rest_does_not_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(logs, "_END_LINES", 2)
    node = SlowNode()
    node.print(b"first")
    read_before_a_detach(node, tmp_path)
    node.stalls_in_order = True
    for number in range(5):
        node.print(b"step=%d" % number, after_s=1 + number)
    node.print(b"accuracy=0.9", after_s=9)
    node.end()
    assert copied(node, tmp_path).trouble == ""
    assert text_of(tmp_path) == (
        b"first\n# tuner: gap: lines printed between 2026-11-21T09:40:00.000Z and "
        b"2026-11-21T09:40:05.000Z are "
        b"missing: they did not arrive within 0 s\nstep=4\naccuracy=0.9\n"
    )


def test_an_end_that_continues_what_was_read_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PATIENCE_S", 0.2)
    node = SlowNode()
    node.print(b"first")
    read_before_a_detach(node, tmp_path)
    node.stalls_in_order = True
    node.print(b"accuracy=0.9", after_s=9)
    node.end()
    assert copied(node, tmp_path).trouble == ""
    assert text_of(tmp_path) == b"first\naccuracy=0.9\n"


def test_while_the_cluster_does_not_answer_or_let_us_read_the_rest_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(logs, "_BACKOFF", Backoff(0.001, 0.02))
    refusal = (
        'pods "x" is forbidden: User "u" cannot get resource "pods/log" in API group "" in '
        'the namespace "team-a"'
    )

    async def play() -> None:
        node = Node(errors=[Unreachable("away")] * 20 + [ApiError(403, "Forbidden", refusal)] * 20)
        node.print(b"score=1")
        node.end()
        followed = follower(node, tmp_path)
        followed.ended()
        followed.begin()
        denied = False
        while not followed.done:
            followed.extend_time_limit()
            denied |= followed.denied is not None
            await asyncio.sleep(0.005)
        assert (denied, followed.denied, followed.trouble) == (True, None, "")

    asyncio.run(play())
    assert text_of(tmp_path) == b"score=1\n"


def test_the_log_of_another_pod_is_appended_to_the_first(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"of the first pod\n")
    (tmp_path / "log.position").write_text(
        '{"pod": "another", "container": "trial", "offset": 17, "newest": "2027", "second": 9, '
        '"floor": 0, '
        '"counts": {"9": 1}, "done": true}'
    )
    copied(Node(lines=[(START, 0, b"of the second")], over=True), tmp_path)
    assert text_of(tmp_path) == b"of the first pod\nof the second\n"


def test_a_final_read_that_ends_within_a_line_is_repeated(tmp_path: Path) -> None:
    class Cut(Node):
        async def stream(self, *asked: Any) -> AsyncIterator[bytes]:
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
        async def stream(self, *asked: Any) -> AsyncIterator[bytes]:
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


# Only so many logs are followed at a time


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_TURN_S", 0.01)


def begun(
    node: Node, streams: LogStreams, folder: Path, *, is_awaited: bool = False
) -> LogFollower:
    folder.mkdir()
    node.log_streams = streams
    copying = LogCopying(node, Sender("team-a", "uid"), is_awaited=lambda: is_awaited)
    follower = LogFollower(copying, PodContainer(POD, CONTAINER), folder, grown=lambda: None)
    follower.begin()
    return follower


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_log_beyond_the_limit_is_read_by_turns(is_awaited: bool, tmp_path: Path) -> None:
    async def scenario() -> None:
        first, second, streams = Node(), Node(), LogStreams(followed=1)
        followers = [
            begun(first, streams, tmp_path / "first", is_awaited=True),
            begun(second, streams, tmp_path / "second", is_awaited=is_awaited),
        ]
        for step in range(3):
            for node in (first, second):
                node.print(b"epoch=%d" % step, after_s=step)
            await eventually(lambda: text_of(tmp_path / "second") == second.printed())
        assert len(first.asked) == 1 < len(second.asked)
        for node, follower in zip((first, second), followers, strict=True):
            node.end()
            follower.ended()
        await eventually(lambda: all(follower.done for follower in followers))
        assert [text_of(tmp_path / "first"), text_of(tmp_path / "second")] == [
            first.printed(),
            second.printed(),
        ]

    run_scenario(scenario)


@pytest.mark.usefixtures("short_turns")
def test_an_awaited_log_takes_the_stream_of_one_that_nobody_waits_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        quiet, awaited, streams = Node(), Node(), LogStreams(followed=1)
        quiet.print(b"epoch=0")
        first = begun(quiet, streams, tmp_path / "quiet")
        await eventually(lambda: text_of(tmp_path / "quiet") == b"epoch=0\n")
        second = begun(awaited, streams, tmp_path / "awaited", is_awaited=True)
        await eventually(lambda: len(quiet.asked) > 2)
        assert len(awaited.asked) == 1
        quiet.print(b"epoch=1", after_s=1)
        awaited.print(b"epoch=0")
        await eventually(lambda: text_of(tmp_path / "quiet") == b"epoch=0\nepoch=1\n")
        await eventually(lambda: text_of(tmp_path / "awaited") == b"epoch=0\n")
        await first.close()
        await second.close()

    run_scenario(scenario)


@pytest.mark.usefixtures("short_turns")
def test_a_log_that_is_read_by_turns_is_followed_once_a_stream_is_free(tmp_path: Path) -> None:
    async def scenario() -> None:
        first, second, streams = Node(), Node(), LogStreams(followed=1)
        follower = begun(first, streams, tmp_path / "first")
        await eventually(lambda: len(first.asked) == 1)
        waiting = begun(second, streams, tmp_path / "second")
        await eventually(lambda: len(second.asked) > 1)
        await follower.close()
        second.print(b"epoch=0")
        await eventually(lambda: text_of(tmp_path / "second") == b"epoch=0\n")
        turns = len(second.asked)
        second.print(b"epoch=1", after_s=1)
        await eventually(lambda: text_of(tmp_path / "second").endswith(b"epoch=1\n"))
        assert len(second.asked) <= turns + 1
        await waiting.close()

    run_scenario(scenario)


@pytest.mark.usefixtures("short_turns")
def test_lines_that_were_rotated_away_between_two_turns_are_a_gap(tmp_path: Path) -> None:
    async def scenario() -> None:
        node, streams = Node(), LogStreams(followed=0)
        node.print(b"epoch=0")
        follower = begun(node, streams, tmp_path / "log")
        await eventually(lambda: text_of(tmp_path / "log") == b"epoch=0\n")
        node.lines = [(START + timedelta(seconds=9), 0, b"epoch=9")]
        await eventually(lambda: b"epoch=9" in text_of(tmp_path / "log"))
        await follower.close()

    run_scenario(scenario)
    assert (
        text_of(tmp_path / "log")
        .splitlines()[1]
        .startswith(GAP_LINE.encode() + b"lines printed between")
    )


def test_of_a_thousand_logs_that_are_read_by_turns_few_are_read_in_a_moment() -> None:
    async def main() -> int:
        loop, streams, read = asyncio.get_running_loop(), LogStreams(followed=0), list[int]()
        loop.time = lambda: 0.0  # type: ignore[method-assign]

        async def turn(number: int) -> None:
            async with streams.turn(Sender("team-a", "uid"), lambda: False):
                read.append(number)

        turns = [asyncio.create_task(turn(number)) for number in range(1000)]
        for _ in range(10):
            await asyncio.sleep(0)
        del loop.time
        for each in turns:
            each.cancel()
        await asyncio.gather(*turns, return_exceptions=True)
        return len(read)

    assert asyncio.run(main()) < READS_PER_S / 4
