"""Which files that git does not track are recorded, and how they come back."""

from __future__ import annotations

import asyncio
import io
import subprocess
import zipfile
from pathlib import Path

import pytest

from controller.app import untracked
from controller.app.untracked import Untracked, are_unchanged, restore, untracked_files


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", tmp_path / "checkout"], check=True)
    return tmp_path / "checkout"


def found_in(checkout: Path, folder: str = ".") -> Untracked:
    return asyncio.run(untracked_files(checkout / folder, apart=checkout / "state"))


def names(found: Untracked) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(found.archive)) as files:
        return files.namelist()


def test_the_smallest_files_are_recorded_up_to_the_limits(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untracked, "FILE_BYTES", 8)
    monkeypatch.setattr(untracked, "TOTAL_BYTES", 12)
    for name, size in (("a", 9), ("b", 8), ("c", 7), ("d", 1)):
        (checkout / name).write_bytes(bytes(size))
    (checkout / "link").symlink_to("d")
    found = found_in(checkout)
    assert (names(found), found.left_out) == (["d", "c"], ("a", "b", "link"))
    assert found.record == {"count": 2, "leftOut": {"count": 3, "first": ["a", "b", "link"]}}


def test_a_folder_of_data_does_not_displace_new_code(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "data").mkdir()
    for number in range(5):
        (checkout / "data" / str(number)).write_bytes(bytes(2))
    (checkout / "new.py").write_bytes(bytes(8))
    monkeypatch.setattr(untracked, "TOTAL_BYTES", 10)
    assert names(found_in(checkout)) == ["new.py", "data/0"]
    monkeypatch.setattr(untracked, "MOST_FILES", 1)
    assert names(found_in(checkout)) == ["new.py"]


def test_files_of_the_whole_checkout_count_and_not_those_of_the_state_directory(
    checkout: Path,
) -> None:
    for name in ("sub/one", "two", "state/three", "line\nbreak"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).touch()
    assert names(found_in(checkout, "sub")) == ["sub/one", "two"]
    assert found_in(checkout, "sub").left_out == ("line\\nbreak",)
    assert found_in(checkout).archive == found_in(checkout, "sub").archive


def test_a_file_that_cannot_be_read_hides_no_other(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("new.py", "other"):
        (checkout / name).write_text("code")
    read = Path.read_bytes

    def read_as_another_user(path: Path) -> bytes:
        if path.name == "other":
            raise PermissionError
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_as_another_user)
    found = found_in(checkout)
    assert (names(found), found.left_out) == (["new.py"], ("other",))


def test_nothing_is_recorded_outside_of_a_checkout(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert asyncio.run(untracked_files(tmp_path, apart=tmp_path / "state")) == Untracked()


def test_files_come_back_with_their_modes_and_never_outside(checkout: Path, tmp_path: Path) -> None:
    (checkout / "run.sh").write_text("exit 0\n")
    (checkout / "run.sh").chmod(0o750)
    archive = found_in(checkout).archive
    restore(archive, tmp_path / "new")
    assert (tmp_path / "new" / "run.sh").stat().st_mode & 0o777 == 0o750
    assert are_unchanged(archive, tmp_path / "new")
    (tmp_path / "new" / "run.sh").write_text("exit 1\n")
    assert not are_unchanged(archive, tmp_path / "new")

    bad = io.BytesIO()
    with zipfile.ZipFile(bad, "w") as files:
        files.writestr("../../outside", "x")
    restore(bad.getvalue(), tmp_path / "deep" / "new")
    assert not (tmp_path / "outside").exists()
