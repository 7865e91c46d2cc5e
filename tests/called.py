"""Call commands of `tuner` in this process: without a fork,
and with what earlier commands have cached.

A command that is called has its own arguments, folder, environment, output and empty standard
input, and must end by itself. Commands that a test signals, that run beside it, or that die at a
failpoint are processes: `tests.forked`. tests/e2e/test_called.py compares both; the commands in
tests/e2e/test_cli.py are always processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from controller.cli.main import main
from tests import forked

SERVERS = ("serve", "ui")
FOLLOWS = ("-f", "--follow", "-w", "--watch")
LOGGERS = ("", "controller", "suggest")  # whose levels a command sets


def run_tuner(
    words: Sequence[str | Path], *, folder: Path, env: Mapping[str, str], within_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run `tuner WORDS` to its end: here, or as a process if it needs one."""
    if ends_here(words, env=env):
        return tuner(words, folder=folder, env=env)
    return forked.run_tuner(words, folder=folder, env=env, within_s=within_s)


def ends_here(words: Sequence[str | Path], *, env: Mapping[str, str]) -> bool:
    """Return whether the command can be called here.

    `redirect_stdout` and signal handlers need the main thread.
    """
    return (
        words[0] not in SERVERS
        and not any(word in FOLLOWS for word in words)
        # A script becomes the program of its process.
        and not any(Path(word).suffix == ".py" for word in words)
        and not env.get("TUNER_FAILPOINT")
        and forked.read_at_start(env) == forked.read_at_start(os.environ)
        and threading.current_thread() is threading.main_thread()
        and not _in_an_event_loop()
    )


def _in_an_event_loop() -> bool:
    """Return whether this thread runs a loop, as it does for Playwright; a command runs its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def tuner(
    words: Sequence[str | Path],
    *,
    folder: Path,
    env: Mapping[str, str],
    program: Path = forked.TUNER,
) -> subprocess.CompletedProcess[str]:
    """Call `tuner WORDS`. `program` is what was typed for it; hints repeat it."""
    argv = [str(program), *map(str, words)]
    out, err = Captured(), Captured()
    with (
        _standing_in(folder, env, argv),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main()
        except SystemExit as end:  # wrong usage, or --help
            code = int(end.code or 0)
    return subprocess.CompletedProcess(argv, code, out.text, err.text)


class Captured(io.TextIOWrapper):
    """Takes text and bytes, as the standard output of a program."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding="utf-8", write_through=True)

    @property
    def text(self) -> str:
        return self._bytes.getvalue().decode()


@contextlib.contextmanager
def _standing_in(folder: Path, env: Mapping[str, str], argv: list[str]) -> Iterator[None]:
    """Give this process the folder, the environment and the arguments
    of the command; then restore its own.
    """
    environment, given, before = dict(os.environ), dict(env), (sys.argv, sys.stdin)
    handlers, levels = (
        logging.root.handlers[:],
        {name: logging.getLogger(name).level for name in LOGGERS},
    )
    with contextlib.chdir(folder):
        os.environ.clear()
        os.environ.update(given)
        sys.argv, sys.stdin = argv, io.TextIOWrapper(io.BytesIO())
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(environment)
            sys.argv, sys.stdin = before
            logging.root.handlers[:] = handlers
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
