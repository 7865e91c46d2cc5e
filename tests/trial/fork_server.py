"""A fork server for trial_image/cifar10.py: it imports torch once
and forks a process for each line of input.

Importing torch takes longer than these trainings. As a program this module serves; importing it
does not import torch.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PROGRAM = Path(__file__).resolve().parents[2] / "trial_image" / "cifar10.py"
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Child:
    server: ForkServer
    pid: int
    log: Path

    @property
    def lines(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines()

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Return its exit code, or the negated number of the signal that killed it."""
        return int(self.server.ask(wait=self.pid))

    def until(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not any(text in line for line in self.lines):
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.02)


class ForkServer:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.requests: IO[str] = process.stdin
        self.replies: IO[str] = process.stdout

    def ask(self, **request: Any) -> Any:
        self.requests.write(json.dumps(request) + "\n")
        self.requests.flush()
        return json.loads(self.replies.readline())

    def start(self, *flags: str, log: Path, end_at: str = "", **environment: object) -> Child:
        """end_at: it sends itself SIGTERM when it prints a line that begins with this text."""
        log.touch()
        env = {name: str(value) for name, value in environment.items()}
        return Child(
            self,
            self.ask(argv=["cifar10.py", *flags], environment=env, log=str(log), end_at=end_at),
            log,
        )


@contextmanager
def fork_server() -> Iterator[ForkServer]:
    inherited = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=inherited,
    ) as process:
        try:
            yield ForkServer(process)
        finally:
            process.kill()  # the kernel ends its remaining children with it


def serve() -> None:
    sys.path.insert(0, str(PROGRAM.parent))
    import cifar10

    importlib.import_module("trial")  # the slow import
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = waited_for(request["wait"])
        else:
            answer = os.fork()
            if answer == 0:
                become(request)
                code = cifar10.main()
                sys.stdout.flush()
                os._exit(code)
        print(answer, flush=True)


def become(request: dict[str, Any]) -> None:
    die_with_parent()
    os.environ.update(request["environment"])
    sys.argv = request["argv"]
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(log, standard)
    if request["end_at"]:
        builtins.print = functools.partial(print_and_end, builtins.print, request["end_at"])


def print_and_end(
    really_print: Callable[..., None], end_at: str, *texts: object, **how: Any
) -> None:
    really_print(*texts, **how)
    if str(texts[0]).startswith(end_at):
        os.kill(os.getpid(), signal.SIGTERM)


def die_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL


def waited_for(pid: int) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    raise SystemExit(f"process {pid} has not ended within {PATIENCE_S:g} s")


if __name__ == "__main__":
    serve()
