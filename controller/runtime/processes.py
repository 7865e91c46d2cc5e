"""Facts from this machine's process table: living processes, children, and whether the kernel
killed for memory.

The supervisor imports this module: standard library only, nothing of the project, no pathlib,
typing or dataclasses. On Linux the facts come from /proc. Elsewhere `ps` provides what it can, and
the rest is unknown, never an error.
"""

from __future__ import annotations

import os
import signal
import sys

_LINUX = sys.platform == "linux"
_PR_SET_CHILD_SUBREAPER = 36


def _read(path: str) -> bytes:
    """Return the content of a file of /proc; empty if the process is gone or another user's."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id").decode().strip() if _LINUX else ""


_BOOT_ID = _boot_id()


def birth(pid: int) -> str | None:
    """Return the process's boot id and start time, which with the pid identify it uniquely.

    None means that it has ended or is a zombie.
    """
    if not _LINUX:
        return _birth_by_ps(pid)
    # The command's name is in parentheses and may itself contain spaces and parentheses.
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return f"{_BOOT_ID}/{fields[19].decode()}"


def _birth_by_ps(pid: int) -> str | None:
    import subprocess  # lazy: doubles the start-up time, and Linux never needs it

    listing = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = listing.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def suspended(pid: int) -> bool:
    """Return whether the process is stopped, as Ctrl-Z and SIGSTOP do."""
    if _LINUX:
        return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1] == [b"T"]
    import subprocess  # lazy: as above

    shown = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.startswith("T")


def open_pidfd(pid: int) -> int | None:
    """Return a file that is readable once the process ends; None if it or the system lacks one."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def adopt_orphans() -> None:
    """Adopt orphaned descendants of this process from now on (on Linux; elsewhere init does)."""
    if not _LINUX:
        return
    import ctypes  # lazy: half a megabyte that only Linux needs

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Return this process's children, also adopted ones; empty if the system does not tell."""
    if _LINUX:
        return [int(pid) for pid in _read(f"/proc/self/task/{os.getpid()}/children").split()]
    return []


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()] if _LINUX else []


def carries(pid: int, mark: str) -> bool:
    """Return whether the process started with this KEY=VALUE in its environment.

    Its children inherit the variable.
    """
    return b"\0" + os.fsencode(mark) + b"\0" in b"\0" + _read(f"/proc/{pid}/environ")


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def signal_group(group: int, number: int) -> bool:
    """Signal the process group and return whether it has any process; signal 0 only checks."""
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


def ended_child() -> tuple[int, int | None] | None:
    """Return the pid of an ended child, and its wait status if it had to be reaped to find out.

    If the status is None, the child is not reaped yet: its pid and group are not reused
    until the caller reaps it.
    """
    try:
        if hasattr(os, "waitid"):
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            return (info.si_pid, None) if info is not None else None
        pid, status = os.waitpid(-1, os.WNOHANG)
        return (pid, status) if pid else None
    except ChildProcessError:
        return None


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def oom_kills() -> int:
    """Return the number of kernel out-of-memory kills since boot; 0 if the system does not tell."""
    if not _LINUX:
        return 0
    after = _read("/proc/vmstat").partition(b"\noom_kill ")[2]
    return int(after.split(b"\n", 1)[0]) if after else 0
