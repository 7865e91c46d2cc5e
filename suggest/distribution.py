"""What is installed: the name on the package index, the version, the commit it was built from, and
how to add an extra.

This is the only place with the version number; pyproject.toml reads it. The package is called
`tuner-hpo` on the index, where `tuner` belongs to another project. Its modules and its command are
called `tuner`.
"""

from __future__ import annotations

from pathlib import Path

NAME = "tuner-hpo"
VERSION = "0.1.0"

# Written by hatch_build.py into wheels and source archives that are built in a git checkout.
COMMIT_FILE = "built_from.txt"
_PACKAGE = Path(__file__).parent


def install_command(*extras: str) -> str:
    """Return the command that adds extras to an installed release or to a checkout.

    pip and uv take an installed version as it is, and install only what its extras need.
    """
    return f"pip install '{NAME}[{','.join(extras)}]'"


def commit() -> str:
    """Return the commit of the build, or of the checkout that runs; `+` follows if files differ.

    It is empty if neither is known: no git here, or an archive of the sources without its history.
    """
    built_from = _PACKAGE / COMMIT_FILE
    if built_from.exists():
        return built_from.read_text(encoding="utf-8").strip()
    return commit_of(_PACKAGE.parent)


def commit_of(checkout: Path) -> str:
    """Return the commit of a git checkout like `commit` does."""
    # Loaded by `tuner version` only, and by builds.
    import subprocess

    if not (checkout / ".git").exists():
        return ""
    describe = [
        "git",
        "-C",
        str(checkout),
        "describe",
        "--always",
        "--exclude=*",
        "--abbrev=12",
        "--dirty=+",
    ]
    try:
        return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def described() -> str:
    """Return the version and the commit, for people: `0.1.0 (3f2a81c09d7e)`."""
    known = commit()
    return f"{VERSION} ({known})" if known else VERSION
