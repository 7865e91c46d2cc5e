"""Which part of a log `--tail` and `--since` select, and how the times of its parts are known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controller.app.attempt_logs import LogPart, parse_moment
from controller.app.local_log import PORTION, LocalLog
from controller.core.model import Attempt, AttemptState
from controller.runtime.log_file import LogTimes, size_at
from suggest.errors import InvalidArgument

START = datetime(2026, 1, 31, 9, tzinfo=UTC)


class Clock:
    now = START.timestamp()

    def __call__(self) -> float:
        return self.now


def a_log(folder: Path, content: bytes) -> Path:
    path = folder / "log.txt"
    path.write_bytes(content)
    return path


def part_of(log: Path, part: LogPart, attempt: Attempt | None = None) -> bytes:
    with log.open("rb") as file:
        local = LocalLog(log, attempt or Attempt(0, 1, start_time=START))
        file.seek(local.begins_at(tail=part.tail, since=part.since))
        return file.read()


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\n\n", 1, b"\n"),
        (b"a\nb\n", 9, b"a\nb\n"),
        (b"a\nb\n", 0, b""),
        (b"", 3, b""),
        (b"x" * (2 * PORTION) + b"\ny\n", 1, b"y\n"),
        (b"x\n" + b"y" * (2 * PORTION) + b"\n", 1, b"y" * (2 * PORTION) + b"\n"),
    ],
)
def test_the_tail_has_the_requested_number_of_lines(
    tmp_path: Path, content: bytes, lines: int, expected: bytes
) -> None:
    assert part_of(a_log(tmp_path, content), LogPart(tail=lines)) == expected


def test_nothing_that_was_written_since_is_left_out(tmp_path: Path) -> None:
    clock = Clock()
    times = LogTimes(clock)
    log = a_log(tmp_path, b"")
    for second in range(61):  # a line a second, read at once
        clock.now = (START + timedelta(seconds=second)).timestamp()
        with log.open("ab") as file:
            file.write(b"%d\n" % second)
        times.note("t", log, log.stat().st_size)
    for second in (0, 5, 29, 30, 31, 59):
        since = START + timedelta(seconds=second)
        shown = [int(line) for line in part_of(log, LogPart(since=since)).split()]
        assert set(shown) >= set(range(second + 1, 61))
        assert len(shown) <= 61 - second + 10
    assert part_of(log, LogPart(since=START + timedelta(seconds=40), tail=2)) == b"59\n60\n"
    ended = Attempt(
        0, 1, AttemptState.SUCCEEDED, start_time=START, end_time=START + timedelta(seconds=61)
    )
    assert part_of(log, LogPart(since=START + timedelta(seconds=62)), ended) == b""
    assert part_of(log, LogPart(since=START - timedelta(seconds=1)), ended).startswith(b"0\n")


def test_a_controller_that_reads_again_does_not_make_old_lines_new(tmp_path: Path) -> None:
    clock = Clock()
    log = a_log(tmp_path, b"a\n" * 100)
    for times in (LogTimes(clock), LogTimes(clock)):
        for size in (50, 100):
            times.note("t", log, size)
            clock.now += 11
    assert (tmp_path / "log.times").read_text() == f"{START.timestamp() + 11:.0f} 100\n"
    assert size_at(log, clock.now) == 100


def test_a_part_begins_with_a_whole_line(tmp_path: Path) -> None:
    log = a_log(tmp_path, b"first\nsecond\n")
    (tmp_path / "log.times").write_text(f"{START.timestamp():.0f} 9\n")
    assert part_of(log, LogPart(since=START + timedelta(seconds=5))) == b"second\n"


def test_a_short_log_has_no_times(tmp_path: Path) -> None:
    log = a_log(tmp_path, b"a\n")
    LogTimes(Clock()).note("t", log, 2)
    assert not (tmp_path / "log.times").exists()
    assert part_of(log, LogPart(since=START + timedelta(seconds=5))) == b"a\n"


def test_since_is_a_duration_or_a_time_with_its_zone() -> None:
    assert parse_moment("2026-01-31T10:00:00+01:00") == START
    assert parse_moment("2026-01-31T09:00:00Z") == START
    assert parse_moment("1h30m") < datetime.now(UTC)
    for text in ("yesterday", "2026-01-31T09:00:00", "10", ""):
        with pytest.raises(
            InvalidArgument, match=r"--since: .* is neither a duration nor a time; write 90s, 10m"
        ):
            parse_moment(text)


@pytest.mark.parametrize(
    ("trial", "tail", "since", "attempt"),
    [(1, -3, None, None), (None, None, None, 2), (None, None, "x", None)],
)
def test_an_invalid_part_is_a_usage_error(
    trial: int | None, tail: int | None, since: str | None, attempt: int | None
) -> None:
    with pytest.raises(InvalidArgument):
        LogPart.parse("x", trial, tail=tail, since=since, attempt=attempt)
