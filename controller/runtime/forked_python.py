"""Trials of a Python module without a new interpreter: the supervisor imports the module once and forks for each trial.

The child is a process like any other: same session, log, gate, signals, environment and mark, but it calls the module
instead of executing a command (docs/adr/0026-forked-function-trials.md). The module is imported in the supervisor, so
it must start no thread and import nothing large. Imported by the supervisor: standard library only.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import time

from controller.runtime.supervised import MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# Read by the interpreter and the C library when a process is executed: another value needs another interpreter.
_READ_AT_EXEC = ("PYTHON", "LD_", "DYLD_", "GLIBC_", "MALLOC_", "LC_", "LANG")
_UNBUFFERED = "PYTHONUNBUFFERED"  # the one of these that a child can take over
_LONGEST_MARK = 4096


def placeholder() -> dict[str, str]:
    """For the environment of a supervisor that forks: the room in which each child writes its own mark."""
    return {MARK: "." * _LONGEST_MARK}


class ForkedModule:
    """A module with a function `run() -> NoReturn`, imported in this process. Raises ImportError."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module = importlib.import_module(name)
        self._environ = _fixed(dict(os.environ))

    def fits(self, command: list[str], env: dict[str, str]) -> bool:
        """Whether a fork of this process is what the command would be."""
        return command == [sys.executable, "-m", self._name] and _fixed(env) == self._environ

    def run(self, env: dict[str, str], *, kept: int | None) -> NoReturn:
        """In the child, whose output is already the log. kept: the only other file that stays open."""
        os.closerange(3, 3 if kept is None else kept)
        os.closerange(3 if kept is None else kept + 1, os.sysconf("SC_OPEN_MAX"))
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as an interpreter does when it starts
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(env)
        _write_mark(env[MARK])
        time.tzset()
        sys.argv = [self._module.__file__ or self._name]
        sys.modules["__main__"] = self._module  # what multiprocessing imports in the processes that it spawns
        sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.FileIO(0)), _output(1, env), _output(2, env)
        self._module.run()
        raise AssertionError("the module returned")


def _fixed(env: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if key.startswith(_READ_AT_EXEC) and key != _UNBUFFERED}


def _output(fd: int, env: dict[str, str]) -> io.TextIOWrapper:
    unbuffered = bool(env.get(_UNBUFFERED))
    file = io.FileIO(fd, "w", closefd=False)
    raw = file if unbuffered else io.BufferedWriter(file)
    errors = "backslashreplace" if fd == 2 else "strict"
    # mypy: a TextIOWrapper takes a raw file too, and python -u gives it one.
    return io.TextIOWrapper(raw, errors=errors, line_buffering=fd == 2, write_through=unbuffered)  # type: ignore[arg-type,unused-ignore]


def _write_mark(directory: str) -> None:
    """Write the mark where others read our environment: the kernel shows the memory that exec laid out.

    Without it (not Linux, or no room) only processes that leave the trial's group go unnoticed until the search ends.
    """
    mark = f"{MARK}={directory}".encode()
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[47]), int(fields[48])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            laid_out = memory.read(end - start)
            room = laid_out.find(MARK.encode() + b"=")
            if room < 0 or len(mark) > len(MARK) + _LONGEST_MARK:
                return
            memory.seek(start + room)
            memory.write(mark.ljust(len(MARK) + 1 + _LONGEST_MARK, b"\0"))
    except (OSError, ValueError, IndexError):
        pass
