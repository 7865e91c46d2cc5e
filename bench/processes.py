"""The programs that are measured, and what a process takes of the processor and of the memory.

Standard library only, as in `record.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TUNER = Path(sys.executable).parent / "tuner"


@contextmanager
def serving(folder: Path, url: str, *flags: str, tuner: Path = TUNER) -> Iterator[tuple[str, int]]:
    """Run `tuner serve` on a store; yield its address and its process id."""
    socket = folder / "s"
    socket.unlink(missing_ok=True)
    command = [tuner, "serve", "--address", f"unix:{socket}", "--storage", url, *flags]
    with (folder / "serve.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        while not socket.exists():
            if server.poll() is not None:
                sys.exit(f"tuner serve did not start: {(folder / 'serve.log').read_text()}")
            time.sleep(0.05)
        yield f"unix:{socket}", server.pid
    finally:
        server.terminate()
        server.wait(30)


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Return the present resident size; 0 for a process that has ended."""
    return _status_kb(pid, "VmRSS") / 1000


def peak_mb(pid: int) -> float:
    """Return the largest resident size so far; 0 for a process that has ended."""
    return _status_kb(pid, "VmHWM") / 1024


def _status_kb(pid: int, field: str) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) if found else 0
