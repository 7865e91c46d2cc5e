"""Run trials of a Python module without a new interpreter: the supervisor imports the module once
and forks each trial.

The child is set up like any other attempt, with the same session, log, start
pipe, signals and environment, but it calls the module instead of executing a
command (docs/adr/0001-processes-of-local-trials.md). Because the supervisor
imports the module, the module must start no thread and import nothing large.
The supervisor imports this module: standard library only.

The mark of the attempt is in the child's `os.environ`, but /proc shows the environment of the
supervisor. The programs that the child executes carry the mark. A process that it forks, and that
leaves the trial's group without executing a program, goes unnoticed until the search ends.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# Prefixes of variables that the interpreter and the C library read at exec;
# other values need a new interpreter.
_READ_AT_EXEC = ("PYTHON", "LD_", "DYLD_", "GLIBC_", "MALLOC_", "LC_", "LANG")
_UNBUFFERED = "PYTHONUNBUFFERED"  # the only one of these that a forked child can apply


class ForkedModule:
    """A module with a function `run() -> NoReturn`, imported into this process.

    Raises ImportError.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._module = importlib.import_module(name)
        self._environ = _fixed(dict(os.environ))

    def fits(self, command: list[str], env: dict[str, str]) -> bool:
        """Return whether a fork of this process would do the same as the command."""
        return command == [sys.executable, "-m", self._name] and _fixed(env) == self._environ

    def run(self, env: dict[str, str], *, kept: int | None) -> NoReturn:
        """Run the module in the child, whose output is the log already.

        `kept` is the only other open file to keep.
        """
        os.closerange(3, 3 if kept is None else kept)
        os.closerange(3 if kept is None else kept + 1, os.sysconf("SC_OPEN_MAX"))
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as the interpreter does at its start
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(env)
        time.tzset()
        sys.argv = [self._module.__file__ or self._name]
        # multiprocessing imports it in the processes that it spawns
        sys.modules["__main__"] = self._module
        sys.stdin = io.TextIOWrapper(io.FileIO(0))
        sys.stdout = _output(1, env)
        sys.stderr = _output(2, env)
        self._module.run()
        raise AssertionError("the module returned")


def _fixed(env: dict[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in env.items()
        if key.startswith(_READ_AT_EXEC) and key != _UNBUFFERED
    }


def _output(fd: int, env: dict[str, str]) -> io.TextIOWrapper:
    unbuffered = bool(env.get(_UNBUFFERED))
    file = io.FileIO(fd, "w", closefd=False)
    raw = file if unbuffered else io.BufferedWriter(file)
    errors = "backslashreplace" if fd == 2 else "strict"
    # For mypy: a TextIOWrapper also accepts a raw file, which is what it gets with python -u.
    return io.TextIOWrapper(raw, errors=errors, line_buffering=fd == 2, write_through=unbuffered)  # type: ignore[arg-type,unused-ignore]
