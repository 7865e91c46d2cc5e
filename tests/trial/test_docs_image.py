"""The section of docs/cifar10.md on the image: its commands work."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cifar10.md").read_text(encoding="utf-8")
IMAGES = re.findall(r"^make image-cifar10.*$", PAGE, re.MULTILINE)


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


def test_the_page_shows_how_to_build_an_image() -> None:
    assert len(IMAGES) >= 3
