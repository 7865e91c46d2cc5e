"""`tests.forked`: what is forked behaves as what is started by `exec`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

SHOWS = (
    "import json, os, signal, sys; print(json.dumps([sys.argv, os.getcwd(), dict(os.environ), "
    "sys.stdin.read(), "
    "sys.path, sys.stdout.encoding, sys.stdout.line_buffering, os.getpgrp(), os.umask(0), "
    "__name__, "
    "[str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, "
    "signal.SIGPIPE)], "
    "sorted(os.listdir('/dev/fd'))[:4]])); print('told', file=sys.stderr); sys.exit(7)"
)


def by_exec(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "MINE": "1"},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def by_fork(code: str, *arguments: str) -> subprocess.Popen[str]:
    process = forked.python(code, *arguments, env={**os.environ, "MINE": "1"})
    assert isinstance(process, forked.Forked)
    return process


BOTH = (by_exec, by_fork)


def test_a_forked_command_sees_what_a_new_interpreter_sees() -> None:
    seen = [
        (process.communicate(timeout=60), process.returncode)
        for process in [start(SHOWS, "a", "b c") for start in BOTH]
    ]
    assert seen[0] == seen[1]
    assert seen[0][1] == 7


def test_a_forked_script_sees_what_a_new_interpreter_sees(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "shows.py").write_text(f"import beside; print(__file__); {SHOWS}")
    new = subprocess.Popen(
        [sys.executable, "shows.py"],
        cwd=tmp_path,
        env=dict(os.environ),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    forked_one = forked.script(tmp_path / "shows.py", env=os.environ)
    assert isinstance(forked_one, forked.Forked)
    assert forked_one.communicate(timeout=60) == new.communicate(timeout=60)
    assert forked_one.returncode == new.returncode == 7


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "sys.exit('words')", "1 / 0"])
def test_threads_and_exit_handlers_of_a_forked_command_run_at_its_end(end: str) -> None:
    code = (
        "import atexit, sys, threading, time; atexit.register(print, 'handler'); "
        f"threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start(); {end}"
    )
    seen = []
    for process in [start(code) for start in BOTH]:
        out, err = process.communicate(timeout=60)
        seen.append((out, err.splitlines()[-1:], process.returncode))
    assert seen[0] == seen[1]
    assert seen[0][0] == "thread\nhandler\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_forked_command_ends_by_signals_like_any_process(number: signal.Signals) -> None:
    for start in BOTH:
        process = start("import time; print('up', flush=True); time.sleep(600)")
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert process.poll() is None
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == -number


def test_the_end_of_a_command_is_reported_even_if_its_output_is_not_read(tmp_path: Path) -> None:
    process = forked.tuner(["version"], folder=tmp_path, env=os.environ)
    assert process.wait(timeout=60) == 0
    out, err = process.communicate(timeout=60)
    assert (out.startswith("tuner "), err) == (True, "")


def test_options_of_the_interpreter_start_a_new_one() -> None:
    process = forked.python(
        "import sys; print(sys.flags.optimize)", env={**os.environ, "PYTHONOPTIMIZE": "1"}
    )
    assert not isinstance(process, forked.Forked)
    assert process.communicate(timeout=60)[0] == "1\n"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_the_fork_server_has_one_thread() -> None:
    code = (
        "import os, sys; print(len(os.listdir(f'/proc/{os.getppid()}/task')), {'grpc', "
        "'numpy'} <= set(sys.modules))"
    )
    assert forked.python(code, env=os.environ).communicate(timeout=60)[0] == "1 True\n"
