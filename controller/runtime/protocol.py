"""What the loop needs of any place where trials run. The contract; `tests/contract/runtime_contract.py` holds it.

Implementations (`local`, `simulated`, `kubernetes`) know nothing of studies, budgets or metrics.
Every action is idempotent on the attempt's name: a crash anywhere repeats it harmlessly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from controller.core.model import FailureClass, SecretRef, TrialOrFinal, TrialTemplate
from suggest.space import Assignment


@dataclass(frozen=True, slots=True)
class ClusterPart:
    """What a cluster needs to know of an attempt beside its command.

    namespace … attempt: whose it is, written on what is made there, so that it can be found again by it. template: the
    trial's, for its image, resources and cluster keys. secrets: environment variables that come from secrets.
    manifest: `trial.template` with its placeholders filled in, where the file has one. avoid_nodes: names of nodes that
    have let down an earlier attempt.
    """

    namespace: str
    experiment: str
    uid: str
    trial: TrialOrFinal
    attempt: int
    parameters: Assignment
    template: TrialTemplate
    secrets: Mapping[str, SecretRef] = field(default_factory=dict)
    manifest: Mapping[str, object] | None = None
    avoid_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """All that a runtime needs to start one attempt. `directory` is the attempt's own folder (it exists);
    the runtime writes `log.txt` there (standard output and error, in order). `slots`: while so many of the experiment's
    attempts run it waits, and begins by itself when one has ended; None = begin at once. `workers`: so many processes,
    each of which is given `gpu` and told its rank as torchrun would tell it; the attempt ends as the first that fails,
    and `log.txt` is that of rank 0."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]  # locally added to the inherited environment
    working_directory: Path
    directory: Path
    timeout_s: float | None = None
    grace_s: float = 30.0
    gpu: float = 0.0
    slots: int | None = None
    workers: int = 1
    cluster: ClusterPart | None = None  # None locally


@dataclass(frozen=True, slots=True)
class Exit:
    """How an attempt ended. Exactly one of code, signal, `failure_class` and `unknown` says how.

    signal: the process was killed by it. stopped: we had asked (stop()) before it ended. timed_out: the runtime ended
    it at its timeout. out_of_memory: the system says that it killed for memory. unknown: it is gone and nobody saw its
    exit (its supervisor was killed): infrastructure. failure_class, reason: the place where it ran knows why it failed
    (evicted, image not found), and no exit code would tell. reason with code 0: what of its log was lost;
    with 42: what a worker said of it whose log is not the attempt's.
    """

    time: datetime
    code: int | None = None
    signal: int | None = None
    stopped: bool = False
    timed_out: bool = False
    out_of_memory: bool = False
    unknown: bool = False
    failure_class: FailureClass | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """What the runtime shows of one attempt: waiting (no start_time yet), running, or ended. Shown until remove().

    waiting: why it does not run, for people. suspended: its queue holds it back, before its first start or after a
    preemption; no process of it is left, and it starts by itself. image: what its container really ran, by digest.
    """

    name: str
    start_time: datetime | None
    exit: Exit | None = None
    node: str = ""
    image: str = ""
    waiting: str = ""
    suspended: bool = False


class CannotStart(Exception):
    """The attempt cannot be started as described (command not found, no such folder, no permission).

    Nothing was started. `failure_class` is CONFIGURATION unless the machine is to blame (INFRASTRUCTURE).
    """

    def __init__(self, message: str, failure_class: FailureClass = FailureClass.CONFIGURATION) -> None:
        super().__init__(message)
        self.failure_class = failure_class


class RuntimeLost(Exception):
    """The runtime cannot be reached now; the loop looks again. Nothing is known about the attempts."""


class Runtime(Protocol):
    """All methods are coroutines on the caller's loop and return within seconds. An attempt is known by its name."""

    @property
    def shows_at_once(self) -> bool:
        """The next observe() shows as running what start() began; else that takes its time, and ends a wait()."""

    async def start(self, launch: Launch) -> None:
        """Start it unless it was started before, under this name, in this experiment's life (even if it ended since).

        Returns when the process exists, or waits in the runtime's own queue. Raises CannotStart, RuntimeLost. What is
        found later to be unstartable is observed as ended, with the failure class that CannotStart would have had.
        """

    async def stop(self, name: str, *, grace_s: float) -> None:
        """Ask all its processes to end (SIGTERM), kill what is left after grace_s. Returns at once; repeating with a
        shorter grace shortens it (0 kills now). An unknown or ended attempt is not an error."""

    async def remove(self, name: str) -> None:
        """Forget an ended attempt; its folder stays. Unknown is not an error; one still running is killed first."""

    async def reconcile(self) -> None:
        """Do what is due without another request: start what waited and now has room, end what is past its timeout,
        finish removals, follow logs. The loop calls it once per turn, before observe(). Level-triggered: what fails is
        due again at the next call. What changes from now on ends the next wait(). Raises RuntimeLost."""

    async def observe(self) -> Mapping[str, AttemptStatus]:
        """Everything of this experiment that runs or has ended and was not removed. A started attempt that is missing
        here has vanished. Only reads. Raises RuntimeLost."""

    async def read_log(self, name: str, offset: int, *, limit: int = 1 << 20) -> bytes:
        """At most `limit` bytes of the attempt's log from byte `offset`; empty at its present end. Works after its end,
        until remove(). A missing log is empty."""

    async def wait(self, within_s: float, *, log_growth: bool) -> None:
        """Return when an attempt may have ended since observe(), or (log_growth) when the log of a running one may have
        grown beyond what was read, at the latest after within_s. May return early; never loses a wake-up."""

    def slots(self, gpu: float, workers: int) -> int | None:
        """How many attempts fit at once whose workers take `gpu` GPUs each; None = no limit that the runtime knows."""

    async def close(self) -> None:
        """Let go of the runtime without touching what runs. Leave no process behind if nothing runs."""


Command = Sequence[str]
