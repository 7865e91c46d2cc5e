"""The pool of worker processes, in which models that need more
than a few milliseconds compute their proposals.

A pool has at most `size` workers, and starts each when a model first needs it. A worker computes
one request at a time. Requests wait in one queue for the first free worker, so a long request
delays no other one while a worker is free. A model asks the worker that it asked last, if that is
free, because a worker keeps the trials that a model was shown and is sent only the changes.
Otherwise the model asks the worker that serves the fewest models, and shows it the whole study.

A worker that dies, hangs or has evicted a model costs one more request with the whole state, but
never a study: a model is a function of (study seed, trial number, trials shown), so another worker
proposes the same. The worker's side is `suggest.worker_process`, which starts as `python -P -c`
with a socket, so that nothing is imported from the current directory.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from suggest import deadline
from suggest.errors import LimitReached, TunerError, Unavailable
from suggest.estimate import Estimate
from suggest.space import Assignment
from suggest.trial import Trial
from suggest.worker_process import Model, ModelReply, ModelRequest, ModelSetup

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from suggest.proposal import Computation, PointRequest, Steps

__all__ = [
    "Model",
    "ModelSetup",
    "RemoteModel",
    "Workers",
    "ask_model",
    "charge",
    "model_of",
    "thread_cpu_s",
]

# Processes, each of which computes for many studies.
SIZE = max(1, min(2, os.cpu_count() or 1))
# Per request; a worker that takes longer is killed.
HANG_S = 60.0
_LEAVE_S = 2.0  # in which a process that has closed its socket ends by itself
# Interval at which a waiting request checks its deadline, and whether the server is stopping.
_LOOK_S = 0.05
_TRIES = 2  # of a request whose worker dies or hangs
# The matrices of a model have some hundred rows: more threads took 1.6 times
# the processor time and were no faster.
_ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from suggest.worker_process import main; "
    "main(int(sys.argv[2]))"
)
_ROOT = Path(__file__).parents[1]

log = logging.getLogger(__name__)
# Models in this process compute one at a time, each for some milliseconds. NumPy releases
# the GIL in each operation on a large array, so threads that compute at the same time
# hand it to each other: 500 context switches for a suggestion and its completion instead
# of 140, and twice the processor time.
_COMPUTING = threading.Lock()
_elsewhere = threading.local()  # cpu_s: CPU time of workers for this thread


def thread_cpu_s() -> float:
    """Return the CPU time of this thread, including what workers have computed for it."""
    return time.thread_time() + getattr(_elsewhere, "cpu_s", 0.0)


def charge(cpu_s: float) -> None:
    """Add CPU time of a worker to that of this thread."""
    _elsewhere.cpu_s = getattr(_elsewhere, "cpu_s", 0.0) + cpu_s


class _WorkerLost(Exception):
    """The worker has ended.

    `planned`: it ended by itself, after it had answered its last request.
    """

    def __init__(self, message: str, *, planned: bool = False) -> None:
        super().__init__(message)
        self.planned = planned


def _picklable(trial: Trial) -> Trial:
    """Return the trial as algorithms see it, with mappings that can be pickled."""
    return replace(trial.for_algorithms(), parameters=dict(trial.parameters), labels={})


class RemoteModel:
    """A model in a worker process, which proposes the same points as `setup.model()` would here.

    Thread-safe.
    """

    def __init__(self, workers: Workers, setup: ModelSetup) -> None:
        self._workers = workers
        self._setup = setup
        self._id = next(workers.model_ids)
        # The trials that each process was shown: by the worker's number and life, then by trial.
        self._shown: dict[tuple[int, int], dict[int, Trial]] = {}
        self._shown_lock = threading.Lock()

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        """Return points as `Model.propose` does. Raises what `computation` raises."""
        return self.computation(learned, running, wanted)()

    def computation(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> Computation:
        """Return a computation by a worker for the given trials.

        The computation raises:
            Unavailable: no worker is free in time or can be started, or two in a row died or hung.
            LimitReached: it needs too much memory.
            TimedOut: the caller's deadline has passed.
        """
        finished = {trial.number: trial for trial in learned}
        pending = [_picklable(trial) for trial in running]
        points = tuple(wanted)
        return lambda: list(self._computed(finished, pending, points).points)

    def estimate(self, learned: Iterable[Trial]) -> Estimate | None:
        """Return what `EstimatingModel.estimate` does. Raises what `computation` raises."""
        return self._computed({trial.number: trial for trial in learned}, [], None).estimate

    def _computed(
        self,
        finished: dict[int, Trial],
        running: Sequence[Trial],
        wanted: Sequence[PointRequest] | None,
    ) -> ModelReply:
        with self._workers.one_for(self) as worker:
            failures = 0
            while True:
                try:
                    return self._ask_worker(worker, finished, running, wanted)
                except _WorkerLost as lost:
                    self._workers.lost(worker, lost)
                    failures += not lost.planned
                    if failures == _TRIES:
                        raise Unavailable(
                            f"{lost}, twice in a row, over a proposal; try again later"
                        ) from lost

    def _ask_worker(
        self,
        worker: _Worker,
        finished: dict[int, Trial],
        running: Sequence[Trial],
        wanted: Sequence[PointRequest] | None,
    ) -> ModelReply:
        worker.ensure_started()
        life = worker.number, worker.life
        while True:
            with self._shown_lock:
                # Until the worker has answered, its state is unknown.
                known = self._shown.pop(life, {})
                # Forget what earlier processes of this worker were shown.
                for key in [key for key in self._shown if key[0] == life[0]]:
                    del self._shown[key]
            request = ModelRequest(
                self._id,
                None if known else self._setup,
                [
                    _picklable(trial)
                    for number, trial in finished.items()
                    if known.get(number) is not trial
                ],
                [number for number in known if number not in finished],
                running,
                wanted,
                deadline.left_s(HANG_S),
            )
            reply = worker.ask(request)
            if not reply.has_model:
                # It has evicted the model, so show it everything.
                continue
            if reply.error is None:
                with self._shown_lock:
                    self._shown[life] = finished
                return reply
            if isinstance(reply.error, LimitReached):
                self._workers.lost(worker, _WorkerLost("a worker process has run out of memory"))
                worker.kill()
            raise reply.error


def model_of(setup: ModelSetup, workers: Workers | None) -> Model:
    """Return the model in a worker process, or in this process if there are no workers."""
    return setup.model() if workers is None else RemoteModel(workers, setup)


def ask_model(
    model: Model, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
) -> Steps:
    """Return the steps of a sampler that asks a model.

    That is one computation if the model is in a worker, else none.
    """
    if isinstance(model, RemoteModel):
        return (yield model.computation(learned, running, wanted))
    with _COMPUTING:
        return model.propose(learned, running, wanted)


class Workers:
    """The pool of one server. Thread-safe. It starts no process before a model needs one."""

    def __init__(self, size: int = SIZE) -> None:
        self.model_ids = itertools.count()
        self.restarts = 0
        self._workers = [_Worker(number) for number in range(size)]
        # Requests that wait for a worker; only the first may take one.
        self._line: deque[object] = deque()
        self._changed = threading.Condition()
        self._closed = False

    @contextlib.contextmanager
    def one_for(self, model: RemoteModel) -> Iterator[_Worker]:
        """Take a worker that no other thread uses meanwhile. Raises Unavailable, TimedOut."""
        worker = self._take(model)
        try:
            yield worker
        finally:
            self._release(worker)

    def lost(self, worker: _Worker, lost: _WorkerLost) -> None:
        if not lost.planned and not self._closed:
            with self._changed:
                self.restarts += 1
            log.warning("worker=%s restarted: %s", worker.number, lost)

    @property
    def running(self) -> int:
        """Return how many processes there are now."""
        return sum(worker.process is not None for worker in self._workers)

    @property
    def waiting(self) -> int:
        """Return how many requests wait for a free worker."""
        return len(self._line)

    @property
    def busy_s(self) -> float:
        """Return for how many seconds workers have computed, without the requests in progress."""
        return sum(worker.busy_s for worker in self._workers)

    def close(self) -> None:
        """End all processes. Computations in progress are lost."""
        end = time.monotonic() + deadline.LOCK_S
        with self._changed:
            self._closed = True
            for worker in self._workers:
                worker.closed = True
            self._changed.notify_all()
            while any(worker.taken for worker in self._workers) and time.monotonic() < end:
                for worker in self._workers:
                    # Its user notices this and gives it back.
                    worker.end()
                self._changed.wait(_LOOK_S)
        for worker in self._workers:
            worker.kill()

    def _take(self, model: RemoteModel) -> _Worker:
        end = time.monotonic() + deadline.left_s(deadline.LOCK_S)
        place = object()
        with self._changed:
            self._line.append(place)
            try:
                while (worker := self._free_worker(place, model)) is None:
                    deadline.check()
                    if self._closed:
                        raise Unavailable("this server is stopping; send the request again")
                    if time.monotonic() > end:
                        raise Unavailable("all worker processes are busy; try again")
                    self._changed.wait(_LOOK_S)
                return worker
            finally:
                self._line.remove(place)
                self._changed.notify_all()

    def _free_worker(self, place: object, model: RemoteModel) -> _Worker | None:
        """Take and return a free worker, if the place is the first one in the line."""
        free = [worker for worker in self._workers if not worker.taken]
        if not free or self._line[0] is not place:
            return None
        worker = next((each for each in free if model in each.models), None)
        if worker is None:
            worker = min(free, key=lambda each: len(each.models))
            for each in self._workers:
                each.models.discard(model)
            worker.models.add(model)
        worker.taken = True
        return worker

    def _release(self, worker: _Worker) -> None:
        if worker.owes_reply:
            try:
                threading.Thread(
                    target=self._settle, args=(worker,), name="late-proposal", daemon=True
                ).start()
                return
            except RuntimeError:
                # No thread is left.
                worker.kill()
        self._give_back(worker)

    def _settle(self, worker: _Worker) -> None:
        """Free a worker whose last request was given up, once it has answered or was killed."""
        try:
            worker.settle()
        except _WorkerLost as lost:
            self.lost(worker, lost)
        finally:
            self._give_back(worker)

    def _give_back(self, worker: _Worker) -> None:
        with self._changed:
            worker.taken = False
            self._changed.notify_all()


class _Worker:
    """One process and its socket.

    `taken` and `models` belong to the pool, all else to the thread that took it.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.taken = False
        # The models that asked it last.
        self.models: weakref.WeakSet[RemoteModel] = weakref.WeakSet()
        self.closed = False
        self.life = 0  # how many processes it has had before
        self.process: subprocess.Popen[bytes] | None = None
        self.busy_s = 0.0
        self._connection: Connection | None = None
        self._asked_at: float | None = None  # the request that it has not answered
        self._has_answered = False

    @property
    def owes_reply(self) -> bool:
        return self._asked_at is not None

    def ensure_started(self) -> None:
        """Start the process if there is none. Raises Unavailable."""
        if self.process is not None:
            return
        if self.closed:
            raise Unavailable("this server is stopping; send the request again")
        try:
            # Lazy: most searches need no worker.
            import multiprocessing.connection

            ours, theirs = socket.socketpair()
            with ours, theirs:
                # A stopped worker neither reads nor writes.
                for way in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                    ours.setsockopt(
                        socket.SOL_SOCKET,
                        way,
                        struct.pack("ll", int(HANG_S), int(HANG_S % 1 * 1e6)),
                    )
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _BOOT, str(_ROOT), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={**_ENVIRONMENT, **os.environ},
                    pass_fds=(theirs.fileno(),),
                    # Ctrl-C is for the server, which closes the socket when it ends.
                    start_new_session=True,
                )
                self._connection = multiprocessing.connection.Connection(ours.detach())
        except OSError as error:
            # No process, memory or descriptor is left, or Python is being replaced.
            raise Unavailable(
                f"a worker process cannot be started: {error}; try again later"
            ) from error
        self._has_answered = False

    def ask(self, request: ModelRequest) -> ModelReply:
        """Return the reply to a request.

        Raises _WorkerLost; TimedOut or Unavailable, after which `settle` is due.
        """
        assert self._connection is not None
        self._asked_at = began = time.monotonic()
        with self._worker_lost():
            self._connection.send(request)
            try:
                reply = self._reply(deadline.check)
            except TunerError:
                charge(time.monotonic() - began)
                raise
        charge(reply.cpu_s)
        return reply

    def settle(self) -> None:
        """Wait for the reply to a request that was given up. Raises _WorkerLost."""
        with self._worker_lost():
            self._reply(lambda: None)

    def _reply(self, check: Callable[[], None]) -> ModelReply:
        assert self._connection is not None
        assert self._asked_at is not None
        while not self._connection.poll(_LOOK_S):
            if time.monotonic() - self._asked_at > HANG_S:
                self.kill()
                raise _WorkerLost(f"a worker process has not answered for {HANG_S:.0f} s")
            check()
        reply = self._connection.recv()
        assert isinstance(reply, ModelReply)
        self._has_answered = True
        self._done()
        return reply

    @contextlib.contextmanager
    def _worker_lost(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            planned = self._has_answered
            code = self.kill(within_s=_LEAVE_S)
            reason = f"a worker process has ended ({_how_it_ended(code)})"
            raise _WorkerLost(reason, planned=planned and code == 0) from error

    def _done(self) -> None:
        if self._asked_at is not None:
            self.busy_s += time.monotonic() - self._asked_at
            self._asked_at = None

    def kill(self, *, within_s: float = 0.0) -> int | None:
        """End the process, if there is one, and forget it.

        Returns its exit code if it ends by itself in time.
        """
        process, self.process = self.process, None
        connection, self._connection = self._connection, None
        self._done()
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

    def end(self) -> None:
        """End the process, from any thread.

        The thread that waits for its answer gets _WorkerLost.
        """
        process = self.process
        if process is not None:
            process.kill()


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "it neither reads nor ends"
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, as when the machine is out of memory"
    return f"exit code {code}"
