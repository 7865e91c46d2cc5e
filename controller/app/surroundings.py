"""What a trial runs in: the commit and the changes of its files, its packages, this machine's GPUs.

Read once per session for `provenance.json`, and again by `tuner reproduce`, which compares.
Nothing is imported or run but git: one process for the commit, one for the changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

GIT_PATIENCE_S = 1.0  # longer waits for a large checkout are not worth it
PATCH_BYTES = 4 << 20  # larger changes are data, not code
PATCHES, PACKAGES = "patches", "packages"
# The changes as a patch that `git apply` takes, whatever the person's configuration.
_DIFF = ("diff", "HEAD", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv")
_DRIVER = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class GitState:
    """The state of the checkout that has a folder.

    record: what `provenance.json` has of it; empty outside a checkout.
    patch: the changes of tracked files, unless they are too large.
    """

    record: Mapping[str, object] = field(default_factory=dict)
    patch: bytes = b""

    def stored_in(self, root: Path) -> dict[str, object]:
        """Store the patch below the experiment's folder, and return the record with its name."""
        if not self.patch:
            return dict(self.record)
        name = f"{PATCHES}/{hashlib.sha256(self.patch).hexdigest()[:16]}.patch"
        store(root / name, self.patch)
        return {**self.record, "patch": name}


async def git_state(folder: Path, *, within_s: float = GIT_PATIENCE_S) -> GitState:
    """Return the commit of a folder, and what of its tracked files differs."""
    try:
        async with asyncio.timeout(within_s):
            code, found, _ = await git(folder, "rev-parse", "HEAD", "--show-prefix")
            if code != 0:
                return GitState()
            commit, _, prefix = found.decode(errors="replace").rstrip("\n").partition("\n")
            _, patch, _ = await git(folder, *_DIFF)
    except (OSError, TimeoutError):
        return GitState()
    record: dict[str, object] = {"commit": commit, "folder": prefix, "dirty": bool(patch)}
    if len(patch) > PATCH_BYTES:
        return GitState({**record, "patchBytes": len(patch)})
    return GitState(record, patch)


async def git(folder: Path, *arguments: str) -> tuple[int, bytes, bytes]:
    """Run git in a folder. Return its exit code, output and messages. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        "git",
        "-C",
        str(folder),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    )
    try:
        output, messages = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return process.returncode or 0, output, messages


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
    name = f"{PACKAGES}/{hashlib.sha256(text).hexdigest()[:16]}.txt"
    store(root / name, text)
    return name


def store(path: Path, content: bytes) -> None:
    """Write a file that is named by its content, unless it is there. It may have secrets."""
    if path.exists():
        return
    path.parent.mkdir(exist_ok=True, mode=0o700)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    partial.rename(path)


def gpus() -> list[str]:
    """Return the models of NVIDIA's GPUs, as their driver names them."""
    models = []
    for file in sorted(_DRIVER.glob("*/information")):
        match = re.search(r"^Model:\s*(.+)$", file.read_text(errors="replace"), re.MULTILINE)
        if match is not None:
            models.append(match[1].strip())
    return models
