"""The folders of pbt's trials for Katib: copies that are whole or not there,
and names that stay in their folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from suggest.errors import FailedPrecondition, InvalidArgument, Unavailable
from suggest.katib.population import Checkpoints, trial_name


def test_a_trial_begins_with_a_copy_of_its_parents_folder(tmp_path: Path) -> None:
    folder = tmp_path / "search"
    Checkpoints(tmp_path).prepare("search", "search-a", "")
    (folder / "search-a" / "weights").write_text("a")
    Checkpoints(tmp_path).prepare("search", "search-b", "search-a")
    (folder / "search-b" / "weights").write_text("b")
    Checkpoints(tmp_path).prepare("search", "search-b", "search-a")  # a repeated request
    assert (folder / "search-b" / "weights").read_text() == "b"
    assert (folder / "search-a" / "weights").read_text() == "a"
    assert sorted(path.name for path in folder.iterdir()) == ["search-a", "search-b"]


def test_a_copy_that_a_kill_cut_off_is_made_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.prepare("search", "search-a", "")
    (tmp_path / "search" / "search-a" / "weights").write_text("whole")
    partial = tmp_path / "search" / ".search-b.partial"
    partial.mkdir()
    (partial / "weights").write_text("wh")
    checkpoints.prepare("search", "search-b", "search-a")
    assert (tmp_path / "search" / "search-b" / "weights").read_text() == "whole"
    assert not partial.exists()


def test_a_parent_whose_folder_is_gone_leaves_an_empty_one(tmp_path: Path) -> None:
    Checkpoints(tmp_path).prepare("search", "search-b", "search-a")
    assert list((tmp_path / "search" / "search-b").iterdir()) == []


@pytest.mark.parametrize("name", ["..", "../other", "a/b", "/etc", "", ".hidden", "Search"])
def test_names_do_not_leave_the_folder(tmp_path: Path, name: str) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    with pytest.raises(InvalidArgument, match="not a valid Kubernetes name"):
        Checkpoints(volume).prepare(name, "search-a", "")
    if name:
        with pytest.raises(FailedPrecondition, match="has no valid Kubernetes name"):
            Checkpoints(volume).prepare("search", "search-a", name)
    assert list(volume.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="checkpoint of search-a cannot be prepared"):
        Checkpoints(tmp_path / "not-mounted").prepare("search", "search-a", "")


def test_names_of_trials_are_like_katibs_and_always_the_same() -> None:
    assert trial_name("search", "uid-1", 3) == trial_name("search", "uid-1", 3)
    assert trial_name("search", "uid-1", 3) != trial_name("search", "uid-2", 3)
    assert len({trial_name("search", "uid-1", number) for number in range(1000)}) == 1000
