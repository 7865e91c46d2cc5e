"""The sections of docs/cifar10.md on data and the image: their commands work, and their names exist."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import data
import formats
import pytest
from pack import FIELDS, JPEG75

from tests.trial.stand_ins import as_pack, stand_in

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cifar10.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
IMAGES = [line for line in COMMANDS if line.startswith("make image-cifar10")]


def test_the_command_that_describes_the_data_works_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "python trial_image/data.py --data data/cifar10_jpeg75.npz" in COMMANDS
    (tmp_path / "data").mkdir()
    as_pack(tmp_path / "data/cifar10_jpeg75.npz", stand_in())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNER_CIFAR10_CACHE", str(tmp_path / "kept"))
    # Random images in place of the real ones.
    monkeypatch.setattr("sys.argv", ["data.py", "--data", "data/cifar10_jpeg75.npz", "--no-verify"])
    assert data.main() == 0


@pytest.mark.parametrize("command", IMAGES)
def test_the_commands_that_build_an_image_work_as_documented(command: str) -> None:
    done = subprocess.run(
        [*command.split(), "--dry-run"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("trial_image/build.sh cifar10\n")
    for setting in command.split()[2:]:
        name, _, value = setting.partition("=")
        assert f"{name}='{value}'" in done.stdout


def test_the_page_names_the_flags_and_variables_of_the_program() -> None:
    for name in (
        *formats.FOLDERS,
        *formats.ARCHIVES,
        *FIELDS,
        JPEG75,
        formats.UNKNOWN,
        "TUNER_CIFAR10_CACHE",
        "CIFAR10_DATA",
    ):
        assert name in PAGE
    assert len(IMAGES) >= 3
