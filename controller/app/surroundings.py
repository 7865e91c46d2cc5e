"""What a trial runs in: the commit and the changes of its files, its packages, this machine's GPUs.

Read for `provenance.json`, and again by `tuner reproduce`, which compares.
Nothing is imported or run but git: a process each for the commit and the changes, two for untracked
files.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from controller.app.git import git
from controller.app.untracked import FOLDER, Untracked, untracked_files
from suggest.whole_file import PRIVATE, replace_file

GIT_PATIENCE_S = 1.0  # longer waits for a large checkout are not worth it
PATCH_BYTES = 4 << 20  # larger changes are data, not code
PATCHES, PACKAGES = "patches", "packages"
# The changes as a patch that `git apply` takes, whatever the person's configuration.
_DIFF = (
    *("diff", "HEAD", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--no-relative", "--unified=3", "--submodule=short"),
    *("--ignore-submodules=none", "-O/dev/null"),
)
_DRIVER = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class GitState:
    """The state of the checkout that has a folder.

    record: what `provenance.json` has of it; empty outside a checkout. Without `dirty`, git failed
    or took too long to say what differs.
    patch: the changes of tracked files, unless they are too large.
    untracked: None if they were not looked at, or took too long.
    """

    record: Mapping[str, object] = field(default_factory=dict)
    patch: bytes = b""
    untracked: Untracked | None = None

    def stored_in(self, root: Path) -> dict[str, object]:
        """Store the files below the experiment's folder, and return the record with their names."""
        record = dict(self.record)
        if self.patch:
            record["patch"] = _stored(self.patch, root, PATCHES, "patch")
        if self.untracked is not None:
            record["untracked"] = self.untracked.record
            if self.untracked.archive:
                record["untrackedFiles"] = _stored(self.untracked.archive, root, FOLDER, "zip")
        return record


async def git_state(folder: Path, *, apart: Path) -> GitState:
    """Return the commit of a folder, with all that is recorded of its checkout.

    apart: the state directory, which may be in it.
    """
    state, untracked = await asyncio.gather(
        tracked_state(folder, within_s=GIT_PATIENCE_S), _untracked(folder, apart)
    )
    return replace(state, untracked=untracked) if state.record else state


async def _untracked(folder: Path, apart: Path) -> Untracked | None:
    try:
        async with asyncio.timeout(GIT_PATIENCE_S):
            return await untracked_files(folder, apart=apart)
    except (OSError, TimeoutError):
        return None


async def tracked_state(folder: Path, *, within_s: float) -> GitState:
    """Return the commit of a folder, and what of its tracked files differs."""
    record: dict[str, object] = {}
    try:
        async with asyncio.timeout(within_s):
            code, found, _ = await git(folder, "rev-parse", "HEAD", "--show-prefix")
            if code != 0:
                return GitState()
            commit, _, prefix = found.decode(errors="replace").rstrip("\n").partition("\n")
            record = {"commit": commit, "folder": prefix}
            code, patch, _ = await git(folder, *_DIFF)
            if code != 0:
                return GitState(record)
    except (OSError, TimeoutError):
        # In a very large checkout, the commit alone may be known in time.
        return GitState(record)
    record["dirty"] = bool(patch)
    if len(patch) > PATCH_BYTES:
        return GitState({**record, "patchBytes": len(patch)})
    return GitState(record, patch)


def _stored(content: bytes, root: Path, folder: str, suffix: str) -> str:
    """Store a file below the experiment's folder, and return its name, that of its content."""
    name = f"{folder}/{hashlib.sha256(content).hexdigest()[:16]}.{suffix}"
    store(root / name, content)
    return name


def packages_of(command: Sequence[str], path: str) -> list[str]:
    """Return the packages that a trial can import, such as `numpy==2.1.0`, by name.

    Those of the environment of its program, or of the first `python` in `path`. Read from the names
    of folders, as `pip freeze` prints them.
    """
    program = shutil.which(command[0], path=path) if command else None
    python = program and shutil.which("python", path=str(Path(program).parent))
    python = python or shutil.which("python", path=path)
    if python is None:
        return []
    root = Path(python).parent.parent
    found = set()
    for folder in (
        *root.glob("lib/python3*/site-packages"),
        *root.glob("lib/python3/dist-packages"),
    ):
        for name in os.listdir(folder):  # noqa: PTH208 - names suffice
            match = re.fullmatch(r"(.+)-([^-]+)\.dist-info", name)
            if match is not None:
                found.add(f"{match[1]}=={match[2]}")
    return sorted(found, key=str.lower)


def store_packages(packages: Sequence[str], root: Path) -> str:
    """Store a list of packages below the experiment's folder, and return its name; "" for none."""
    if not packages:
        return ""
    text = "".join(f"{each}\n" for each in packages).encode()
    return _stored(text, root, PACKAGES, "txt")


def store(path: Path, content: bytes) -> None:
    """Write a file that is named by its content, unless it is there. It may have secrets."""
    if path.exists():
        return
    path.parent.mkdir(exist_ok=True, mode=0o700)
    replace_file(path, content, mode=PRIVATE)


def gpus() -> list[str]:
    """Return the models of NVIDIA's GPUs, as their driver names them."""
    models = []
    for file in sorted(_DRIVER.glob("*/information")):
        match = re.search(r"^Model:\s*(.+)$", file.read_text(errors="replace"), re.MULTILINE)
        if match is not None:
            models.append(match[1].strip())
    return models
