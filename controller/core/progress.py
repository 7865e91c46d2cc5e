"""What a running experiment looks like from outside: values that the loop gives to the views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from controller.core.model import FINAL, AttemptState, Experiment, TrialOrFinal
from suggest.space import Assignment
from suggest.trial import Trial, TrialState


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """waiting_for: why its attempt does not run yet; "" once it does, and while nobody has said why."""

    number: TrialOrFinal
    attempt: int
    state: AttemptState
    start_time: datetime | None
    step: int | None  # of the objective's last reading
    value: float | None
    parameters: Assignment
    waiting_for: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """trend: the best value after each succeeded trial. canary: the first trial still runs alone. exhausted: the search
    has no further point. trouble: what it waits for, if service, store or runtime does not answer. stopping: somebody
    asked it to stop. known: its trials were looked up; before that all counts are 0.
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
    known: bool = True

    @property
    def final_runs(self) -> bool:
        """The final stage is what runs; it is among `running` under its own number."""
        return any(each.number is FINAL for each in self.running)

    @property
    def at_work(self) -> tuple[RunningTrial, ...]:
        return tuple(trial for trial in self.running if not trial.waiting_for)

    @property
    def held_up(self) -> tuple[RunningTrial, ...]:
        """Handed over to run, and still waiting there for room."""
        return tuple(trial for trial in self.running if trial.waiting_for)
