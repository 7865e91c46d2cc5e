"""Which part of a log `--tail` selects."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.app.attempt_logs import LogPart
from controller.app.local_log import PORTION, LocalLog
from suggest.errors import InvalidArgument


def a_log(folder: Path, content: bytes) -> Path:
    path = folder / "log.txt"
    path.write_bytes(content)
    return path


def tail_of(log: Path, lines: int) -> bytes:
    with log.open("rb") as file:
        file.seek(LocalLog(log).begins_at(lines))
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
    assert tail_of(a_log(tmp_path, content), lines) == expected


@pytest.mark.parametrize(
    ("trial", "tail", "attempt"),
    [(1, -3, None), (None, None, 2)],
)
def test_an_invalid_part_is_a_usage_error(
    trial: int | None, tail: int | None, attempt: int | None
) -> None:
    with pytest.raises(InvalidArgument):
        LogPart.parse("x", trial, tail=tail, attempt=attempt)
