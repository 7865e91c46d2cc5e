"""The input and the output of a decision: a snapshot of the experiment, and the actions.

Pure values; `controller.core.decide` turns a snapshot into actions.
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
    ReasonCode,
    StopCause,
    TrialOrFinal,
)
from controller.core.spending import NOTHING_SPENT, Spent
from suggest.trial import Outcome, TrialState


class DesiredState(enum.Enum):
    """What a person has asked the controller to do."""

    RUN = "run"
    # As study.stop() in a callback of Optuna: running trials finish, and no more begin.
    FINISH = "finish"
    # First Ctrl-C: stop cleanly; the trials run again on resume.
    INTERRUPT = "interrupt"
    # Tuner stop: cancel the running trials for good.
    STOP = "stop"


# `Snapshot.elsewhere` as long as nobody has counted them: no trial may begin.
UNCOUNTED = 1 << 31


@dataclass(frozen=True, slots=True)
class UnfinishedTrial:
    """A trial that the controller is not done with.

    running: the study still waits for its outcome. False if another client completed the trial and
    only its attempt has to be stopped.
    """

    number: TrialOrFinal
    attempts: tuple[Attempt, ...] = ()
    running: bool = True
    fidelity: float | None = None  # up to which it has to run now

    @property
    def goes_on(self) -> bool:
        """Return whether its newest attempt ended at a smaller fidelity.

        Another one continues it.
        """
        newest = self.newest
        if newest is None or newest.fidelity == self.fidelity:
            return False
        return newest.state is AttemptState.SUCCEEDED

    @property
    def newest(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def occupies_slot(self) -> bool:
        return self.newest is not None and not self.newest.ended


@dataclass(frozen=True, slots=True)
class FinalStage:
    """The final stage: the best parameters, run once more after the search.

    Its attempts have the states of a trial's.

    attempts: those made since the search last ended.
    earlier: how many attempts there were before that.
    kept: the runtime still holds objects of these attempts.
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
        """Return the failure as the end of a sentence; "" unless the final stage failed."""
        failed = self.newest is not None and self.newest.state is AttemptState.FAILED
        return f"; its final stage failed: {self.newest.reason}" if failed and self.newest else ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a decision depends on.

    counts: finished trials by outcome.
    without_grace: attempts that are stopped are killed at once.
    slots: how many attempts the runtime can hold; None means no limit.
    canary_over: the first trial has shown that it works, so more than one may run.
    advised: trials that the study advises to stop, with its reason.
    stops_sent: trials whose newest attempt this process has asked to stop, with the grace period in
        seconds.
    removed: trials whose newest attempt this process has removed from the runtime.
    held: trials whose newest attempt the runtime has accepted but does not run yet, for lack of
        room.
    barred: trials whose newest attempt may not run at present, with the reason.
    prefetch: how many successors may be created before a slot is free for them.
    final: None if the file has no final stage and none was begun.
    streak: the failures that the circuit breaker looks at.
    set_aside: trials whose failures the breaker has set aside; `counts` leaves them out.
    paused: paused trials and the fidelity that each has reached; the study decides which of them
        continue.
    none_goes_on: the study has said that no paused trial continues as long as no other one ends.
    none_begins: the study has said that no new trial begins as long as no running one ends.
    regret_bound: how much better than the best trial another point may still be; None while that is
        unknown.
    estimated: how many trials had ended when it was last bounded.
    elsewhere: how many trials of the search another controller runs, which has handed it over.
    spent: what all attempts have used, if the budget limits it.
    ended_by: see `Experiment`.
    """

    spec: ExperimentSpec
    state: ExperimentState
    trials: Sequence[UnfinishedTrial]
    counts: Mapping[TrialState, int]
    desired: DesiredState = DesiredState.RUN
    without_grace: bool = False
    best: float | None = None
    since_best: int = 0  # `budget.Standing` explains this and `reached`
    reached: str = ""
    exhausted: bool = False
    running_s: float = 0.0
    slots: int | None = None
    canary_over: bool = True
    advised: Mapping[TrialOrFinal, str] = field(default_factory=dict)
    stops_sent: Mapping[TrialOrFinal, float] = field(default_factory=dict)
    removed: Set[TrialOrFinal] = frozenset()
    held: Set[TrialOrFinal] = frozenset()
    barred: Mapping[TrialOrFinal, str] = field(default_factory=dict)
    prefetch: int = 0
    final: FinalStage | None = None
    streak: Streak = field(default_factory=Streak)
    set_aside: Set[int] = frozenset()
    paused: Mapping[int, float] = field(default_factory=dict)
    none_goes_on: bool = False
    none_begins: bool = False
    regret_bound: float | None = None
    estimated: int = 0
    elsewhere: int = 0
    spent: Spent = NOTHING_SPENT
    ended_by: str = ""


@dataclass(frozen=True, slots=True)
class Complete:
    """Tell the study how the trial ended, then forget its attempts in the runtime.

    A trial that succeeds below the largest fidelity is paused then, not ended.
    """

    trial: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop a trial whose outcome the study has from another client, or the finished final stage."""

    trial: TrialOrFinal


@dataclass(frozen=True, slots=True)
class CreateAttempt:
    """Record a new attempt, then start it."""

    trial: TrialOrFinal
    number: int


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Start a recorded attempt, possibly again.

    The process that recorded it may have died before starting it.
    """

    trial: TrialOrFinal
    number: int


@dataclass(frozen=True, slots=True)
class AskStop:
    """Record that the attempt has to stop; the signal follows in the next turn."""

    trial: TrialOrFinal
    cause: StopCause
    reason: str


@dataclass(frozen=True, slots=True)
class SendStop:
    trial: TrialOrFinal
    grace_s: float


@dataclass(frozen=True, slots=True)
class RemoveAttempt:
    """Remove a failed newest attempt from the runtime.

    This kills its remaining processes and frees its quota for the next attempt.
    """

    trial: TrialOrFinal


@dataclass(frozen=True, slots=True)
class Suggest:
    """Request trials. paused_only: only paused ones, because no new trial may begin."""

    count: int
    paused_only: bool = False


@dataclass(frozen=True, slots=True)
class BoundRegret:
    """Ask the study how much better than the best trial another point may still be.

    ended: trials that have ended.
    """

    ended: int


@dataclass(frozen=True, slots=True)
class OutdateFinal:
    """Record that the search continues: the final stage's attempts belong to its earlier end."""


@dataclass(frozen=True, slots=True)
class OpenBreaker:
    """Open the circuit breaker: pause the experiment and set aside the failures of these trials.

    The trials run again on resume and do not count until then.
    `reason` is "" if the experiment is paused already.
    """

    trials: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ChangeState:
    """Change the experiment's state. With `done`, nothing is left to do for this controller.

    An empty `reason` keeps the recorded reason and its code.
    """

    state: ExperimentState
    reason: str
    done: bool
    code: ReasonCode | None = None


Action: TypeAlias = (
    Complete
    | Forget
    | CreateAttempt
    | StartAttempt
    | AskStop
    | SendStop
    | RemoveAttempt
    | Suggest
    | BoundRegret
    | OutdateFinal
    | OpenBreaker
    | ChangeState
)
