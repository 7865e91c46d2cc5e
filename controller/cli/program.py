"""The words by which this program was called."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def program_words() -> list[str]:
    """Return `tuner` if PATH finds this program by that name, else the words that called it."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        typed = sys.orig_argv
        if "-m" in typed[:-1]:
            return typed[: typed.index("-m") + 2]
        return [sys.executable, "-m", "controller"]
    if called.name != "tuner" or _on_path(called):
        return ["tuner"]
    return [sys.argv[0]]


def _on_path(script: Path) -> bool:
    for folder in os.get_exec_path():
        program = Path(folder or ".", "tuner")
        if os.access(program, os.X_OK) and program.is_file():
            return script.exists() and program.samefile(script)
    return False
