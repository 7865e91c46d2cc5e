"""Container logs, copied into files of each attempt while it runs: every line once and in order,
after any failure.

A stream may end at any byte, for any reason; only the pod tells whether the log is complete.
`Position` records the copied lines, and the next stream continues behind them, also in another
controller. A line counts once it is complete. The beginning of a long line is written before its
end arrives, and is truncated if the line has to be fetched again. Only the current chunk is held in
memory: a slow disk slows the stream.

A log can only be requested from a whole second on (the API server cuts off fractions), and lines
may have equal timestamps or, from two streams, timestamps out of order. But each request returns
the same order. A position therefore counts the lines copied since a second, and a new stream drops
as many. If a line newer than all copied ones appears while lines are being dropped, the server no
longer has the older ones (rotation), and dropping ends there.

A node rotates a log away from its beginning. If a new stream begins with a copied line, nothing is
missing, however many others were rotated. If its first line is newer than all copied ones, whatever
was printed between the two was rotated before it was read: a gap, whose place in the copy has a
line of `_StreamReader`'s.

Nothing tells whether a log that was never read is whole. Its beginning may be missing if three
things hold: nobody read it for longer than a node takes to rotate it, its first line is as much
younger than its container, and no complete log of another trial shows that these trials print far
less than a node keeps.

A container that is restarted in place begins another log,
and the node keeps the one before, which is read first.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import re
import sys
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, Self, cast

from controller.background_tasks import cancelled
from controller.core.attempt import RuntimeLost
from controller.core.metric_lines import GAP_LINE, LAST_LINE
from controller.kube.errors import AccessDenied, ApiError, rule_for
from controller.kube.log_streams import LogStreams
from controller.kube.loop_turns import LoopTurns
from controller.kube.request_limit import Sender
from controller.runtime import log_file
from controller.runtime.kubernetes.small_file import write_in_place
from controller.runtime.log_limit import trim
from controller.runtime.protocol import LOG_LIMIT_BYTES
from suggest.backoff import Backoff


@dataclass(frozen=True, slots=True)
class CopiedLog:
    """What the copy of a container's log is called.

    Attributes:
        file: the copy, in the attempt's folder.
        position: the file beside it that records how much was copied.
        last_line: the line with which a complete log ends; empty if only the container's end tells.
    """

    file: str
    position: str
    last_line: bytes = b""


TRIAL_LOG = CopiedLog("log.txt", "log.position")
COLLECTED_LOG = CopiedLog("metrics.txt", "metrics.position", LAST_LINE.encode() + b"\n")

# two streams of a container, or a change of the clock, may put timestamps out of order by this much
_MARGIN_S = 3
_REMEMBERED_S = 10  # a node's clock may be set back


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container whose log is copied. The uid identifies the pod: operators reuse names of pods.

    started: when the container first started, by its node's clock, if that is known.
    restarts: how often it had been restarted in place when this was read.
    """

    pod: str
    container: str
    uid: str = ""
    started: datetime | None = field(default=None, compare=False)
    restarts: int = field(default=0, compare=False)


@dataclass(slots=True)
class Position:
    """How much of a container's log was copied.

    Attributes:
        offset: bytes of log.txt that are complete lines of this container.
        newest: the latest timestamp among them, in UTC.
        counts: copied lines by the second of their timestamp.
        floor: the first second for which `counts` is complete.
        done: the log was copied completely.
        has_gap: lines of the log are missing.
        uid: the pod's.
    """

    pod: str
    container: str
    offset: int = 0
    newest: str = ""
    second: int = 0
    floor: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    done: bool = False
    has_gap: bool = False
    uid: str = ""

    def copied(self, stamp: str, second: int) -> None:
        """Count one more copied line."""
        self.newest = max(self.newest, stamp)
        self.counts[second] = self.counts.get(second, 0) + 1
        if second != self.second:
            self.second = second
            for old in [older for older in self.counts if older < second - _REMEMBERED_S]:
                del self.counts[old]
                self.floor = max(self.floor, old + 1)

    def again(self) -> tuple[str, int]:
        """Return from when to request the log ("": all), and how many of its lines to drop."""
        if not self.counts:
            return "", 0
        since = max(self.second - _MARGIN_S, self.floor)
        count_known = sum(count for second, count in self.counts.items() if second >= since)
        return datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), count_known


