"""Real servers for tests: in a thread of this process,
or as a process that can be killed and restarts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from suggest.server import Protection, Server, ServerOptions
from suggest.space import Choice, Float, Parameter, Space
from suggest.study import Algorithm, Direction, Objective, Pruning, StudyName, StudySpec
from suggest.trial import Measurement
from tests import forked

NAME = StudyName("default", "parabola")
SPEC = StudySpec(
    Space((Parameter("x", Float(-10.0, 10.0)), Parameter("kind", Choice(("a", "b"))))),
    (Objective("score", Direction.MAXIMIZE),),
    Algorithm("random", seed=7),
    Pruning("median", {"warmupSteps": 0, "minTrials": 1}),
)


def score(step: int, value: float) -> Measurement:
    return Measurement(1, "score", step, value)


def _url(storage: Path | str) -> str:
    """Return the storage URL; a path is that of a SQLite file."""
    return f"sqlite:///{storage}" if isinstance(storage, Path) else storage


@contextmanager
def a_server(
    storage: Path | str,
    address: str = "localhost:0",
    *,
    protection: Protection | None = None,
    advertise: str = "",
    options: ServerOptions | None = None,
) -> Iterator[Server]:
    """Run a server in a thread with its own loop.

    On a port it needs no tokens, unless `protection` is given.
    """
    protection = protection or Protection(insecure=True)
    server = Server(
        _url(storage),
        address,
        protection=protection,
        advertise=advertise,
        options=options or ServerOptions(),
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(5), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class ServerProcess:
    """A server process. With `revive`, a new one is started whenever it dies, until stop().

    With port 0 in `address`, the system chooses the port. Without a file of `tokens`, the server
    needs no token. `descriptors` are the soft and the hard limit of file descriptors. With `katib`,
    it also has a port for Katib.
    """

    def __init__(
        self,
        storage: Path | str,
        address: str,
        *,
        failpoint: str = "",
        revive: bool = False,
        tokens: Path | None = None,
        descriptors: tuple[int, int] | None = None,
        python: Sequence[str] = (),
        katib: bool = False,
    ) -> None:
        self.address = address
        self.katib_address = ""  # of a server that also listens for Katib's clients
        self._katib = katib
        self._tokens = str(tokens or "")
        self._descriptors = descriptors
        self._python = tuple(python)
        self.said: list[str] = []  # the standard error output of each process that has ended
        self.deaths: list[int] = []
        self._storage = storage
        self._revive = revive
        self._stopping = False
        # so that a process that starts during stop() is stopped exactly once, too
        self._lock = threading.Lock()
        self._process = self._start(failpoint)
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        with self._lock:
            self._stopping = True
            self._process.terminate()
        self.wake()  # a frozen process would not handle the signal
        self._watcher.join()
        return self.deaths[-1]

    def _start(self, failpoint: str = "") -> subprocess.Popen[str]:
        program = (
            "import sys; from suggest.server import Protection, Server, ServerOptions, serve; "
            "tokens = sys.argv[3]; "
            "protection = Protection(insecure=not tokens, tokens=tokens); "
            f"options = ServerOptions(katib={(0,) if self._katib else ()}); "
            "sys.exit(serve(Server(sys.argv[2], sys.argv[1], protection=protection, "
            "options=options), announce=True, companion=None))"
        )
        if self._descriptors is not None:
            program = (
                f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, "
                f"{self._descriptors}); {program}"
            )
        arguments = (self.address, _url(self._storage), self._tokens)
        env = {**os.environ, "TUNER_FAILPOINT": failpoint}
        if self._python:
            process = subprocess.Popen(
                [sys.executable, *self._python, "-c", program, *arguments],
                env=env,
                stderr=subprocess.PIPE,
                text=True,
            )
        else:
            process = forked.python(program, *arguments, env=env)
        assert process.stderr is not None
        line = process.stderr.readline()
        while line.startswith("import time:"):
            line = process.stderr.readline()
        if not line.startswith("listening on "):
            rest = process.communicate()[1]
            raise AssertionError(f"the server did not start: {line}{rest}")
        self.address = line.removeprefix("listening on ").partition(",")[0]
        self.katib_address = line.partition("Katib at ")[2].strip()
        return process

    def _watch(self) -> None:
        while True:
            self.said.append(self._process.communicate()[1])
            self.deaths.append(self._process.returncode)
            if self._stopping or not self._revive:
                return
            process = self._start()
            with self._lock:
                self._process = process
                if self._stopping:
                    process.terminate()


@contextmanager
def a_process(
    storage: Path | str,
    address: str,
    *,
    failpoint: str = "",
    revive: bool = False,
    tokens: Path | None = None,
    descriptors: tuple[int, int] | None = None,
) -> Iterator[ServerProcess]:
    server = ServerProcess(
        storage, address, failpoint=failpoint, revive=revive, tokens=tokens, descriptors=descriptors
    )
    try:
        yield server
    finally:
        server.stop()
