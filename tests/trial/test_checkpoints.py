"""A checkpoint is complete or absent, and no problem with one ends a training."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.torch_here import needs_torch

pytestmark = needs_torch
FILE = "checkpoint.pt"


def save(folder: Path, state: dict[str, Any]) -> bool:
    # Here and below, not at the top: it imports torch, and every worker collects this file.
    import checkpoints

    return checkpoints.save(folder, state)


def load(folder: Path, *, fingerprint: str) -> dict[str, Any] | None:
    import checkpoints

    return checkpoints.load(folder, fingerprint=fingerprint)


def state(epoch: int, *, fingerprint: str = "these") -> dict[str, Any]:
    import torch

    return {
        "fingerprint": fingerprint,
        "epoch": epoch,
        "weights": [torch.arange(5000.0)],
        "told": {"accuracy": 0.5},
    }


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the only line printed since the last call."""
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("checkpoints.py: ")
    return line.removeprefix("checkpoints.py: ")


@contextmanager
def full_disk() -> Iterator[None]:
    """Limit the size of files of this process, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_last_saved_state_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    assert load(tmp_path / "new", fingerprint="these") is None
    assert save(tmp_path / "new", state(1))
    assert save(tmp_path / "new", state(2))
    found = load(tmp_path / "new", fingerprint="these")
    assert found is not None
    assert torch.equal(found.pop("weights")[0], torch.arange(5000.0))
    assert found == {"fingerprint": "these", "epoch": 2, "told": {"accuracy": 0.5}}
    assert names(tmp_path / "new") == [FILE]
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_reported_once_and_keeps_the_previous_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, state(1))
    with full_disk():
        assert [save(tmp_path, state(epoch)) for epoch in (2, 3, 4)] == [False, False, False]
    assert (
        "no checkpoint is written (File too large); training continues; this is reported once"
        in told(capsys)
    )
    assert names(tmp_path) == [FILE]
    assert (load(tmp_path, fingerprint="these") or {})["epoch"] == 1
    assert save(tmp_path, state(5))
    with full_disk():
        assert not save(tmp_path, state(6))
    assert "no checkpoint is written" in told(capsys)


def test_a_folder_that_cannot_be_created_does_not_end_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert not save(tmp_path / "file" / "folder", state(1))
    assert "Not a directory" in told(capsys)


@pytest.mark.parametrize("change", ["cut short", "emptied", "one byte", "something else"])
def test_a_corrupt_checkpoint_is_reported_and_not_used(
    change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, state(1))
    content = bytearray((tmp_path / FILE).read_bytes())
    content[len(content) // 2] ^= 1
    other = {
        "cut short": content[:-1],
        "emptied": b"",
        "one byte": content,
        "something else": b"hello, world",
    }[change]
    (tmp_path / FILE).write_bytes(other)
    assert load(tmp_path, fingerprint="these") is None
    assert "cut short or changed since it was written; training starts over" in told(capsys)
    assert save(tmp_path, state(2))


def test_a_checkpoint_of_other_parameters_is_reported_and_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, state(1, fingerprint="others"))
    assert load(tmp_path, fingerprint="these") is None
    assert "left by other parameters or other data; training starts over" in told(capsys)


class Hostile:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_loading_a_checkpoint_runs_no_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, {**state(1), "hostile": Hostile(tmp_path / "was-here")})
    assert load(tmp_path, fingerprint="these") is None
    assert "torch does not take it (UnpicklingError); training starts over" in told(capsys)
    assert not (tmp_path / "was-here").exists()


def test_an_unreadable_checkpoint_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FILE).mkdir()
    assert load(tmp_path, fingerprint="these") is None
    assert "cannot be read (Is a directory); training starts over" in told(capsys)


def test_a_file_left_by_a_process_killed_while_saving_is_overwritten(tmp_path: Path) -> None:
    save(tmp_path, state(1))
    (tmp_path / f".{FILE}.new").write_bytes((tmp_path / FILE).read_bytes()[:5000])
    assert (load(tmp_path, fingerprint="these") or {})["epoch"] == 1
    assert save(tmp_path, state(2))
    assert (load(tmp_path, fingerprint="these") or {})["epoch"] == 2
    assert names(tmp_path) == [FILE]


class Slow:
    """An object whose serialization waits for an event."""

    def __init__(self, time: threading.Event) -> None:
        self.time = time

    def __reduce__(self) -> tuple[Any, ...]:
        assert self.time.wait(30)
        return int, (1,)


def test_a_training_does_not_wait_for_a_checkpoint_to_be_saved(tmp_path: Path) -> None:
    from checkpoints import Keeper

    keeper, time = Keeper(tmp_path), threading.Event()
    keeper.save({**state(1), "slow": Slow(time)})
    assert names(tmp_path) == []
    time.set()
    keeper.save(state(2))
    keeper.wait()
    assert (load(tmp_path, fingerprint="these") or {})["epoch"] == 2
    keeper.wait()


def test_an_error_of_serialization_is_raised_by_the_next_wait(tmp_path: Path) -> None:
    from checkpoints import Keeper

    keeper = Keeper(tmp_path)
    keeper.save({"a function": lambda: None})
    with pytest.raises(Exception, match="lambda"):
        keeper.wait()
