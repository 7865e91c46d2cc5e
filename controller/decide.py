"""What to do next: a snapshot in, a list of actions out. Pure: no clock, no I/O, no randomness, no memory.

Everything is decided anew each turn from what is durable, so a restart decides the same. The loop carries the actions
out in order; each is idempotent. What is asked for is one turn's worth: the loop turns again at once after acting.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeAlias

from controller import budget
from controller.failures import may_retry
from controller.model import Attempt, AttemptState, ExperimentSpec, ExperimentState, FailureClass, StopCause
from suggest.trial import Outcome, TrialState

MAX_SUGGESTIONS = 100  # of one request
MAX_AHEAD = 2  # successors that wait at the runtime: a slot is filled by the next in line, not by way of us


class Wish(enum.Enum):
    """What the person at the controls wants."""

    RUN = "run"
    INTERRUPT = "interrupt"  # first Ctrl-C: stop cleanly, run again on resume
    STOP = "stop"  # tuner stop: cancel what runs, for good


@dataclass(frozen=True, slots=True)
class OpenTrial:
    """A trial with something left to do. `running`: the study still waits for its outcome; False when somebody else
    completed it and only its attempt is left to be stopped."""

    number: int
    attempts: tuple[Attempt, ...] = ()
    running: bool = True

    @property
    def newest(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def occupies_slot(self) -> bool:
        return self.newest is not None and not self.newest.ended


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision depends on.

    counts: finished trials by outcome. without_grace: what is stopped is killed at once. slots: what the runtime can
    hold, None = no limit. canary_over: the first trial has shown itself. advised: trials that the study says are
    hopeless, and why. stops_sent: trials whose newest attempt was told to stop in this process's life, and its grace.
    held: trials whose newest attempt the runtime has accepted and does not run yet: it waits for room there.
    ahead: successors may be named before a slot is free for them.
    """

    spec: ExperimentSpec
    state: ExperimentState
    trials: Sequence[OpenTrial]
    counts: Mapping[TrialState, int]
    wish: Wish = Wish.RUN
    without_grace: bool = False
    best: float | None = None
    exhausted: bool = False
    running_s: float = 0.0
    slots: int | None = None
    canary_over: bool = True
    advised: Mapping[int, str] = field(default_factory=dict)
    stops_sent: Mapping[int, float] = field(default_factory=dict)
    held: Set[int] = frozenset()
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Complete:
    """Tell the study how the trial ended, then forget its attempts in the runtime."""

    trial: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Forget:
    """The study has this trial's outcome from somebody else: drop what is left of it here."""

    trial: int


