"""The cleanup after a node: containers, mounts, cgroups, a network, and files in fixed places.

`python -I sweeping.py FOLDER NETWORK` ends all processes under this folder's containerd and releases
their resources. Outside of the folder it touches only what carries the folder's name. It also runs
after the tests were killed, so it imports the standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
CNI_RESULTS = Path("/var/lib/cni/results")
LOG_LINKS = Path("/var/log/containers")


def sweep(folder: Path, network: str) -> None:
    shims = [
        pid
        for pid, words in _processes()
        if f"{folder}/containerd.sock" in words and "-namespace" in words
    ]
    groups, fixed = _cgroups(folder), [*_files_elsewhere(folder)]
    _end([*_children_of(shims), *shims])
    for mount in sorted(_mounts_under(folder), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", mount], capture_output=True, timeout=30, check=False)
    for group in groups:
        for place in [CGROUPS / group, *CGROUPS.glob(f"*/{group}")]:
            with contextlib.suppress(OSError):
                place.rmdir()
    for path in fixed:
        path.unlink(missing_ok=True)
    # With its last process, the network namespace ends: its interfaces, and the rules of kube-proxy.
    for words in (("link", "delete", network), ("netns", "delete", network)):
        subprocess.run(["ip", *words], capture_output=True, timeout=30, check=False)


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_text(errors="replace").split("\0")


def _children_of(parents: list[int]) -> list[int]:
    """Return all descendants.

    The first process of a container is a child of its shim, and its end ends the others.
    """
    found: list[int] = []
    generation = parents
    while generation:
        below: list[int] = []
        for parent in generation:
            for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    below += [int(word) for word in tasks.read_text().split()]
        found += below
        generation = below
    return found


def _end(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while any(_alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _bundles(folder: Path) -> list[Path]:
    """Return the runtime's folders of containers, named by container id."""
    return [*folder.glob("containerd/run/io.containerd.runtime.v2.task/*/*")]


def _cgroups(folder: Path) -> list[str]:
    """Return the cgroups of all containers, as configured."""
    found = set()
    for bundle in _bundles(folder):
        with contextlib.suppress(OSError, ValueError):
            path = (
                json.loads((bundle / "config.json").read_text())
                .get("linux", {})
                .get("cgroupsPath", "")
                .strip("/")
            )
            found |= {path} if path else set()
    return sorted(found, key=len, reverse=True)


def _files_elsewhere(folder: Path) -> Iterator[Path]:
    """Return sockets of shims, state of network plugins and links to logs:
    their locations cannot be configured.
    """
    for bundle in _bundles(folder):
        with contextlib.suppress(OSError):
            yield Path((bundle / "address").read_text().removeprefix("unix://"))
        yield from CNI_RESULTS.glob(f"*-{bundle.name}-*")
    for link in LOG_LINKS.glob("*"):
        if link.is_symlink() and str(link.readlink()).startswith(f"{folder}/"):
            yield link


def _mounts_under(folder: Path) -> list[str]:
    mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [mount for mount in mounts if mount == str(folder) or mount.startswith(f"{folder}/")]


if __name__ == "__main__":
    sweep(Path(sys.argv[1]), sys.argv[2])