def in_utc(second: str, fraction: str, zone: str) -> tuple[str, int]:
    """Return a timestamp that sorts as text, and its second since 1970. Raises ValueError."""
    prefix, number = _second(second, zone)
    return f"{prefix}.{fraction:0<9}", number


@lru_cache(maxsize=1024)
def _second(second: str, zone: str) -> tuple[str, int]:
    moment = datetime.fromisoformat(second + zone.replace("Z", "+00:00")).astimezone(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S"), int(moment.timestamp())


def read_position(directory: Path, of: PodContainer, log: CopiedLog) -> Position:
    """Return the recorded position, or a new one behind the lines of the attempt's earlier pods."""
    new = Position(of.pod, of.container, uid=of.uid)
    size = log_file.size(directory / log.file)
    try:
        content = json.loads((directory / log.position).read_bytes())
        content["counts"] = {int(second): int(count) for second, count in content["counts"].items()}
        noted = Position(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return new  # without a position the log is copied again from the start of the file
    if (noted.pod, noted.container, noted.uid) != (of.pod, of.container, of.uid):
        new.offset = size
        return new
    if noted.offset > size:
        return new  # the end of the file was lost in a crash of the machine
    return noted


def write_position(directory: Path, position: Position, log: CopiedLog) -> None:
    """Raises OSError."""
    write_in_place(directory / log.position, json.dumps(asdict(position)))


_log = logging.getLogger(__name__)

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)(?: |$)")
_LONGEST_STAMP = 40
_PIECE_BYTES = 64 << 10  # the longest incomplete line in memory
# how far the recorded position may lag, which a killed controller's successor reads again
_NOTE_S = 2.0
_NOTE_BYTES = 1 << 20
_PATIENCE_S = 10.0  # without a further byte of the rest of the log, after the container's end
_END_LINES = 200  # are read alone if the rest does not arrive
_ROTATED_AFTER_S = 10.0  # how often a node checks whether to rotate a log, by default
_SHORT_BYTES = 1 << 20  # far below the 10 MiB that a node keeps by default, also if lines are short
_LOOKED_AT = 64  # other logs
_IDLE_S = 1.0  # a stream without a byte for so long has sent everything that was printed
_BACKOFF = Backoff(first_s=0.1, longest_s=1.0)
# Between two turns of a log that is not followed: within it a node does not rotate a log twice.
_TURN_S = 5.0
_OFTEN_ENOUGH_S = 5.0  # between tries where a person must act first
GONE = "its pod was deleted before all of its log was read"
_ROTATED = "the node had rotated the log before they were read"
_ROTATED_END = "the end of its log may be missing: the node had rotated the log before it was read"


class LogSource(Protocol):
    """The part of `client.KubernetesClient` that a follower needs."""

    log_streams: LogStreams
    turns: LoopTurns

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
    ) -> AsyncIterator[bytes]: ...

    async def may_stream(self) -> None: ...

    async def answers(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class LogCopying:
    """What the copies of one experiment's logs have in common.

    Attributes:
        log: what a copy is called.
        grown: called when a log has grown.
        ended: called when a log is complete.
        now: the nodes' clock.
        is_awaited: whether somebody waits for lines now.
        limit_bytes: the cap of each copy on disk.
    """

    client: LogSource
    sender: Sender
    log: CopiedLog = TRIAL_LOG
    grown: Callable[[], None] = lambda: None
    ended: Callable[[], None] = lambda: None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    is_awaited: Callable[[], bool] = lambda: True
    limit_bytes: int = LOG_LIMIT_BYTES


class _Patience:
    """Ends its block with TimeoutError after so many seconds in which nothing arrived.

    Only time in which something could have arrived counts: neither that in which the event loop
    stood still, nor that in a queue of this process.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = self._left_s = seconds
        self._tick_s = seconds / 10
        self._queues = 0
        self._timeout = asyncio.timeout(None)
        self._ticking: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._tick_later()
        return self

    async def __aexit__(self, *error: Any) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        await self._timeout.__aexit__(*error)

    def renew(self) -> None:
        self._left_s = self._seconds

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self._queues += 1
        try:
            yield
        finally:
            self._queues -= 1

    def _tick_later(self) -> None:
        self._ticking = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        if not self._queues:
            self._left_s -= self._tick_s
        if self._left_s > self._tick_s / 2:
            self._tick_later()
        else:
            self._timeout.reschedule(asyncio.get_running_loop().time())


class _LineKind(Enum):
    """What happens to the line that is being read."""

    NEW = auto()
    KNOWN = auto()
    # no timestamp: the node's message about the log, or the end of an earlier line
    FOREIGN = auto()


class _DiskTrouble(Exception):
    pass


class _KnownLinesGone(Exception):
    """The stream begins behind all copied lines, after a rotation or a restart in place."""


class LogFollower:
    """Copies one container's log.

    Call `begin` on a running loop, and `ended` when the container has ended.

    grown: called when there is more, and at the end. trouble: why the end of the log is
    missing or late, for people; "" if it is not. denied: the error while reading is forbidden, or
    writing is impossible; the follower retries nevertheless.
    """

    def __init__(
        self, copying: LogCopying, of: PodContainer, directory: Path, *, grown: Callable[[], None]
    ) -> None:
        self._copying = copying
        self._of = of
        self._pod, self._container = of.pod, of.container
        self._directory = directory
        self._file = directory / copying.log.file
        self._limit_bytes = copying.limit_bytes  # of the copy on disk
        self._dropped_to = 0  # see `trim`
        self._grown = grown
        self._reading_since: datetime | None = None  # without an error since
        self._task: asyncio.Task[None] | None = None
        self._following: asyncio.Timeout | None = None
        self._resting: _Patience | None = None
        # how many bytes a request for the rest has brought at most
        self._furthest: tuple[str, int] = "", 0
        # when the open stream, if nothing is missing before it, sent a chunk
        self._joined_s: float | None = None
        self._followed = False  # the newest stream is, or was, not a turn
        # what was printed before was read to its end, by the newest stream
        self.idle_at: datetime | None = None
        self.was_live = False  # a stream was open at the container's end, and had sent everything
        self.marked_after: str | None = None  # the timestamp after which the newest gap is marked
        # the timestamp up to which it is known why lines are gone
        self.accounted_until: str | None = None
        # the timestamp of the last line before a restart, if all were copied
        self.restarted_after: str | None = None
        self.denied: Exception | None = None
        self._ended = False
        self._finished = False
        self._at = Position(of.pod, of.container, uid=of.uid)
        self._size = 0  # of log.txt; beyond the position while a long line is being read
        self._noted_size = 0
        self._noted: tuple[int, bool] | None = None  # the position on disk
        self._noting: asyncio.TimerHandle | None = None
        self._problem = ""
        self._bug = ""  # the last unforeseen error
        self._losses = ""

    @property
    def done(self) -> bool:
        """Whether the log is copied completely, or was given up."""
        return self._finished or (self._task is not None and self._task.done())

    @property
    def size(self) -> int:
        """Return the bytes of log.txt; an incomplete last line may be written again."""
        return self._size

    @property
    def trouble(self) -> str:
        return "; ".join(filter(None, (self._losses, self._problem)))

    def begin(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def ended(self) -> None:
        """Note that the container has ended: read the rest.

        It is given up after ten seconds in which no byte arrived that could have.
        """
        first, self._ended = not self._ended, True
        if first and self._following is not None:
            now_s = asyncio.get_running_loop().time()
            self.was_live = self._followed and self._is_idle(now_s)
            self._following.reschedule(now_s)

    def _is_idle(self, now_s: float) -> bool:
        """Whether this stream and those before it sent all that was printed until a moment ago."""
        if self._joined_s is None:
            return self.idle_at is not None
        return now_s - self._joined_s >= _IDLE_S

    def replaced(self) -> None:
        """Stop, because another pod has the name and its log is served now.

        Lines of the new pod that were copied before this was known appear twice: the reader of
        log.txt may have read them, so they cannot be truncated.
        """
        if self.done:
            return
        if self._task is not None:
            self._task.cancel()
        self._losses = self._losses or GONE
        self._finished = True
        self._note()

    def extend_time_limit(self) -> None:
        """Restart the time limit for the rest of the log.

        Either it arrives, or the cluster does not respond at present.
        """
        if self._resting is not None:
            self._resting.renew()

    async def close(self) -> None:
        await cancelled(self._task)
        self._note()

    async def _run(self) -> None:
        self._at = read_position(self._directory, self._of, self._copying.log)
        self._size = self._noted_size = self._at.offset
        if not self._at.done:
            is_gone = not self._ended and await self._follow()
            if not is_gone:
                await self._read_rest()
        self._finished = True
        self._note()
        self._grown()

    async def _follow(self) -> bool:
        """Copy until the container ends; True: nothing more will come, as when the pod is gone."""
        try:
            async with asyncio.timeout(None) as self._following:
                await self._follow_on()
        except TimeoutError:
            return False
        finally:
            self._following = None
        return True

    async def _follow_on(self) -> None:
        """Copy one stream after another until the pod is gone or the log is complete."""
        failures = 0
        while True:
            before = self._at.offset
            longest_s = _BACKOFF.longest_s
            follow = True
            try:
                async with self._copying.client.log_streams.turn(
                    self._copying.sender, self._copying.is_awaited
                ) as follow:
                    await self._copy(follow=follow)
                if self._at.done:
                    return
            except ApiError as error:
                if self._gone(error):
                    self._losses = self._losses or GONE
                    return
                self.denied = error if rule_for(error) else None
                # 400: the container waits, for which the pod status has the reason.
                self._problem = "" if error.status == 400 else f"its log cannot be read: {error}"
                longest_s = _OFTEN_ENOUGH_S if error.status in (403, 405) else longest_s
            except Exception as error:
                self._note_error(error)
                longest_s = longest_s if isinstance(error, RuntimeLost) else _OFTEN_ENOUGH_S
            failures = 0 if self._at.offset > before else failures
            pause_s = _BACKOFF.pause_s(failures, longest_s=longest_s) if follow else _TURN_S
            await asyncio.sleep(pause_s)
            failures += 1

    async def _read_rest(self) -> None:
        """Read the rest after the container's end. If it does not arrive, read at least the end.

        While the API server does not answer, the node still has the log.
        """
        while True:
            if await self._read_until_silent():
                return
            if not await self._copying.client.answers():
                continue
            cause = self._problem
            if await self._read_until_silent(last_lines=_END_LINES):
                return
            if await self._copying.client.answers():
                break
        problem = f": {cause}" if cause else ""
        self._losses = (
            f"the end of its log could not be read: nothing arrived for "
            f"{_PATIENCE_S:.0f} s{problem}"
        )
        self._problem = ""

    async def _read_until_silent(self, *, last_lines: int = 0) -> bool:
        """Return whether the log was read to its end, as far as it exists.

        last_lines: only so many of its lines.

        A read that ends normally is complete. A read that ends within a line, or before the known
        lines, was cut off by a node in trouble, unless the next one ends at the same place.
        """
        incomplete_tail = (0, b"")
        self._furthest = "", 0
        try:
            async with _Patience(_PATIENCE_S) as self._resting:
                for failures in itertools.count():
                    try:
                        reading = await self._copy(follow=False, last_lines=last_lines)
                        is_end = reading.incomplete_tail in ((0, b""), incomplete_tail)
                        if is_end and not reading.node_message:
                            reading.finish()
                            if reading.lacks_known_lines and await self._end_was_rotated():
                                self._losses = self._losses or _ROTATED_END
                            self._at.done = True
                            return True
                        incomplete_tail = reading.incomplete_tail
                    except ApiError as error:
                        if self._useless(error):
                            return True
                    except Exception as error:
                        self._note_error(error)
                        if isinstance(error, _DiskTrouble):
                            self.extend_time_limit()  # the node still has the log
                    await asyncio.sleep(_BACKOFF.pause_s(failures))
        except TimeoutError:
            return False
        finally:
            self._resting = None
        return False

    async def _end_was_rotated(self) -> bool:
        """Return whether the end may be missing from a log that has no line any more."""
        if self.was_live:
            return False
        if self.accounted_until != self._at.newest:
            await self._copy_previous()
        return self.restarted_after != self._at.newest

    def _note_error(self, error: Exception) -> None:
        """Show why the log cannot be copied now: a follower that ends would lose the rest of it.

        An unforeseen error is logged once, however often it recurs.
        """
        if isinstance(error, RuntimeLost | AccessDenied | _DiskTrouble):
            self.denied = None if isinstance(error, RuntimeLost) else error
            self._problem = str(error)
            return
        bug = f"{type(error).__name__}: {error}"
        if bug != self._bug:
            self._bug = bug
            _log.error(
                "pod=%s this is a bug; its log is asked for again", self._pod, exc_info=error
            )
        self.denied, self._problem = None, f"its log cannot be read ({bug}); this is a bug"

    def _useless(self, error: ApiError) -> bool:
        """Whether another request for the rest would get the same response."""
        self._problem = f"its log cannot be read: {error}"
        self.denied = error if rule_for(error) else None
        if self.denied is not None or error.is_of_server:
            return False
        if self._gone(error):
            self._losses, self._problem = self._losses or GONE, ""
        elif error.status == 400:
            if self._of.started is not None:
                return False  # its node does not know yet that it ran
            self._problem = ""
        return True

    def _gone(self, error: ApiError) -> bool:
        """Return whether the pod is gone; a node that does not know it yet also returns 404."""
        return error.status == 404 and f'"{self._pod}" not found' in error.message

    async def _copy(self, *, follow: bool, last_lines: int = 0) -> _StreamReader:
        """Copy one stream to its end.

        If its container was restarted, copy the rest of the log before that first.
        """
        never_read = not self._at.newest and self.accounted_until is None
        if self._of.restarts and never_read and not last_lines:
            await self._copy_previous()
        try:
            return await self._copy_stream(follow=follow, last_lines=last_lines)
        except _KnownLinesGone:
            await self._copy_previous()
            return await self._copy_stream(follow=follow, last_lines=last_lines)

    async def _copy_previous(self) -> None:
        try:
            await self._copy_stream(follow=False, previous=True)
            self.restarted_after = self._at.newest
        except _KnownLinesGone:
            pass
        except ApiError as error:
            # it was not restarted, or the node has removed that log
            if error.status not in (400, 404):
                raise
        self.accounted_until = self._at.newest

    async def _copy_stream(
        self, *, follow: bool, last_lines: int = 0, previous: bool = False
    ) -> _StreamReader:
        since, already_copied = ("", 0) if last_lines else self._at.again()
        reading = _StreamReader(self, already_copied, of_the_end=last_lines > 0)
        stream = self._copying.client.log(
            self._copying.sender.namespace,
            self._pod,
            container=self._container,
            since=since,
            last_lines=last_lines,
            previous=previous,
            follow=follow,
        )
        await self._queued(self._copying.client.may_stream())
        received, loop, asked_at = 0, asyncio.get_running_loop(), self._copying.now()
        self._reading_since = self._reading_since or asked_at
        self._followed = follow
        try:
            # The client returns a generator, which is closed at once.
            async with contextlib.aclosing(cast("AsyncGenerator[bytes]", stream)):
                async for chunk in stream:
                    # Also for a container that prints faster than we read, where no read waits.
                    await self._queued(self._copying.client.turns.next(self._copying.sender))
                    reading.feed(chunk)
                    self._problem, self.denied = "", None
                    received += len(chunk)
                    self._note_arrival(since, received)
                    if follow and reading.joined:
                        self._joined_s, self.idle_at = loop.time(), None
                    if self._at.done:
                        break
            if follow:
                self.idle_at = self._copying.now() if self._is_idle(loop.time()) else None
            else:
                self.idle_at = asked_at if reading.incomplete_tail == (0, b"") else None
        except Exception:
            self._reading_since = self.idle_at = None
            raise
        finally:
            self._joined_s = None
        self._problem, self.denied = reading.node_message, None
        return reading

    async def _queued(self, waiting: Awaitable[None]) -> None:
        """Wait in a queue of this process, which is no silence of the log."""
        with contextlib.nullcontext() if self._resting is None else self._resting.paused():
            await waiting

    def _note_arrival(self, since: str, received: int) -> None:
        """Extend the time limit unless an earlier request for these lines brought as many bytes."""
        before = self._furthest[1] if self._furthest[0] == since else 0
        if received > before:
            self._furthest = since, received
            self.extend_time_limit()

    # Called by the stream reader

    def add(self, text: bytes, *, whole: int, stamps: Sequence[tuple[str, int]] = ()) -> None:
        """Append text, whose first `whole` bytes are complete lines. Raises _DiskTrouble."""
        if not text:
            return
        try:
            if self._size == self._at.offset:
                self._cut()
            with self._file.open("ab", buffering=0) as file:
                count = 0
                while count < len(text):
                    count += file.write(memoryview(text)[count:])
        except OSError as error:
            raise self._disk(error) from error
        if whole:
            last = self._copying.log.last_line
            self._at.offset = self._size + whole
            self._at.done = bool(last) and text[:whole].endswith(last)
        for stamp, second in stamps:
            self._at.copied(stamp, second)
        self._size += len(text)
        if self._size > self._limit_bytes:
            self._cap()
        if self._size - self._noted_size >= _NOTE_BYTES:
            self._note()
        elif self._noting is None:
            self._noting = asyncio.get_running_loop().call_later(_NOTE_S, self._note)
        self._grown()

    def _cap(self) -> None:
        try:
            self._dropped_to = trim(str(self._file), self._limit_bytes, self._dropped_to)
        except OSError as error:
            _log.warning("%s: spec.trial.logLimit cannot be kept: %s", self._file, error)
            self._limit_bytes = sys.maxsize

    def unread_s(self, first: int) -> float:
        """Return how long the log's beginning was unread, if it may have been rotated then; else 0.

        first: the second of the log's first line.
        """
        started = self._of.started
        if started is None or self._reading_since is None:
            return 0.0
        unread_s = min(self._reading_since.timestamp(), first) - started.timestamp()
        if unread_s < _ROTATED_AFTER_S or _others_are_short(self._directory, self._copying.log):
            return 0.0
        return unread_s

    @property
    def restarts(self) -> int:
        """Return how often the container had been restarted before this began to follow it."""
        return self._of.restarts

    def begin_again(self) -> None:
        """Write again what follows the last complete line."""
        self._size = self._at.offset

    def _cut(self) -> None:
        """Truncate an incomplete line once its replacement has arrived.

        The log of a deleted pod is kept unchanged.
        """
        if self._file.exists():
            if self._file.stat().st_size > self._size:
                os.truncate(self._file, self._size)
        else:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._size = self._at.offset = 0

    def _note(self) -> None:
        """Record the position on disk."""
        if self._noting is not None:
            self._noting.cancel()
            self._noting = None
        is_noted = self._noted == (self._at.offset, self._at.done)
        if self._task is None or is_noted or not self._directory.exists():
            return
        try:
            write_position(self._directory, self._at, self._copying.log)
        except OSError as error:
            self._problem = str(self._disk(error))
        else:
            self._noted = self._at.offset, self._at.done
        self._noted_size = self._size

    def _disk(self, error: OSError) -> _DiskTrouble:
        return _DiskTrouble(
            f"cannot write {self._file}: {error.strerror or error}; it continues when that is fixed"
        )


class _StreamReader:
    """Splits one stream: timestamps from text, and known lines from new ones."""

    def __init__(self, owner: LogFollower, already_copied: int, *, of_the_end: bool) -> None:
        self._owner = owner
        self._at = owner._at
        self._known = already_copied  # number of lines still to drop
        self._newest_before = owner._at.newest
        # The stream has only the last lines, and those up to `newest` are known.
        self._of_the_end = of_the_end
        self.joined = False  # the stream's first line was seen
        self._gap = b""  # the line that marks a gap before the stream's first line
        # The beginning of an incomplete line was taken already.
        self._inside: _LineKind | None = None
        self._stamp: tuple[str, int] = ("", 0)
        self._rest = b""
        self._words = b""
        owner.begin_again()

    @property
    def node_message(self) -> str:
        """Return the message that the node sent instead of the log."""
        is_unended = self._inside is None and not self._rest[:1].isdigit()
        unended = self._rest if is_unended else b""
        return (self._words or unended).decode(errors="replace").strip()[:500]

    @property
    def lacks_known_lines(self) -> bool:
        """Return whether the stream had no line at all, though lines were copied before."""
        return self._known > 0 and not self.joined

    def feed(self, chunk: bytes) -> None:
        """Raises _DiskTrouble, and _KnownLinesGone before anything of the stream is written."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        new: list[bytes] = []
        stamps: list[tuple[str, int]] = []
        for line in lines:
            kind, text = (self._inside, line) if self._inside is not None else self._judge(line)
            self._inside = None
            match kind:
                case _LineKind.NEW:
                    new += text, b"\n"
                    stamps.append(self._stamp)
                case _LineKind.KNOWN:
                    self._known -= 1
                case _LineKind.FOREIGN:
                    self._words = text
        whole = b"".join(new)
        # A progress bar draws many times before it ends its line.
        piece = self._piece() if len(self._rest) > _PIECE_BYTES or b"\r" in self._rest else b""
        self._add(whole, piece, stamps)

    @property
    def incomplete_tail(self) -> tuple[int, bytes]:
        """Return what is missing at the end: known lines, and the newline of the last line."""
        return self._known, self._rest or (b"..." if self._inside is not None else b"")

    def finish(self) -> None:
        """Write the last line, which has no newline because the log has ended."""
        self._add(b"", self._piece(), ())

    def _add(self, whole: bytes, piece: bytes, stamps: Sequence[tuple[str, int]]) -> None:
        """Append whole lines and the beginning of another.

        Whatever comes first is behind the gap.
        """
        whole = self._gap + whole
        self._owner.add(whole + piece, whole=len(whole), stamps=stamps)
        if self._gap:
            self._owner.marked_after, self._gap = self._newest_before, b""
            self._at.has_gap = True

    def _piece(self) -> bytes:
        """Return the new part of the incomplete line so far."""
        text = self._rest
        if self._inside is None:
            if len(text) <= _LONGEST_STAMP and not _STAMP.match(text):
                return b""
            self._inside, text = self._judge(text)
        self._rest = b""
        if self._inside is _LineKind.FOREIGN:
            self._words = text[:_PIECE_BYTES]
        return text if self._inside is _LineKind.NEW else b""

    def _judge(self, line: bytes) -> tuple[_LineKind, bytes]:
        match = _STAMP.match(line, 0, _LONGEST_STAMP)
        if match is None:
            return _LineKind.FOREIGN, line
        second, fraction, zone = match.groups(b"")
        try:
            self._stamp = in_utc(second.decode(), fraction.decode(), zone.decode())
        except ValueError:
            return _LineKind.FOREIGN, line
        self._words = b""  # the text before was the end of a line that began before the stream
        stamp = self._stamp[0]
        is_newer = stamp > self._newest_before
        if not self.joined and is_newer:
            self._note_gap(stamp)
        self.joined = True
        if self._of_the_end:
            return (_LineKind.NEW if is_newer else _LineKind.KNOWN), line[match.end() :]
        if is_newer:
            self._known = 0
        return (_LineKind.KNOWN if self._known else _LineKind.NEW), line[match.end() :]

    def _note_gap(self, stamp: str) -> None:
        """Note what is missing before the stream's first line, newer than all copied ones."""
        if self._of_the_end:
            cause = f"they did not arrive within {_PATIENCE_S:.0f} s"
        elif self._known and not self._is_explained():
            if self._owner.accounted_until != self._newest_before:
                raise _KnownLinesGone
            cause = _ROTATED
        elif not self._newest_before and (unread_s := self._owner.unread_s(self._stamp[1])):
            cause = (
                f"nobody read the log in the container's first {unread_s:.0f} s, and a node "
                f"keeps only its end"
            )
        elif not self._newest_before and self._owner.restarts > 1:
            cause = (
                f"its container was restarted {self._owner.restarts} times before its log was "
                f"read, and a node keeps the log before the last restart only"
            )
        else:
            return
        if self._owner.marked_after == self._newest_before:
            return
        lines = f"lines printed before {_time_text(stamp)}"
        if self._newest_before:
            since = _time_text(self._newest_before)
            lines = f"lines printed between {since} and {_time_text(stamp)}"
        verb = "are" if self._newest_before or self._of_the_end else "may be"
        self._gap = f"{GAP_LINE}{lines} {verb} missing: {cause}\n".encode()

    def _is_explained(self) -> bool:
        """Return whether the copied lines are gone, but none between them and the stream's first.

        They were read to the end before a restart, or until nothing was printed and the node
        rotated them: what the present stream begins with was printed later.
        """
        owner, idle_at = self._owner, self._owner.idle_at
        was_idle = idle_at is not None and self._stamp[1] >= int(idle_at.timestamp())
        return owner.was_live or was_idle or owner.restarted_after == self._newest_before


def _others_are_short(directory: Path, log: CopiedLog) -> bool:
    """Whether there are complete logs of other attempts, all short. directory: an attempt's."""
    sizes: list[int] = []
    for path in itertools.islice(directory.parent.parent.glob(f"*/*/{log.position}"), _LOOKED_AT):
        with contextlib.suppress(OSError, ValueError):
            noted = json.loads(path.read_bytes())
            if path.parent != directory and noted.get("done") and not noted.get("has_gap"):
                sizes.append(log_file.size(path.with_name(log.file)))
    return bool(sizes) and max(sizes) < _SHORT_BYTES


def _time_text(stamp: str) -> str:
    return f"{stamp[:23]}Z"


SOON_S = 5.0


class AttemptLog:
    """The copy of one attempt's log: its container's follower, then the next one for another pod.

    While nobody waits for lines, a log is first requested once its container has run for SOON_S;
    the log of a shorter one is read once, after the end. A node checks every ten seconds by default
    whether to rotate a log.
    """

    def __init__(self, copying: LogCopying, directory: Path) -> None:
        self._copying = copying
        self._directory = directory
        self._source: PodContainer | None = None  # the container whose log is followed
        self._follower: LogFollower | None = None
        # the first container, and when it was first seen
        self._found: tuple[float, PodContainer] | None = None
        self._size: int | None = None  # of the copy, while nothing is followed

    @property
    def is_followed(self) -> bool:
        """Whether a log of the attempt is followed or was read."""
        return self._follower is not None

    def follow(self, source: PodContainer | None, *, at_once: bool) -> None:
        """Follow the log of this container, if it is time to.

        source: the container whose log is the attempt's now; None: none has started. The log of an
        earlier pod of the attempt is completed first.
        """
        if source is None or source == self._source:
            return
        if self._follower is None:
            source = self._first(source, at_once=at_once)
            if source is None:
                return
        else:
            if self._source is not None and self._source.pod == source.pod:
                self._follower.replaced()
            if not self._follower.done:
                self._follower.ended()
                return
        self._source = source
        self._follower = LogFollower(self._copying, source, self._directory, grown=self._notify)
        self._follower.begin()

    def _first(self, source: PodContainer, *, at_once: bool) -> PodContainer | None:
        """Return the container whose log is copied first; None: it is too early."""
        if self._found is None:
            self._found = time.monotonic(), source
        since_s, first = self._found
        if first == source:
            self._found = since_s, source  # with its restarts until now
        if not at_once and first == source and time.monotonic() - since_s < SOON_S:
            return None
        # Another pod may have replaced it since. With equal names only the new pod's log is served.
        return source if first.pod == source.pod else first

    def follow_now(self) -> None:
        """Follow the log from now on, if its container has started: a reader waits for lines."""
        if self._follower is None and self._found is not None:
            self.follow(self._found[1], at_once=True)

    def ended(self) -> None:
        """Note that the container has ended."""
        if self._follower is not None:
            self._follower.ended()

    def is_of(self, source: PodContainer | None) -> bool:
        """Whether the log of this container is followed."""
        return self._follower is not None and self._source == source

    def is_whole(self, source: PodContainer | None) -> bool:
        """Whether the log is copied completely or was given up; source: as for `follow`."""
        if self._follower is None:
            return source is None
        return self._follower.done and source in (None, self._source)

    @property
    def trouble(self) -> str:
        """Return what of the log is lost, for people; "" if nothing."""
        return "" if self._follower is None else self._follower.trouble

    @property
    def denied(self) -> Exception | None:
        """Return the error while the log cannot be copied: it would be lost with its pod."""
        return None if self._follower is None else self._follower.denied

    async def read(self, offset: int, limit: int) -> bytes:
        """Return what the copy has from this byte on."""
        file = self._directory / self._copying.log.file
        if self._follower is not None:
            size = self._follower.size
        else:
            self._size = size = log_file.size(file) if self._size is None else self._size
        return b"" if size == offset else await log_file.read(file, offset, limit)

    def extend_time_limit(self) -> None:
        """Do not give the log up while the cluster does not respond."""
        if self._follower is not None:
            self._follower.extend_time_limit()

    async def close(self) -> None:
        if self._follower is not None:
            await self._follower.close()

    def _notify(self) -> None:
        if self._follower is not None and self._follower.done:
            self._copying.ended()
        else:
            self._copying.grown()
