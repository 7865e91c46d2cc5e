"""Go, and the programs that tests build with it. This module knows nothing about the service."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "clients" / "go"
GRPCURL = Path(__file__).with_name("go") / "grpcurl"


def lacks(what: str) -> None:
    """Skip the test with this line, or fail it where it must run."""
    if os.environ.get("TUNER_TEST_CLIENTS_REQUIRED") == "1":
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


def go(*arguments: str, folder: Path) -> str:
    """Run `go` and return its output."""
    if shutil.which("go") is None:
        lacks("there is no go here; install Go 1.26 (https://go.dev/dl)")
    # The first run downloads and builds the modules.
    command = ["go", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout
