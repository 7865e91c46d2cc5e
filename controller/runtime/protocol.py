"""The contract of a runtime, a place where trials run. `controller/runtime/testing.py` tests it.

Implementations (`local`, `simulated`, `kubernetes`) know nothing about studies, budgets or metrics.
Every action is idempotent on the attempt's name, so that it can be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from controller.core.attempt import AttemptStatus
from controller.core.model import ExperimentState, FailureClass

LOG_LIMIT_BYTES = 1 << 30  # of each log on disk, by default


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that a runtime needs to start one attempt.

    directory: the attempt's own folder, which exists. The runtime writes standard output and error
    to `log.txt` there, in order.
    log_limit_bytes: of each log on disk, which keeps its beginning and its end.
    slots: while this many attempts of the experiment run, the attempt waits in the runtime, which
    starts it once one has ended. None starts it at once.
    workers: the number of processes. Each gets `gpu` GPUs and its rank in torchrun's environment
    variables. The attempt ends like the first process that fails, and `log.txt` is the log of rank
    0.
    starts_over: why the attempt has no checkpoint, though it should continue from one; else "".
    Known locally only.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]  # local trials get it on top of the inherited environment
    working_directory: Path
    directory: Path
    timeout_s: float | None = None
    grace_s: float = 30.0
    log_limit_bytes: int = LOG_LIMIT_BYTES
    gpu: float = 0.0
    slots: int | None = None
    workers: int = 1
    starts_over: str = ""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How an experiment has ended, for those who have its runtime but not its database.

    best: the best trial as JSON: its number `trial`, its `values` by metric,
    its `parameters`; None if there is none.
    """

    state: ExperimentState
    reason: str
    best: Mapping[str, object] | None = None


class CannotStart(Exception):
    """The attempt cannot be started as described: no such command or folder, or no permission.

    Nothing was started. `failure_class` is CONFIGURATION
    unless the machine is to blame (INFRASTRUCTURE).
    """

    def __init__(
        self, message: str, failure_class: FailureClass = FailureClass.CONFIGURATION
    ) -> None:
        super().__init__(message)
        self.failure_class = failure_class


class Runtime(Protocol):
    """A place where attempts run, each identified by its name.

    Coroutines run on the caller's event loop. Every method returns within seconds.
    """

    @property
    def shows_at_once(self) -> bool:
        """Return whether the next observe() shows a started attempt as running.

        Otherwise that takes a while, and wait() returns when it happens.
        """

    async def start(self, launch: Launch) -> None:
        """Start the attempt, unless this experiment ever started one of this name.

        That one may have ended since. Returns when the process exists or waits in the runtime's own
        queue. If the runtime finds out later that it cannot start the attempt, observe() shows it
        as ended, with the failure class that CannotStart would have had.

        Raises:
            CannotStart: The attempt cannot be started as described.
            RuntimeLost: The runtime cannot be reached.
        """

    async def stop(self, name: str, *, grace_s: float) -> None:
        """Send SIGTERM to all processes of the attempt; kill those left after `grace_s` seconds.

        Returns at once. A repeated call with a shorter grace period shortens it; 0 kills now. An
        unknown or ended attempt is not an error.
        """

    async def remove(self, name: str) -> None:
        """Forget an ended attempt and keep its folder.

        An attempt that is still running is killed first. An unknown attempt is not an error.
        """

    async def reconcile(self) -> None:
        """Do what is due without a request.

        That is: start waiting attempts, end overdue ones, finish removals, and follow logs. The
        loop calls this once per turn, before observe(). It is level-triggered: whatever fails is
        tried again at the next call. Later changes end the next wait(). Raises RuntimeLost.
        """

    async def observe(self) -> Mapping[str, AttemptStatus]:
        """Return all started attempts of this experiment that were not removed, by name.

        A started attempt that is missing from the result has vanished.
        Only reads. Raises RuntimeLost.
        """

    def now(self) -> datetime:
        """Return the present by the clock of the times that observe() returns."""

    async def read_log(self, name: str, offset: int, *, limit: int = 1 << 20) -> bytes:
        """Return at most `limit` bytes of the attempt's log from byte `offset`.

        Empty at the current end of the log. Works until remove(), also for an ended attempt. A
        missing log counts as empty.
        """

    async def read_metrics(self, name: str, offset: int, *, limit: int = 1 << 20) -> bytes:
        """Return at most `limit` bytes of what the attempt's collector read, from byte `offset`.

        Empty if the experiment has no collector. The same bytes are never returned with other
        content, also by the runtime of another controller, and those of an ended attempt are
        complete. Works until remove().
        """

    async def answer(self, name: str, answers: str) -> None:
        """Show the running attempt the answers to all requests in its log so far.

        Its program reads them in the file of TUNER_PARAMETER_ANSWERS. Only called if the runtime's
        traits have `answers_parameters`, and a trial has printed a request; one on the machine of
        its controller asks at a socket instead. An unknown or ended attempt is not an error.
        Raises RuntimeLost.
        """

    async def wait(self, within_s: float, *, log_growth: bool) -> None:
        """Wait until an attempt may have ended since observe(), for at most `within_s` seconds.

        With `log_growth`, also return when the log or the measurements of a running attempt may
        have grown beyond what was read. May return early, but never loses a wakeup.
        """

    def wake(self) -> None:
        """Make the present or the next wait() return soon, because the loop was asked something.

        May do nothing where no wait() lasts longer than half a second.
        """

    async def conclude(self, conclusion: Conclusion) -> None:
        """Record how the experiment has ended, where other controllers could continue it.

        Called before that is saved. The next start() of this experiment's own controller discards
        the record. Raises RuntimeLost.
        """

    def slots(self, gpu: float, workers: int) -> int | None:
        """Return how many attempts fit at once if each has `workers` workers with `gpu` GPUs each.

        None means that the runtime knows of no limit.
        """

    def hurry(self) -> None:
        """From now on, limit waits for answers to what a user accepts after two interrupts."""

    async def close(self) -> None:
        """Release the runtime's resources without touching running attempts.

        Leaves no process behind if no attempt runs.
        """
