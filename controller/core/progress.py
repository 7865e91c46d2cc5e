"""The progress of a running experiment: the values that the loop passes to the views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from controller.core.forecast import Forecast
from controller.core.model import FINAL, AttemptKey, AttemptState, Experiment, TrialOrFinal
from suggest.space import Assignment
from suggest.trial import Trial, TrialState


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A trial with an open attempt.

    waiting_for: why the attempt does not run yet; "" once it runs, or while the reason is unknown.
    """

    number: TrialOrFinal
    attempt: int
    state: AttemptState
    start_time: datetime | None
    step: int | None  # the step of the objective's last reading
    value: float | None
    parameters: Assignment
    waiting_for: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one experiment at one moment.

    trend: the best value after each succeeded trial.
    canary: the first trial still runs alone.
    exhausted: the search has no further point.
    trouble: the error that the loop waits out, if the service, the store or the runtime does not
        answer.
    stopping: a person has asked the experiment to stop.
    elsewhere: how many of its trials another controller runs.
    optimal: the size of the Pareto front; None with a single objective.
    known: its trials have been loaded; until then all counts are 0.
    forecast: what it will have used, if the budget limits that and something is known.
    without_objects: the attempts of open trials whose objects have been deleted.
    """

    experiment: Experiment
    counts: Mapping[TrialState, int]
    queued: int
    running: tuple[RunningTrial, ...]
    best: Trial | None
    trend: tuple[float, ...]
    canary: bool = False
    exhausted: bool = False
    trouble: str = ""
    stopping: bool = False
    elsewhere: int = 0
    optimal: int | None = None
    known: bool = True
    forecast: Forecast | None = None
    without_objects: frozenset[AttemptKey] = frozenset()

    @property
    def final_runs(self) -> bool:
        """Return whether the final stage is running; `running` lists it under its own number."""
        return any(attempt.number is FINAL for attempt in self.running)

    @property
    def at_work(self) -> tuple[RunningTrial, ...]:
        return tuple(trial for trial in self.running if not trial.waiting_for)

    @property
    def held_up(self) -> tuple[RunningTrial, ...]:
        """Return the trials whose attempts the runtime has accepted but cannot run yet."""
        return tuple(trial for trial in self.running if trial.waiting_for)