@dataclass(frozen=True, slots=True)
class CreateAttempt:
    """Record a new attempt, then start it."""

    trial: int
    number: int


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Start a recorded attempt (again: the process that recorded it may have died before it started it)."""

    trial: int
    number: int


@dataclass(frozen=True, slots=True)
class AskStop:
    """Record that the attempt is to stop; the signal follows in the next turn."""

    trial: int
    cause: StopCause
    reason: str


@dataclass(frozen=True, slots=True)
class SendStop:
    trial: int
    grace_s: float


@dataclass(frozen=True, slots=True)
class Suggest:
    count: int


@dataclass(frozen=True, slots=True)
class ChangeState:
    """Of the experiment. `done`: nothing is left to do for this controller."""

    state: ExperimentState
    reason: str
    done: bool


Action: TypeAlias = Complete | Forget | CreateAttempt | StartAttempt | AskStop | SendStop | Suggest | ChangeState


PAUSED = "the experiment was paused before its turn came"


def decide(snapshot: Snapshot) -> list[Action]:
    actions: list[Action] = []
    left: list[OpenTrial] = []  # trials that stay open after what ends here
    forgets: list[Action] = []  # last: nobody waits for them, and a free slot waits for what comes before
    counts = dict(snapshot.counts)
    best = snapshot.best
    for trial in snapshot.trials:
        closing = _close(trial, snapshot)
        if closing is None:
            left.append(trial)
            continue
        (forgets if isinstance(closing, Forget) else actions).append(closing)
        if isinstance(closing, Complete):
            outcome = closing.outcome
            counts[outcome.state] = counts.get(outcome.state, 0) + 1
            if outcome.state is TrialState.SUCCEEDED:
                best = better(best, outcome.value, maximize=snapshot.spec.objective.maximize)
    # Judged with what ends in this very turn: nothing new is asked for after the last failure, or past the target.
    ending = budget.ending(snapshot.spec, counts, best=best, exhausted=snapshot.exhausted, running_s=snapshot.running_s)
    stopping = _stop_cause(snapshot, ending)
    if stopping is not None:
        actions += _stop_everything(left, snapshot, *stopping)
    else:
        actions += _stops(left, snapshot)
        actions += _starts(left, counts, snapshot, suggest=ending is None)
    actions += forgets
    actions += _change(left, actions, snapshot, ending)
    return actions


def beginnings(snapshot: Snapshot) -> list[CreateAttempt]:
    """What can be done about a suggestion at once: its trials begin. All else waits for another look."""
    return [action for action in decide(snapshot) if isinstance(action, CreateAttempt)]


def better(best: float | None, value: float | None, *, maximize: bool) -> float | None:
    """The better of two values, either of which may be missing."""
    if best is None or value is None:
        return value if best is None else best
    return max(best, value) if maximize else min(best, value)


def _stop_cause(snapshot: Snapshot, ending: budget.Ending | None) -> tuple[StopCause, str] | None:
    """Why nothing may go on running, and what becomes of what runs."""
    if snapshot.wish is Wish.STOP:
        return StopCause.CANCELLED, "tuner stop"
    if ending is not None and not ending.drain:
        return StopCause.CANCELLED, ending.reason
    if snapshot.wish is Wish.INTERRUPT:
        return StopCause.INTERRUPTED, "interrupted"
    return None


def _close(trial: OpenTrial, snapshot: Snapshot) -> Complete | Forget | None:
    """The action that ends the trial, if its newest attempt says how; None while there is something to wait for."""
    newest = trial.newest
    if not trial.running:
        return Forget(trial.number) if newest is None or newest.ended else None
    if newest is None:
        return None
    match newest.state:
        case AttemptState.SUCCEEDED:
            return Complete(trial.number, Outcome(TrialState.SUCCEEDED, newest.value))
        case AttemptState.PRUNED:
            value = newest.value if newest.value is not None and math.isfinite(newest.value) else None
            return Complete(trial.number, Outcome(TrialState.PRUNED, value, newest.reason))
        case AttemptState.INFEASIBLE:
            return Complete(trial.number, Outcome(TrialState.INFEASIBLE, reason=newest.reason))
        case AttemptState.CANCELLED if newest.stop_cause is not StopCause.INTERRUPTED:
            return Complete(trial.number, Outcome(TrialState.CANCELLED, reason=newest.reason))
        case AttemptState.FAILED if not _runs_again(trial, snapshot):
            failure_class = newest.failure_class.value if newest.failure_class else ""
            return Complete(trial.number, Outcome(TrialState.FAILED, None, newest.reason, failure_class))
        case _:
            return None


def _runs_again(trial: OpenTrial, snapshot: Snapshot) -> bool:
    """Whether a failed newest attempt is followed by another: a retry of its class, or what a pause was for."""
    newest = trial.newest
    if newest is None or newest.failure_class is None:
        return False
    if newest.failure_class is FailureClass.CONFIGURATION:
        return True  # it paused the experiment; lifting the pause runs it again
    return may_retry(trial.attempts, snapshot.spec.trial.retries)


def _stops(left: Sequence[OpenTrial], snapshot: Snapshot) -> Iterator[Action]:
    for trial in left:
        newest = trial.newest
        if newest is None or newest.ended:
            continue
        if newest.state is AttemptState.STOPPING:
            if trial.number not in snapshot.stops_sent:
                yield SendStop(trial.number, snapshot.spec.trial.grace_s)
        elif not trial.running:
            yield AskStop(trial.number, StopCause.CANCELLED, "the trial was completed by another client")
        elif trial.number in snapshot.advised:
            yield AskStop(trial.number, StopCause.PRUNED, snapshot.advised[trial.number])
        elif trial.number in snapshot.held and snapshot.state is ExperimentState.PAUSED:
            yield AskStop(trial.number, StopCause.INTERRUPTED, PAUSED)


def _stop_everything(left: Sequence[OpenTrial], snapshot: Snapshot, cause: StopCause, reason: str) -> Iterator[Action]:
    grace_s = 0.0 if snapshot.without_grace else snapshot.spec.trial.grace_s
    for trial in left:
        newest = trial.newest
        if newest is None or newest.ended:
            # It waits to run (again). Interrupted, it goes on waiting; cancelled, that is its outcome.
            if cause is StopCause.CANCELLED and trial.running:
                yield Complete(trial.number, Outcome(TrialState.CANCELLED, reason=reason))
        elif newest.state is not AttemptState.STOPPING:
            yield AskStop(trial.number, cause, reason)
        elif snapshot.stops_sent.get(trial.number, math.inf) > grace_s:
            yield SendStop(trial.number, grace_s)


def _starts(
    left: Sequence[OpenTrial], counts: Mapping[TrialState, int], snapshot: Snapshot, *, suggest: bool
) -> Iterator[Action]:
    """Attempts to start, oldest trial first. `suggest`: new trials may be asked for; without it (nothing more to try)
    what was begun goes on, its retries too."""
    paused = snapshot.state is ExperimentState.PAUSED
    free = _limit(snapshot) - sum(trial.occupies_slot for trial in left)
    for trial in left:
        newest = trial.newest
        if newest is not None and newest.state is AttemptState.CREATED:
            if trial.number in snapshot.held:
                continue
            if trial.running and trial.number not in snapshot.advised:  # else it was just asked to stop
                yield StartAttempt(trial.number, newest.number)
        elif trial.running and not trial.occupies_slot and not paused and free > 0:
            free -= 1
            yield CreateAttempt(trial.number, 1 if newest is None else newest.number + 1)
    if not suggest or paused or free <= 0:
        return
    room = budget.room(snapshot.spec, counts, sum(trial.running for trial in left))
    count = min(free, MAX_SUGGESTIONS) if room is None else min(free, MAX_SUGGESTIONS, room)
    if count > 0:
        yield Suggest(count)


def _limit(snapshot: Snapshot) -> int:
    """How many attempts may be named and not ended. Successors beyond `parallelism` are named ahead of need only where
    that is worth it; `Launch.slots` keeps them from running. Which GPUs one gets is known when it starts."""
    wanted = snapshot.spec.parallelism if snapshot.canary_over else 1
    if snapshot.slots is not None:
        return min(wanted, snapshot.slots)
    return wanted + min(wanted, MAX_AHEAD) if snapshot.ahead and snapshot.canary_over else wanted


def _change(
    left: Sequence[OpenTrial], actions: Sequence[Action], snapshot: Snapshot, ending: budget.Ending | None
) -> Iterator[ChangeState]:
    """The experiment's own state: at most one change a turn, and `done` only when nothing is open or under way."""
    busy = any(trial.occupies_slot for trial in left) or bool(actions)
    if snapshot.wish is Wish.STOP:
        if left or actions:
            if snapshot.state is not ExperimentState.STOPPING:
                yield ChangeState(ExperimentState.STOPPING, "tuner stop", False)
        else:
            yield ChangeState(ExperimentState.STOPPED, "stopped by tuner stop", True)
    elif ending is not None and not left and not actions:
        yield ChangeState(ending.state, ending.reason, True)
    elif snapshot.slots == 0 and snapshot.state is not ExperimentState.PAUSED and not busy:
        trial = snapshot.spec.trial
        asked = f"{trial.resources.gpu:g} GPUs" + (f" for each of {trial.workers} workers" if trial.workers > 1 else "")
        yield ChangeState(ExperimentState.PAUSED, f"a trial asks for {asked}: more than this machine has", True)
    elif snapshot.state is ExperimentState.PAUSED:
        if not busy:
            yield ChangeState(ExperimentState.PAUSED, "", True)
    elif snapshot.wish is Wish.INTERRUPT and not busy:
        yield ChangeState(ExperimentState.STOPPED, "interrupted; its trials run again on resume", True)
