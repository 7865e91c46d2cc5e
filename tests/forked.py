"""Run programs without their start-up: a process that has imported the packages
forks once for each of them.

Such a program is a separate process with its own arguments, environment, folder, files, signals and
exit code. Values that only a new interpreter reads (`READ_AT_START`) are those of the tests; for
other values, a program uses `exec`. Tests of the start-up itself, and of the interpreter's
teardown, start their programs without this module.

This module is the client if imported, and the forking process if run as a program.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, cast

TUNER = Path(sys.executable).parent / "tuner"
# By the interpreter, libraries, or a module of ours when it is imported.
READ_AT_START = ("PYTHON", "LANG", "LC_", "TZ", "LD_", "OMP_", "OPENBLAS_", "GRPC_")


def tuner(
    words: Sequence[str | Path], *, folder: Path, env: Mapping[str, str]
) -> subprocess.Popen[str]:
    """Start `tuner WORDS` without standard input and with pipes for its output."""
    argv = [str(TUNER), *map(str, words)]
    return _started(argv, {"argv": argv, "cwd": str(folder), "env": dict(env)})


def run_tuner(
    words: Sequence[str | Path], *, folder: Path, env: Mapping[str, str], within_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run `tuner WORDS` to its end."""
    process = tuner(words, folder=folder, env=env)
    try:
        out, err = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def python(code: str, *arguments: str, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start `python -c CODE ARGUMENTS` in the same way."""
    command = [sys.executable, "-c", code, *arguments]
    return _started(
        command,
        {"code": code, "argv": ["-c", *arguments], "cwd": str(Path.cwd()), "env": dict(env)},
    )


def script(file: Path, *, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start `python FILE` in the file's folder in the same way."""
    command = [sys.executable, file.name]
    return _started(
        command,
        {"script": file.name, "argv": [file.name], "cwd": str(file.parent), "env": dict(env)},
    )


def _started(command: Sequence[str], request: dict[str, Any]) -> subprocess.Popen[str]:
    if read_at_start(request["env"]) == read_at_start(_forking().env):
        return Forked(command, request)
    return subprocess.Popen(
        command,
        cwd=request["cwd"],
        env=request["env"],
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def running_with(setting: str) -> Iterator[int]:
    """Whose environment has a line that begins so; /proc shows
    that of the process that forked them.
    """
    for process in list(Forked.living):
        if process.poll() is None and any(
            f"{key}={value}".startswith(setting) for key, value in process.env.items()
        ):
            yield process.pid


def read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    found = {key: value for key, value in env.items() if value and key.startswith(READ_AT_START)}
    found.pop("PYTHONFAULTHANDLER", None)  # it changes nothing that a test asks for
    return found


class Forked(subprocess.Popen[str]):
    """It is a child of the process that forks, which tells its exit code through a pipe."""

    living: ClassVar[set[Forked]] = set()
    _child_created = False  # of Popen: it must not wait for what is no child of this process

    def __init__(self, command: Sequence[str], request: dict[str, Any]) -> None:
        self.args = list(command)
        self.env: dict[str, str] = request["env"]
        self.returncode: int | None = None  # type: ignore[assignment]  # as it is at run time
        self.stdin = None
        ours, theirs = zip(*(os.pipe() for _ in range(3)), strict=True)
        self.stdout, self.stderr = cast(
            "tuple[IO[str], IO[str]]", tuple(os.fdopen(fd) for fd in ours[:2])
        )
        self._readers: list[_Reader] = []
        self._over = threading.Event()
        try:
            self.pid = _forking().fork(request, theirs)
        finally:
            for fd in theirs:
                os.close(fd)
        self.living.add(self)
        threading.Thread(target=self._hear, args=(ours[2],), daemon=True).start()

    def _hear(self, status: int) -> None:
        try:
            with open(status, "rb") as pipe:
                self.returncode = int(pipe.read())
        finally:
            self.living.discard(self)
            self._over.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._over.wait(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        assert self.returncode is not None, "the process that forks has died"
        return self.returncode

    def communicate(
        self, input: str | None = None, timeout: float | None = None
    ) -> tuple[str, str]:
        assert input is None
        deadline = None if timeout is None else time.monotonic() + timeout
        self._readers = self._readers or [
            _Reader(file) for file in (self.stdout, self.stderr) if file is not None
        ]
        for reader in self._readers:
            reader.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        out, err = (reader.text for reader in self._readers)
        return out, err


class _Reader(threading.Thread):
    """Read a pipe to its end."""

    def __init__(self, file: IO[str]) -> None:
        super().__init__(daemon=True)
        self._file = file
        self.text = ""
        self.start()

    def run(self) -> None:
        if not self._file.closed:
            with self._file:
                self.text = self._file.read()


class _Forking:
    """The process that forks, one for each process of the tests, until that ends."""

    def __init__(self) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TUNER_")}
        self.env = {**kept, "PYTHONFAULTHANDLER": "1"}
        self._asking = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def fork(self, request: dict[str, Any], files: Sequence[int]) -> int:
        """files: its standard output and error, and where to write its exit code."""
        with self._asking:
            line = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(self._socket, [line], list(files))
            self._socket.sendall(line[sent:])
            pid = self._socket.recv(4)
        assert len(pid) == 4, "the process that forks has died"
        return int.from_bytes(pid)

    def end(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _forking() -> _Forking:
    forking = _Forking()
    atexit.register(forking.end)
    return forking


# The process that forks

PACKAGES = (
    "controller",
    "controller.app",
    "controller.cli",
    "controller.core",
    "controller.report",
    "controller.runtime",
    "controller.runtime.kubernetes",
    "controller.spec",
    "suggest",
    "suggest.client",
    "suggest.server",
    "suggest.storage",
    "suggest.studies",
    "tuner",
)
IMPORTED_LATE = (
    "controller.ui.server",
    "controller.ui.study_server",
    "google.rpc.error_details_pb2",
    "google.rpc.status_pb2",
    "grpc_health.v1.health",
    "grpc_reflection.v1alpha.reflection",
    "suggest.pruners.percentile",
    "suggest.samplers.tpe_model",
)


def import_all() -> None:
    """Import what most commands need. It may not start threads, which do not survive a fork."""
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, f"{name}."):
            if not module.ispkg and not module.name.endswith(".__main__"):
                importlib.import_module(module.name)
    for name in IMPORTED_LATE:
        importlib.import_module(name)
    importlib.import_module("controller.cli.arguments").parser_of()  # kept for all commands


TINY = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: tiny}
spec:
  objective: {metric: score, direction: maximize}
  parameters: {x: {type: float, min: 0, max: 1}}
  trial: {command: [echo, "score=${x}"]}
"""


def warm_up() -> None:
    """Do what almost every command does.

    What SQLAlchemy, `re` and `importlib` keep of it is a fifth of a command.
    """
    from controller.app.experiment_file import ExperimentFile, FileOptions
    from controller.app.local_experiments import opened
    from controller.app.state_directory import StateDirectory
    from controller.core.model import Uid
    from suggest.storage.sqlite_store import SqliteStore

    with tempfile.TemporaryDirectory() as folder:
        state = StateDirectory(Path(folder, "state"))
        ExperimentFile.of_text(TINY, "tiny.yaml", FileOptions(), state)
        with opened(state, make=True) as experiments:
            experiments.experiments()
            experiments.experiment("default", "tiny")
            experiments.attempts(Uid("none"))
        SqliteStore(state.studies_db).close()
        call_commands(Path(folder))
    tempfile.tempdir = None  # a command may have another TMPDIR


def call_commands(folder: Path) -> None:
    """Call commands that start no process: what they compile and read is kept."""
    root = str(Path(__file__).parents[1])
    sys.path.append(root)
    from tests.called import tuner as call

    sys.path.remove(root)
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "notes.csv").write_text("x,score\n0.5,1\n")
    env = {**os.environ, "TUNER_STATE_DIR": str(folder / "state")}
    thresholds = gc.get_threshold()
    for words in (
        ("import", "tiny.yaml", "--from", "notes.csv"),
        ("get", "trials", "tiny", "-o", "json"),
        ("describe", "tiny"),
    ):
        done = call(words, folder=folder, env=env)
        assert done.returncode == 0, done.stderr
    gc.set_threshold(*thresholds)
    # One that a command ends without waiting for it may need a moment.
    for thread in set(threading.enumerate()) - {threading.current_thread()}:
        thread.join(60)
        assert not thread.is_alive(), thread


def serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request.

    Returns it in the child; ends the process when the tests have ended.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, and for what they run
    ended, wakes = socket.socketpair()
    for end in (ended, wakes):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    tells: dict[int, int] = {}  # from a child to where its exit code is awaited
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if ended in ready:
                ended.recv(4096)
                tell_ends(tells)
            if requests not in ready:
                continue
            line, files, _, _ = socket.recv_fds(requests, 1 << 16, 3)
            if not line:
                os._exit(0)
            while not line.endswith(b"\n"):
                line += requests.recv(1 << 16)
            pid = os.fork()
            if pid == 0:
                break
            tells[pid] = files.pop()
            for fd in files:
                os.close(fd)
            requests.sendall(pid.to_bytes(4))
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for end in (requests, ended, wakes):
        end.close()
    for fd in (files.pop(), *tells.values()):
        os.close(fd)
    request = json.loads(line)
    become(request, files)
    return request


def tell_ends(tells: dict[int, int]) -> None:
    for pid in list(tells):
        over, status = os.waitpid(pid, os.WNOHANG)
        if over:
            fd = tells.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
                os.write(fd, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(fd)


def become(request: dict[str, Any], files: Sequence[int]) -> None:
    """Take over what the interpreter would have got by `exec`. Standard input is empty already."""
    for standard, fd in enumerate(files, start=1):
        os.dup2(fd, standard)
        os.close(fd)
    # The streams of the parent believe that they can seek, as in its own files.
    encoding = sys.stdout.encoding
    sys.stdout = os.fdopen(1, "w", encoding=encoding, closefd=False)
    sys.stderr = os.fdopen(
        2, "w", encoding=encoding, errors="backslashreplace", buffering=1, closefd=False
    )
    from suggest import failpoints

    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["argv"]
    sys.orig_argv = [sys.executable, *sys.argv]
    failpoints.arm(os.environ.get("TUNER_FAILPOINT", ""))


def main() -> int:
    atexit.register(leave)  # the first to be registered is the last to be called
    sys.path[0] = str(TUNER.parent)
    import_all()
    warm_up()
    gc.collect()
    gc.freeze()  # collections in the children leave the shared pages alone
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        code = called(request)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise  # the interpreter prints it
        code = end.code or 0
    exit_codes.append(code)
    return code


def called(request: dict[str, Any]) -> int:
    if "code" in request:
        sys.path[0] = ""
        exec(request["code"], {"__name__": "__main__"})
        return 0
    if "script" in request:
        sys.path[0] = request["cwd"]
        path = Path(request["cwd"], request["script"])
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        module.__file__ = str(path)
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
        return 0
    from controller.cli.main import main

    return main()


exit_codes: list[int] = []  # one, once the program has ended by itself


def leave() -> None:
    """End without the interpreter's teardown, which writes to every shared page:
    nine tenths of a short program.
    """
    if exit_codes:
        for stream in (sys.stdout, sys.stderr):
            # nobody reads it, or the program has closed it
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(exit_codes[0] & 0xFF)


if __name__ == "__main__":
    sys.exit(main())
