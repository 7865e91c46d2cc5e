"""Records of attempts' objects survive the controller; only the latest removed keys stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from controller.core.attempt import ObjectRecord
from controller.runtime.kubernetes import records as module
from controller.runtime.kubernetes.records import Records
from controller.runtime.kubernetes.small_file import write_in_place
from suggest.errors import Unavailable
from tests.kube.experiment import KeptRecords

KEY = 3, 1


def test_a_record_is_found_by_the_next_controller() -> None:
    kept = KeptRecords()
    Records(kept).created(KEY, "u1")
    Records(kept).timed_out(KEY, "u1")
    assert Records(kept).of(KEY) == ObjectRecord("u1", timed_out=True)


def test_a_forgotten_attempt_may_be_created_again() -> None:
    kept = KeptRecords()
    records = Records(kept)
    records.created(KEY, "u1")
    records.forget(KEY)
    records.forget(KEY)
    assert (records.of(KEY), Records(kept).of(KEY)) == (None, None)


def test_a_stop_is_not_written_because_its_cause_is() -> None:
    kept = KeptRecords()
    records = Records(kept)
    records.created(KEY, "u1")
    records.stopped(KEY, "u1")
    assert records.of(KEY) == ObjectRecord("u1", stopped=True)
    assert kept.rows == {KEY: ObjectRecord("u1")}


def test_a_partly_written_file_means_that_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", lambda _file, data: len(data) - 1)
    with pytest.raises(OSError, match="No space left on device"):
        write_in_place(tmp_path / "x", "text")


def test_a_shorter_text_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    write_in_place(tmp_path / "x", "long text")
    write_in_place(tmp_path / "x", "text")
    assert (tmp_path / "x").read_text().rstrip() == "text"


def test_the_latest_removed_attempts_and_those_still_there_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_REMOVED_IN_MEMORY", 3)
    records = Records(KeptRecords())
    for trial in range(10):
        records.created((trial, 1), "u1")
    for trial in range(8):
        records.remove((trial, 1))
    records.forget_removed(but={(0, 1)})
    assert [trial for trial in range(10) if records.is_removed((trial, 1))] == [0, 6, 7]
    assert (records.of((0, 1)), records.of((9, 1))) == (None, ObjectRecord("u1"))


@pytest.mark.parametrize("how", ["created", "timed_out", "forget"])
def test_what_could_not_be_written_does_not_count(how: str) -> None:
    kept = KeptRecords()
    records = Records(kept)
    records.created(KEY, "u1")
    kept.trouble = "the disk is full"
    with pytest.raises(Unavailable, match="the disk is full"):
        records.forget(KEY) if how == "forget" else getattr(records, how)(KEY, "u2")
    assert records.of(KEY) == Records(kept).of(KEY) == ObjectRecord("u1")
