"""Records of an attempt's objects survive the controller; only the latest ones are cached."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from controller.core.attempt import RuntimeLost
from controller.runtime.kubernetes import records as module
from controller.runtime.kubernetes.records import Record, Records, write_in_place


def test_a_record_is_found_by_the_next_controller(tmp_path: Path) -> None:
    records = Records()
    assert records.of(tmp_path) is None
    records.note(tmp_path, uid="u1")
    records.note(tmp_path, stopped=True)
    assert records.of(tmp_path) == Records().of(tmp_path) == Record("u1", stopped=True)


def test_a_forgotten_attempt_may_be_created_again(tmp_path: Path) -> None:
    records = Records()
    records.note(tmp_path, uid="u1")
    records.forget(tmp_path)
    records.forget(tmp_path)
    assert (records.of(tmp_path), Records().of(tmp_path)) == (None, None)


def test_an_unreadable_record_counts_as_an_existing_object(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{")
    assert Records().of(tmp_path) == Record("unreadable")


def test_a_kill_before_the_first_byte_leaves_no_record(tmp_path: Path) -> None:
    (tmp_path / "job.json").touch()
    records = Records()
    assert records.of(tmp_path) is None
    records.note(tmp_path, uid="u1")
    assert Records().of(tmp_path) == Record("u1")


def test_a_shorter_text_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    records = Records()
    records.note(tmp_path, uid="u" * 100)
    records.note(tmp_path, uid="u1")
    assert Records().of(tmp_path) == Record("u1")
    assert [file.name for file in tmp_path.iterdir()] == ["job.json"]


def test_a_partly_written_record_means_that_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", lambda _file, data: len(data) - 1)
    with pytest.raises(OSError, match="No space left on device"):
        write_in_place(tmp_path / "x", "text")


def test_the_latest_removed_attempts_are_cached_and_the_others_remain_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REMOVED_IN_MEMORY", 3)
    records, folders = Records(), [tmp_path / str(number) for number in range(10)]
    for folder in folders:
        records.note(folder, uid=folder.name)
    assert len(records._known) == 10  # none was removed
    for folder in folders[:8]:
        records.note(folder, removed=True)
    assert [Path(key).name for key in records._known] == ["5", "6", "7", "8", "9"]
    assert records.of(folders[0]) == Record("0", removed=True)
    assert [Path(key).name for key in records._known] == ["6", "7", "8", "9", "0"]


@pytest.mark.parametrize("how", ["note", "forget"])
def test_a_full_disk_is_reported_and_unwritten_records_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    records = Records()
    records.note(tmp_path, uid="u1")

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", refuse)
        disk.setattr(Path, "unlink", lambda *_, **__: refuse())
        with pytest.raises(
            RuntimeLost, match=r"job\.json: Read-only file system; free some space to continue"
        ):
            records.note(tmp_path, removed=True) if how == "note" else records.forget(tmp_path)
    assert records.of(tmp_path) == Records().of(tmp_path) == Record("u1")
