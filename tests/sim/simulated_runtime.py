"""A simulated runtime in virtual time, whose trials follow scripts.
It uses no processes and no files.

It passes the same contract tests as the real runtimes, and runs whole experiments in milliseconds.
Like a cluster, it outlives the controllers that use it: a test may drop a loop at any moment and
give the same runtime to the next one.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from controller.core.attempt import AttemptStatus, Exit, RuntimeLost
from controller.core.model import Attempt, Experiment, FailureClass, Uid, attempt_name
from controller.core.runtime_traits import RuntimeTraits
from controller.folders import AttemptFolders, ExperimentFolders
from controller.runtime.protocol import CannotStart, Conclusion, Launch
from controller.runtime.provider import (
    LaunchBuilder,
    ObjectRecords,
    RuntimeConnection,
    RuntimeProvider,
)
from suggest.trial import Trial

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class VirtualClock:
    """A clock whose time passes only during waits."""

    def __init__(self) -> None:
        self._elapsed_s = 0.0

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._elapsed_s)

    def elapsed_s(self) -> float:
        return self._elapsed_s

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self._elapsed_s += seconds


@dataclass(frozen=True, slots=True)
class Script:
    """What one attempt does. Times are in seconds after its start.

    lines: the printed lines as (time, text). ends_at: when it ends by itself; None means never.
    code, signal: how it ends by itself. vanishes_at: when the runtime forgets it. ignores_sigterm:
    it ends only when killed. refused: why it cannot be started. waits_s: how long it waits for room
    before its start. preempted_at: when its queue preempts it, once. It starts again from the
    beginning waits_s + 1 seconds later.
    """

    lines: tuple[tuple[float, str], ...] = ()
    ends_at: float | None = 1.0
    code: int | None = 0
    signal: int | None = None
    out_of_memory: bool = False
    vanishes_at: float | None = None
    ignores_sigterm: bool = False
    refused: str = ""
    waits_s: float = 0.0
    preempted_at: float | None = None


@dataclass(slots=True)
class _Attempt:
    script: Script
    launch: Launch
    started_s: float  # infinity while it waits for a slot
    kill_at_s: float | None = None
    stop_asked_s: float | None = None
    exit: Exit | None = None
    exit_s: float | None = None
    gone: bool = False
    removed: bool = False
    preempted: bool = False
    earlier_output: str = ""  # what it printed before it was preempted


class SimulatedRuntime:
    """Implements `controller.runtime.protocol.Runtime`.

    `script_for` returns the script of an attempt.
    """

    def __init__(
        self,
        clock: VirtualClock,
        script_for: Callable[[Launch], Script],
        *,
        gpus: float | None = None,
        shows_at_once: bool = True,
    ) -> None:
        self.shows_at_once = shows_at_once
        self._clock = clock
        self._script_for = script_for
        self._gpus = gpus
        self._attempts: dict[str, _Attempt] = {}
        self.starts: list[str] = []  # the attempt name of every process that ever began
        self.conclusion: Conclusion | None = None
        self.lost = False  # True: the runtime does not answer
        self.barred_s = (math.inf, math.inf)  # from when until when no attempt may run
        self.has_barred = False  # whether it has shown an attempt that may not run
        self.late_s = 0.0  # how long after an attempt has ended the runtime shows it running

    async def start(self, launch: Launch) -> None:
        self._answer()
        self.conclusion = None
        attempt = self._attempts.get(launch.name)
        if attempt is not None:
            if attempt.gone and not attempt.removed:
                raise CannotStart("it was started before and is gone", FailureClass.INFRASTRUCTURE)
            return
        script = self._script_for(launch)
        if script.refused:
            raise CannotStart(script.refused)
        self._attempts[launch.name] = _Attempt(script, launch, math.inf)
        self._fill_slots()

    async def stop(self, name: str, *, grace_s: float) -> None:
        self._answer()
        attempt = self._attempts.get(name)
        if attempt is None or attempt.exit is not None or attempt.gone:
            return
        now_s = self._clock.elapsed_s()
        attempt.stop_asked_s = now_s if attempt.stop_asked_s is None else attempt.stop_asked_s
        kill_at_s = now_s + grace_s
        attempt.kill_at_s = (
            kill_at_s if attempt.kill_at_s is None else min(attempt.kill_at_s, kill_at_s)
        )
        if attempt.started_s == math.inf:
            del self._attempts[name]  # it had not begun, so it may be started later
        self._simulate()

    async def remove(self, name: str) -> None:
        self._answer()
        attempt = self._attempts.get(name)
        if attempt is not None:
            attempt.gone = attempt.removed = True

    async def reconcile(self) -> None:
        pass  # observe() brings everything up to the current time

    async def observe(self) -> Mapping[str, AttemptStatus]:
        self._answer()
        now_s = self._clock.elapsed_s()
        return {
            name: self._barred(
                AttemptStatus(name, _at(attempt.started_s), self._shown_exit(attempt))
            )
            if attempt.started_s <= now_s
            else _waiting(name, attempt)
            for name, attempt in self._attempts.items()
            if not attempt.gone
        }

    async def read_log(self, name: str, offset: int, *, limit: int = 1 << 20) -> bytes:
        self._answer()
        attempt = self._attempts.get(name)
        if attempt is None:
            return b""
        return self._log(attempt)[offset : offset + limit]

    async def read_metrics(self, name: str, offset: int, *, limit: int = 1 << 20) -> bytes:
        return await self.read_log(name, offset, limit=limit)

    async def wait(self, within_s: float, *, log_growth: bool) -> None:
        """Advance virtual time to the next thing that happens, by at most `within_s` seconds."""
        now_s = self._clock.elapsed_s()
        moments = [now_s + within_s]
        for attempt in self._attempts.values():
            if attempt.exit is None and not attempt.gone:
                moments += [
                    at for at in self._moments(attempt, log_growth=log_growth) if at > now_s
                ]
            elif attempt.exit_s is not None and attempt.exit_s + self.late_s > now_s:
                moments.append(attempt.exit_s + self.late_s)
        self._clock.advance(min(moments) - now_s)
        self._answer()

    async def answer(self, name: str, answers: str) -> None:
        pass

    def now(self) -> datetime:
        return self._clock.now()

    def wake(self) -> None:
        pass

    async def conclude(self, conclusion: Conclusion) -> None:
        self._answer()
        self.conclusion = conclusion

    def slots(self, gpu: float, workers: int) -> int | None:
        return None if self._gpus is None or gpu <= 0 else int(self._gpus / gpu)

    def hurry(self) -> None:
        pass

    async def close(self) -> None:
        pass

    # For tests

    def vanish(self, name: str) -> None:
        self._attempts[name].gone = True

    def running(self) -> list[str]:
        self._simulate()
        return [
            name
            for name, attempt in self._attempts.items()
            if attempt.exit is None and not attempt.gone and attempt.started_s < math.inf
        ]

    def suspended(self) -> list[str]:
        """Return the attempts that are preempted and not admitted again."""
        self._simulate()
        now_s = self._clock.elapsed_s()
        return [
            name
            for name, attempt in self._attempts.items()
            if attempt.preempted and attempt.started_s > now_s and not attempt.gone
        ]

    # Simulation

    def _answer(self) -> None:
        if self.lost:
            raise RuntimeLost("the simulated runtime does not answer")
        self._simulate()

    def _simulate(self) -> None:
        now_s = self._clock.elapsed_s()
        for attempt in self._attempts.values():
            if attempt.exit is None and not attempt.gone:
                self._simulate_attempt(attempt, now_s)
        self._fill_slots()

    def _fill_slots(self) -> None:
        """Start the attempts that have waited longest, as far as there is room."""
        alive = [
            attempt
            for attempt in self._attempts.values()
            if attempt.exit is None and not attempt.gone
        ]
        begun = sum(attempt.started_s < math.inf for attempt in alive)
        for attempt in alive:
            slots = attempt.launch.slots
            if (
                not self._is_barred
                and attempt.started_s == math.inf
                and attempt.stop_asked_s is None
                and (slots is None or begun < slots)
            ):
                attempt.started_s = self._clock.elapsed_s() + attempt.script.waits_s
                self.starts.append(attempt.launch.name)
                begun += 1

    def _simulate_attempt(self, attempt: _Attempt, now_s: float) -> None:
        """Apply the earliest of the events that may end the attempt, if its time has come."""
        script, launch = attempt.script, attempt.launch
        if (
            (at_s := self._preempted_at(attempt)) is not None
            and at_s <= now_s
            and attempt.stop_asked_s is None
        ):
            attempt.earlier_output = self._output(attempt, until_s=at_s)
            attempt.preempted = True
            attempt.started_s = at_s + script.waits_s + 1.0
        started_s = attempt.started_s
        if started_s > now_s:
            attempt.gone = attempt.stop_asked_s is not None  # withdrawn before it ran
            return
        ends: list[tuple[float, Exit | None]] = []
        if script.vanishes_at is not None:
            ends.append((started_s + script.vanishes_at, None))
        if script.ends_at is not None:
            when = started_s + script.ends_at
            by_itself = Exit(
                _at(when), script.code, script.signal, out_of_memory=script.out_of_memory
            )
            ends.append((when, by_itself))
        for asked_s, timed_out in (
            (attempt.stop_asked_s, False),
            (self._timeout_at(launch, started_s), True),
        ):
            if asked_s is None:
                continue
            killed_s = (
                asked_s + launch.grace_s
                if timed_out or attempt.kill_at_s is None
                else attempt.kill_at_s
            )
            when = killed_s if script.ignores_sigterm else asked_s
            number = signal.SIGKILL if script.ignores_sigterm else signal.SIGTERM
            ends.append(
                (when, Exit(_at(when), signal=number, stopped=not timed_out, timed_out=timed_out))
            )
        if not ends:
            return
        when, end = min(ends, key=lambda pair: pair[0])
        if when > now_s:
            return
        if end is None:
            attempt.gone = True
            return
        stop_asked = attempt.stop_asked_s is not None and attempt.stop_asked_s <= when
        attempt.exit, attempt.exit_s = replace(end, stopped=end.stopped or stop_asked), when

    def _moments(self, attempt: _Attempt, *, log_growth: bool) -> list[float]:
        script, launch, started_s = attempt.script, attempt.launch, attempt.started_s
        if started_s == math.inf:
            return []
        moments = [started_s]
        moments += [started_s + at for at in (script.vanishes_at, script.ends_at) if at is not None]
        moments += [at for at in (attempt.kill_at_s, attempt.stop_asked_s) if at is not None]
        if (preempted_at := self._preempted_at(attempt)) is not None:
            moments.append(preempted_at)
        timeout_at = self._timeout_at(launch, started_s)
        if timeout_at is not None:
            moments += [timeout_at, timeout_at + launch.grace_s]
        if log_growth:
            moments += [started_s + at for at, _ in script.lines]
        return moments

    @staticmethod
    def _timeout_at(launch: Launch, started_s: float) -> float | None:
        return None if launch.timeout_s is None else started_s + launch.timeout_s

    @property
    def _is_barred(self) -> bool:
        begin_s, end_s = self.barred_s
        return begin_s <= self._clock.elapsed_s() < end_s

    def _barred(self, status: AttemptStatus) -> AttemptStatus:
        is_barred = self._is_barred and status.exit is None
        self.has_barred |= is_barred
        return replace(status, barred="the budget is used up") if is_barred else status

    def _shown_exit(self, attempt: _Attempt) -> Exit | None:
        is_late = (
            attempt.exit_s is not None and self._clock.elapsed_s() < attempt.exit_s + self.late_s
        )
        return None if is_late else attempt.exit

    @staticmethod
    def _preempted_at(attempt: _Attempt) -> float | None:
        """Return when the attempt is preempted; None if it already was or ends by itself before."""
        script = attempt.script
        if (
            script.preempted_at is None
            or attempt.preempted
            or script.preempted_at >= (script.ends_at or math.inf)
        ):
            return None
        return attempt.started_s + script.preempted_at

    def _log(self, attempt: _Attempt) -> bytes:
        until_s = self._clock.elapsed_s() if attempt.exit_s is None else attempt.exit_s
        return self._output(attempt, until_s=until_s).encode()

    @staticmethod
    def _output(attempt: _Attempt, *, until_s: float) -> str:
        printed = [text for at, text in attempt.script.lines if attempt.started_s + at <= until_s]
        return attempt.earlier_output + "".join(f"{text}\n" for text in printed)


def _waiting(name: str, attempt: _Attempt) -> AttemptStatus:
    if attempt.preempted:
        return AttemptStatus(name, None, waiting="preempted", suspended=True)
    return AttemptStatus(name, None, waiting="no room" if attempt.started_s < math.inf else "")


def _at(elapsed_s: float) -> datetime:
    return EPOCH + timedelta(seconds=elapsed_s)


class SimulatedProvider(RuntimeProvider):
    """The simulation as a runtime, registered as `simulated`.

    Its runtimes by the uid of their experiment.
    """

    # Searches that are short or have few trials at once must test prefetched successors, too.
    traits = RuntimeTraits(brisk_s=100_000.0)

    def __init__(self) -> None:
        self.runtimes: dict[Uid, SimulatedRuntime] = {}

    async def connect(
        self, experiment: Experiment, folders: ExperimentFolders, records: ObjectRecords
    ) -> RuntimeConnection:
        return RuntimeConnection(self.runtimes[experiment.uid])

    def launch_builder(self, experiment: Experiment, folders: ExperimentFolders) -> LaunchBuilder:
        return _launch


def _launch(
    experiment: Experiment, trial: Trial, attempts: Sequence[Attempt], folders: AttemptFolders
) -> Launch:
    attempt, here = attempts[-1], Path("/")
    template = experiment.spec.template_of(attempt.trial)
    name = attempt_name(experiment.name, experiment.uid, attempt.trial, attempt.number)
    slots = experiment.spec.parallelism
    return Launch(
        name, ("true",), {}, here, here, template.timeout_s, template.grace_s, slots=slots
    )
