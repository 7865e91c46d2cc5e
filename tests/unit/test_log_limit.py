"""The cap of a log on disk: the beginning and the end stay, the middle is freed, and no cut line
can be read as one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controller.core.metric_lines import GAP_LINE
from controller.core.metrics import LogReader
from controller.core.model import ExperimentObjective, MetricsRule
from controller.runtime.log_limit import GAP, kept_part, trim
from suggest.study import Direction, ValueRule

LIMIT = 1 << 20
ROOM = LIMIT // 8 + 3 * 4096


def write(path: Path, lines: range) -> None:
    with path.open("ab") as file:
        file.writelines(b"step=%d accuracy=0.%07d\n" % (line, line) for line in lines)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


def kept(path: Path) -> bytes:
    """Return what was not dropped."""
    parts, at = [], 0
    with path.open("rb") as file:
        while True:
            begin, end = kept_part(file.fileno(), at)
            if begin == end:
                return b"".join(parts)
            parts.append(os.pread(file.fileno(), end - begin, begin))
            at = end


def test_a_long_log_keeps_its_beginning_and_its_end_and_its_size(log: Path) -> None:
    dropped_to = 0
    for begin in range(0, 400_000, 50_000):
        write(log, range(begin, begin + 50_000))
        dropped_to = trim(str(log), LIMIT, dropped_to)
        assert log.stat().st_blocks * 512 <= LIMIT + ROOM
    lines = kept(log).split(b"\n")
    gap = lines.index(next(line for line in lines if line.startswith(GAP)))
    assert log.stat().st_size > 8 * LIMIT
    assert lines[:gap] == [b"step=%d accuracy=0.%07d" % (line, line) for line in range(gap)]
    assert lines[-2] == b"step=399999 accuracy=0.0399999"
    assert sum(line.startswith(GAP) for line in lines) == 1
    assert b"\0" not in kept(log)


def test_no_part_of_a_line_that_was_cut_is_read_as_a_metric(log: Path) -> None:
    dropped_to = 0
    for begin in range(0, 200_000, 50_000):
        write(log, range(begin, begin + 50_000))
        dropped_to = trim(str(log), LIMIT, dropped_to)
    reader = LogReader(MetricsRule(), ExperimentObjective("accuracy", Direction.MAXIMIZE))
    data = log.read_bytes()
    readings = [
        reading
        for at in range(0, len(data), 1 << 20)
        for reading in reader.feed(data[at : at + (1 << 20)])
    ]
    readings += reader.finish()
    assert [
        reading for reading in readings if reading.value != float(f"0.{reading.step:07d}")
    ] == []
    assert (readings[0].step, readings[-1].step) == (0, 199_999)


def test_a_short_log_stays_as_it_is(log: Path) -> None:
    write(log, range(100))
    before = log.read_bytes()
    assert trim(str(log), LIMIT, 0) == 0
    assert log.read_bytes() == before


@pytest.mark.parametrize("called_a_hole", [os.SEEK_DATA, os.SEEK_HOLE])
def test_no_line_is_missing_where_a_file_system_calls_data_a_hole(
    log: Path, called_a_hole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log, range(1000))
    seek, size = os.lseek, log.stat().st_size

    def wrong(file: int, offset: int, whence: int) -> int:
        if whence == called_a_hole:
            return size if whence == os.SEEK_DATA else offset
        return seek(file, offset, whence)

    monkeypatch.setattr(os, "lseek", wrong)
    assert kept(log) == log.read_bytes()


def test_a_log_without_line_ends_is_capped(log: Path) -> None:
    log.write_bytes(b"x" * (4 * LIMIT))
    trim(str(log), LIMIT, 0)
    assert log.stat().st_blocks * 512 <= LIMIT + ROOM
    assert kept(log).count(GAP) == 1


def test_a_controller_that_reads_a_trimmed_log_later_knows_of_the_gap(log: Path) -> None:
    write(log, range(100_000))
    trim(str(log), LIMIT, 0)
    reader = LogReader(
        MetricsRule(), ExperimentObjective("accuracy", Direction.MAXIMIZE, ValueRule.BEST)
    )
    reader.feed(log.read_bytes())
    assert reader.gap == GAP.decode().removeprefix(GAP_LINE)
    assert reader.may_lack("accuracy")
