"""A worker process: creates models, keeps the trials that they were shown,
and answers one request after the other.

`suggest.workers` starts it and sends requests. It ends when the socket closes,
however its parent died; after IDLE_S without a request; and when it uses more
than MOST_BYTES of memory although all models but one have been evicted. It opens
no store and no network connection, and imports nothing of the server.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import queue
import resource
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from suggest import deadline
from suggest.errors import LimitReached, TimedOut
from suggest.estimate import Estimate
from suggest.space import Assignment
from suggest.study import StudySpec
from suggest.trial import Trial

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from suggest.proposal import PointRequest

# Time without a request after which a worker ends.
IDLE_S = 300.0
# resident; Python, NumPy and Optuna take 50 to 90 MB of them, torch 300 MB.
MOST_BYTES = 512 << 20
_STATM = Path("/proc/self/statm")


class Model(Protocol):
    """A model, which depends on its study's seed, `wanted` numbers and the shown trials alone."""

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        """Return points for all of `wanted`.

        Finished and running trials come in the order of their numbers.
        """
        ...


class EstimatingModel(Model, Protocol):
    """A model that also says what it has learned."""

    def estimate(self, learned: Iterable[Trial]) -> Estimate | None:
        """Return the estimate from finished trials, in the order of their numbers.

        None if they are too few.
        """
        ...


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """How a worker creates a model.

    `path` is `module:class`, and the class takes (spec, seed, settings).
    """

    path: str
    spec: StudySpec
    seed: int
    settings: object  # the dataclass of the algorithm's settings

    def load(self) -> Callable[[StudySpec, int, Any], Model]:
        """Return the class, and import its module."""
        module, _, name = self.path.partition(":")
        found: Callable[[StudySpec, int, Any], Model] = getattr(
            importlib.import_module(module), name
        )
        return found

    def model(self) -> Model:
        return self.load()(self.spec, self.seed, self.settings)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request for points, or for the model's estimate if `wanted` is None.

    `setup` is None if the worker has the model; `added` and `gone` are changes of finished trials.
    """

    model: int
    setup: ModelSetup | None
    added: Sequence[Trial]
    gone: Sequence[int]
    running: Sequence[Trial]
    wanted: Sequence[PointRequest] | None
    left_s: float


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A reply with the answer or an error.

    If not `has_model`, it has neither, and the worker needs the setup.
    """

    points: Sequence[Assignment] = ()
    estimate: Estimate | None = None
    error: Exception | None = None
    has_model: bool = True
    cpu_s: float = 0.0


def main(descriptor: int) -> None:
    """Answer requests until the socket closes or IDLE_S have passed without one."""
    # Lazy: the server imports this module, and may need no worker.
    from multiprocessing.connection import Connection

    connection = Connection(descriptor)
    requests: queue.Queue[ModelRequest] = queue.Queue()
    threading.Thread(target=_read, args=(connection, requests), daemon=True).start()
    models = _Models()
    # While the first request arrives.
    patience_s: float | None = None
    while True:
        try:
            request = requests.get(timeout=patience_s)
        except queue.Empty:
            os._exit(0)
        reply = _answer(models, request)
        with contextlib.suppress(OSError):
            connection.send(reply)
        # The frames of an error and the trials of a request may take much memory.
        del request, reply
        if not models.shrink():
            os._exit(0)
        patience_s = IDLE_S


def _read(connection: Connection, requests: queue.Queue[ModelRequest]) -> None:
    """Read requests in a thread, so that the end of the parent is noticed during a computation."""
    try:
        while True:
            requests.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:
        # A request that does not fit into memory: without this thread nothing is answered.
        traceback.print_exc()
        os._exit(1)


def _answer(models: _Models, request: ModelRequest) -> ModelReply:
    try:
        return models.answer(request)
    except TimedOut as error:
        return ModelReply(error=error)
    except MemoryError:
        # As long as it is handled, its frames hold what has filled the memory.
        pass
    except Exception:
        # The server reports it as an internal error, with an id.
        return ModelReply(error=RuntimeError(f"in a worker process:\n{traceback.format_exc()}"))
    models.clear()
    return ModelReply(
        error=LimitReached(
            "the proposal needs more memory than a worker process of this server may have; ask for "
            "fewer trials at once, use a smaller window or another algorithm, or have the server's "
            "operator allow more memory",
            limit="worker memory",
        )
    )


@dataclass(slots=True)
class _Kept:
    model: Model
    trials: dict[int, Trial] = field(default_factory=dict)

    def update(self, request: ModelRequest) -> None:
        for number in request.gone:
            del self.trials[number]
        self.trials.update((trial.number, trial) for trial in request.added)


class _Models:
    """The models of one worker, from the least to the most recently used."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def answer(self, request: ModelRequest) -> ModelReply:
        if request.setup is not None:
            self._kept[request.model] = _Kept(request.setup.model())
        kept = self._kept.get(request.model)
        if kept is None:
            return ModelReply(has_model=False)
        self._kept.move_to_end(request.model)
        kept.update(request)
        deadline.begin(request.left_s)
        learned = [kept.trials[number] for number in sorted(kept.trials)]
        began = time.thread_time()
        if request.wanted is None:
            # Only such a model is asked for one.
            estimate = cast(EstimatingModel, kept.model).estimate(learned)
            return ModelReply(estimate=estimate, cpu_s=time.thread_time() - began)
        points = kept.model.propose(learned, request.running, request.wanted)
        return ModelReply(points, cpu_s=time.thread_time() - began)

    def clear(self) -> None:
        self._kept.clear()

    def shrink(self) -> bool:
        """Evict models, the older half at a time, until memory suffices.

        Return False if the last one is too large.
        """
        while _resident_bytes() > MOST_BYTES:
            if len(self._kept) <= 1:
                return False
            for _ in range(len(self._kept) // 2):
                self._kept.popitem(last=False)
            gc.collect()
        return True


def _resident_bytes() -> int:
    """Return the resident memory of this process; without /proc, the most that it ever had."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most << 10
