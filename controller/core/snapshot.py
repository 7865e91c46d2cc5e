"""What a decision is made on, and what it may ask for: the situation of an experiment in one value, and the actions.

Pure values; `controller.core.decide` turns the one into the other.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeAlias

from controller.core.breaker import Streak
from controller.core.model import (
    FINAL,
    Attempt,
    AttemptState,
    ExperimentSpec,
    ExperimentState,
    StopCause,
    TrialOrFinal,
)
from suggest.trial import Outcome, TrialState


class DesiredState(enum.Enum):
    """What a person has asked for."""

    RUN = "run"
    INTERRUPT = "interrupt"  # first Ctrl-C: stop cleanly, run again on resume
    STOP = "stop"  # tuner stop: cancel what runs, for good


@dataclass(frozen=True, slots=True)
class UnfinishedTrial:
    """A trial with something left to do. `running`: the study still waits for its outcome; False when somebody else
    completed it and only its attempt is left to be stopped."""

    number: TrialOrFinal
    attempts: tuple[Attempt, ...] = ()
    running: bool = True

    @property
    def newest(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def occupies_slot(self) -> bool:
        return self.newest is not None and not self.newest.ended


@dataclass(frozen=True, slots=True)
class FinalStage:
    """The best parameters, run once more when the search has ended; its attempts live as a trial's do.

    attempts: since the search last ended. earlier: how many there were before that. kept: the runtime still has
    something of them.
    """

    attempts: tuple[Attempt, ...] = ()
    earlier: int = 0
    kept: bool = False

    @property
    def as_trial(self) -> UnfinishedTrial:
        return UnfinishedTrial(FINAL, self.attempts)

    @property
    def newest(self) -> Attempt | None:
        return self.as_trial.newest

    @property
    def active(self) -> bool:
        return self.as_trial.occupies_slot

    @property
    def next_number(self) -> int:
        return self.earlier + 1 if self.newest is None else self.newest.number + 1

    @property
    def failure(self) -> str:
        """For the end of a sentence; "" unless it failed."""
        failed = self.newest is not None and self.newest.state is AttemptState.FAILED
        return f"; its final stage failed: {self.newest.reason}" if failed and self.newest else ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision depends on.

    counts: finished trials by outcome. without_grace: what is stopped is killed at once. slots: what the runtime can
    hold, None = no limit. canary_over: the first trial has shown itself. advised: trials that the study says are
    hopeless, and why. stops_sent: trials whose newest attempt was told to stop in this process's life, and its grace.
    removed: trials whose newest attempt was removed from the runtime in this process's life.
    held: trials whose newest attempt the runtime has accepted and does not run yet: it waits for room there.
    ahead: how many successors may be named before a slot is free for them. final: None = the file has no final stage,
    and none was begun. streak: the failures that the circuit breaker looks at. set_aside: trials whose failures it has
    set aside; `counts` leaves them out.
    """

    spec: ExperimentSpec
    state: ExperimentState
    trials: Sequence[UnfinishedTrial]
    counts: Mapping[TrialState, int]
    desired: DesiredState = DesiredState.RUN
    without_grace: bool = False
    best: float | None = None
    since_best: int = 0  # see `budget.ending`, as is `reached`
    reached: str = ""
    exhausted: bool = False
    running_s: float = 0.0
    slots: int | None = None
    canary_over: bool = True
    advised: Mapping[TrialOrFinal, str] = field(default_factory=dict)
    stops_sent: Mapping[TrialOrFinal, float] = field(default_factory=dict)
    removed: Set[TrialOrFinal] = frozenset()
    held: Set[TrialOrFinal] = frozenset()
    ahead: int = 0
    final: FinalStage | None = None
    streak: Streak = field(default_factory=Streak)
    set_aside: Set[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Complete:
    """Tell the study how the trial ended, then forget its attempts in the runtime."""

    trial: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Forget:
    """The study has this trial's outcome from somebody else: drop what is left of it here."""

    trial: TrialOrFinal


@dataclass(frozen=True, slots=True)
class CreateAttempt:
    """Record a new attempt, then start it."""

    trial: TrialOrFinal
    number: int


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Start a recorded attempt (again: the process that recorded it may have died before it started it)."""

    trial: TrialOrFinal
    number: int


@dataclass(frozen=True, slots=True)
class AskStop:
    """Record that the attempt is to stop; the signal follows in the next turn."""

    trial: TrialOrFinal
    cause: StopCause
    reason: str


@dataclass(frozen=True, slots=True)
class SendStop:
    trial: TrialOrFinal
    grace_s: float


@dataclass(frozen=True, slots=True)
class RemoveAttempt:
    """The newest attempt has failed and will be followed by another: end what still runs of it, and free its quota."""

    trial: TrialOrFinal


@dataclass(frozen=True, slots=True)
class Suggest:
    count: int


@dataclass(frozen=True, slots=True)
class OutdateFinal:
    """The search goes on: what the final stage did belongs to an earlier end of it."""


@dataclass(frozen=True, slots=True)
class Break:
    """The circuit breaker pauses the experiment: these failed trials run again on resume, and do not count until then.
    `reason`: "" where it is paused already."""

    trials: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ChangeState:
    """Of the experiment. `done`: nothing is left to do for this controller."""

    state: ExperimentState
    reason: str
    done: bool


Action: TypeAlias = (
    Complete
    | Forget
    | CreateAttempt
    | StartAttempt
    | AskStop
    | SendStop
    | RemoveAttempt
    | Suggest
    | OutdateFinal
    | Break
    | ChangeState
)
