"""Worker processes: models whose fit takes longer than a few milliseconds are computed outside the server's process.

A pool has at most `size` workers, each started when a model first needs it. A model stays with one worker, which
keeps the trials that it was shown: a request carries only what has changed since the last one. It moves when its
worker is busy and another is not. A move, and a worker that dies, hangs or has evicted the model, cost one request
with the whole state, never a study: a model is a function of (study seed, trial number, trials shown), so another
worker proposes the same.

The worker is `python -P -c` with this module and a socket: nothing is imported from the current directory. It ends
when the socket closes, however its parent died, and after IDLE_S without a request. It opens no store and no network
connection.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import queue
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from suggest import deadline
from suggest.errors import TimedOut, TunerError, Unavailable
from suggest.space import Assignment
from suggest.study import StudySpec
from suggest.trial import Trial

if TYPE_CHECKING:
    from suggest.samplers.sampler import PointRequest

SIZE = max(1, min(2, os.cpu_count() or 1))  # processes; each one computes for many studies
IDLE_S = 300.0  # without a request, after which a worker ends
HANG_S = 60.0  # for one request; a worker that takes longer is killed
MOST_VALUES = 1_000_000  # parameter values that one worker keeps, some 200 MB; the least recently used models go first
MOST_BYTES = 1 << 30  # resident; a worker with more ends after its reply, and the next request starts another
_LEAVE_S = 2.0
_LOOK_S = 0.05  # how soon a request notices that its server is being stopped
_TRIES = 2
_OUT_OF_MEMORY = 12  # a worker's exit code
_BOOT = "import sys; sys.path.append(sys.argv[1]); from suggest.workers import main; main(int(sys.argv[2]))"
_ROOT = Path(__file__).parents[1]

log = logging.getLogger(__name__)
_elsewhere = threading.local()  # cpu_s: what workers have computed for this thread


def thread_cpu_s() -> float:
    """Processor time of this thread, with what workers have computed for it."""
    return time.thread_time() + getattr(_elsewhere, "cpu_s", 0.0)


def _charge(cpu_s: float) -> None:
    _elsewhere.cpu_s = getattr(_elsewhere, "cpu_s", 0.0) + cpu_s


class Model(Protocol):
    """Deterministic in its study's seed, the numbers of `wanted` and the trials shown."""

    def propose(
        self, learnt: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        """Points for all of `wanted`; finished and running trials come in the order of their numbers."""
        ...


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """How a worker makes a model. path: `module:class`, imported there; the class takes (spec, seed, settings)."""

    path: str
    spec: StudySpec
    seed: int
    settings: Any  # the dataclass of the algorithm's settings

    def load(self) -> Callable[[StudySpec, int, Any], Model]:
        """The class, with all that its module imports."""
        module, _, name = self.path.partition(":")
        found: Callable[[StudySpec, int, Any], Model] = getattr(importlib.import_module(module), name)
        return found

    def model(self) -> Model:
        return self.load()(self.spec, self.seed, self.settings)


@dataclass(frozen=True, slots=True)
class _Request:
    """setup: None where the worker has the model. added, gone: finished trials since the last request."""

    id: int
    model: int
    setup: ModelSetup | None
    added: Sequence[Trial]
    gone: Sequence[int]
    running: Sequence[Trial]
    wanted: Sequence[PointRequest]
    left_s: float


@dataclass(frozen=True, slots=True)
class _Reply:
    """Exactly one of points and error, or neither: the worker does not have the model."""

    id: int
    points: list[Assignment] | None = None
    error: Exception | None = None
    cpu_s: float = 0.0


class _Lost(Exception):
    """The worker has ended. planned: because it was idle."""

    def __init__(self, message: str, *, planned: bool = False) -> None:
        super().__init__(message)
        self.planned = planned


class RemoteModel:
    """A model in a worker: the same points as `setup.model()` would propose here."""

    def __init__(self, workers: Workers, setup: ModelSetup) -> None:
        self._workers = workers
        self._setup = setup
        self._worker: _Worker | None = None
        self._id = next(workers.model_ids)
        self._shown: dict[int, Trial] = {}
        self._life = -1  # of the worker that was shown them

    def propose(
        self, learnt: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        """Raises Unavailable: two workers in a row died or hung over this; TimedOut."""
        finished = {trial.number: trial for trial in learnt}
        pending = [_outcome(trial) for trial in running]
        worker = self._workers.choose(self._worker)
        if worker is not self._worker:
            self._worker, self._shown = worker, {}
        try:
            with deadline.locked(worker.lock, late=Unavailable("all worker processes are busy; try again")):
                return self._insisted(worker, finished, pending, tuple(wanted))
        finally:
            worker.callers -= 1

    def _insisted(
        self, worker: _Worker, finished: dict[int, Trial], running: Sequence[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        failures = 0
        while True:
            try:
                return self._asked(worker, finished, running, wanted)
            except _Lost as lost:
                failures += not lost.planned
                if failures == _TRIES:
                    raise Unavailable(f"{lost}, twice in a row, over a proposal; try again later") from lost
                if not lost.planned:
                    self._workers.restarts += 1
                    log.warning("worker=%s restarted: %s", worker.number, lost)

    def _asked(
        self, worker: _Worker, finished: dict[int, Trial], running: Sequence[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        worker.ensure_started()
        if worker.life != self._life:
            self._shown = {}
        while True:
            known, self._shown = self._shown, {}  # until it has answered: what it was shown is not known
            reply = worker.ask(
                self._id,
                None if known else self._setup,
                [_outcome(trial) for number, trial in finished.items() if known.get(number) is not trial],
                [number for number in known if number not in finished],
                running,
                wanted,
            )
            if reply.points is None and reply.error is None:
                continue  # evicted
            if reply.error is not None:
                raise reply.error
            assert reply.points is not None
            self._shown, self._life = finished, worker.life
            return reply.points


def _outcome(trial: Trial) -> Trial:
    """What a model learns from; labels, owners and times are not sent."""
    return Trial(trial.number, trial.state, dict(trial.parameters), value=trial.value, step=trial.step, labels={})


class Workers:
    """The pool of one server. Thread-safe. Starts nothing before a model asks."""

    def __init__(self, size: int = SIZE) -> None:
        self.model_ids = itertools.count()
        self.restarts = 0
        self._workers = [_Worker(number) for number in range(size)]
        self._choosing = threading.Lock()

    def choose(self, held: _Worker | None) -> _Worker:
        """The worker that has the model, unless it is busy and another is not; for a new model the least used one.

        Counts the caller in the worker's `callers`: it takes itself out.
        """
        with self._choosing:
            if held is None or (held.busy and any(not worker.busy for worker in self._workers)):
                held = min(self._workers, key=lambda worker: (worker.busy, worker.callers, worker.requests))
            held.callers += 1
            held.requests += 1
            return held

    @property
    def cpu_s(self) -> float:
        """Processor time of all proposals so far."""
        return sum(worker.cpu_s for worker in self._workers)

    @property
    def running(self) -> int:
        """How many processes there are now."""
        return sum(worker.process is not None for worker in self._workers)

    def close(self) -> None:
        """Ends all processes; a computation in progress is lost."""
        for worker in self._workers:
            worker.close()


class _Worker:
    """One process and the socket to it. Its user holds `lock`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.callers = 0  # threads that use it or wait for it
        self.requests = 0  # since the pool was made
        self.cpu_s = 0.0
        self.lock = threading.Lock()
        self.life = 0  # how many processes there were before
        self.process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._ids = itertools.count()
        self._busy_since: float | None = None  # with a request that nobody waits for any more
        self._closed = False

    @property
    def busy(self) -> bool:
        return self.callers > 0 or self._busy_since is not None

    def ensure_started(self) -> None:
        """Raises Unavailable."""
        if self._busy_since is not None and time.monotonic() - self._busy_since > HANG_S:
            self.kill()
        if self.process is not None:
            return
        if self._closed:
            raise Unavailable("this server is stopping; send the request again")
        try:
            self._start()
        except OSError as error:  # no memory, processes or descriptors are left
            raise Unavailable(f"cannot start a worker process: {error.strerror}; try again later") from error

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for way in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # a stopped worker neither reads nor finishes a reply
                ours.setsockopt(socket.SOL_SOCKET, way, struct.pack("ll", int(HANG_S), int(HANG_S % 1 * 1e6)))
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, str(_ROOT), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for the server, which closes the socket when it ends
            )
            self._connection = Connection(ours.detach())
        self._busy_since = None

    def ask(
        self,
        model: int,
        setup: ModelSetup | None,
        added: Sequence[Trial],
        gone: Sequence[int],
        running: Sequence[Trial],
        wanted: Sequence[PointRequest],
    ) -> _Reply:
        """Raises _Lost, TimedOut, Unavailable."""
        connection = self._connection
        assert connection is not None
        left_s = deadline.left_s(HANG_S)
        request = _Request(next(self._ids), model, setup, added, gone, running, wanted, left_s)
        began = time.monotonic()
        try:
            connection.send(request)
            while True:
                while not connection.poll(_LOOK_S):
                    if time.monotonic() - (self._busy_since or began) > HANG_S:
                        self.kill()
                        raise _Lost(f"a worker process has not answered for {HANG_S:.0f} s")
                    self._check(began)
                reply = connection.recv()
                assert isinstance(reply, _Reply)
                self._busy_since = None
                if reply.id == request.id:
                    _charge(reply.cpu_s)
                    self.cpu_s += reply.cpu_s
                    return reply
                began = time.monotonic()  # it was the answer to a request that was given up
        except (EOFError, OSError) as error:
            code = self.kill(within_s=_LEAVE_S)
            how = "run out of memory" if code == _OUT_OF_MEMORY else f"ended (exit code {code})"
            raise _Lost(f"a worker process has {how}", planned=code == 0) from error

    def _check(self, began: float) -> None:
        try:
            deadline.check()
        except TunerError:
            self._busy_since = self._busy_since or began
            _charge(time.monotonic() - began)
            raise

    def kill(self, *, within_s: float = 0.0) -> int | None:
        """End the process, if there is one, and forget it. Returns its exit code if it ends by itself in time."""
        process, self.process = self.process, None
        connection, self._connection = self._connection, None
        self._busy_since = None
        if process is None:
            return None
        self.life += 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
        ended = process.poll()
        process.kill()
        process.wait()
        if connection is not None:
            connection.close()
        return ended

    def close(self) -> None:
        """From any thread: those who wait for an answer are told that the worker is gone."""
        self._closed = True
        process = self.process
        if process is not None:
            process.kill()
            process.wait()
        with deadline.locked(self.lock, late=Unavailable("a worker process does not end")):
            self.kill()


# In the worker


@dataclass(slots=True)
class _Kept:
    model: Model
    trials: dict[int, Trial] = field(default_factory=dict)
    values: int = 0

    def update(self, request: _Request) -> None:
        for number in request.gone:
            self.values -= len(self.trials.pop(number).parameters)
        for trial in request.added:
            old = self.trials.get(trial.number)
            self.values += len(trial.parameters) - (0 if old is None else len(old.parameters))
            self.trials[trial.number] = trial


class _Models:
    """The models of one worker, the least recently used first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def answer(self, request: _Request) -> _Reply:
        if request.setup is not None:
            self._kept[request.model] = _Kept(request.setup.model())
        kept = self._kept.get(request.model)
        if kept is None:
            return _Reply(request.id)
        self._kept.move_to_end(request.model)
        kept.update(request)
        self._evict()
        deadline.begin(request.left_s)
        learnt = [kept.trials[number] for number in sorted(kept.trials)]
        began = time.thread_time()
        points = kept.model.propose(learnt, request.running, request.wanted)
        return _Reply(request.id, points, cpu_s=time.thread_time() - began)

    def _evict(self) -> None:
        while len(self._kept) > 1 and sum(each.values for each in self._kept.values()) > MOST_VALUES:
            self._kept.popitem(last=False)


def main(descriptor: int) -> None:
    """Answers requests until the socket closes or IDLE_S have passed."""
    connection = Connection(descriptor)
    requests: queue.Queue[_Request] = queue.Queue()
    threading.Thread(target=_read, args=(connection, requests), daemon=True).start()
    models = _Models()
    while True:
        try:
            request = requests.get(timeout=IDLE_S)
        except queue.Empty:
            os._exit(0)
        try:
            reply = models.answer(request)
        except TimedOut as error:
            reply = _Reply(request.id, error=error)
        except MemoryError:
            os._exit(_OUT_OF_MEMORY)
        except Exception:  # the server reports it as an internal error, with an id
            reply = _Reply(request.id, error=RuntimeError(f"in a worker process:\n{traceback.format_exc()}"))
        with contextlib.suppress(OSError):
            connection.send(reply)
        if _resident_bytes() > MOST_BYTES:
            os._exit(0)


def _resident_bytes() -> int:
    """Of this process; where the system does not tell, the most it has had."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most << 10


def _read(connection: Connection, requests: queue.Queue[_Request]) -> None:
    """In a thread, so that the end of the parent is noticed during a computation."""
    try:
        while True:
            requests.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)
