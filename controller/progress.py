"""What a running experiment looks like from outside: values that the loop hands to whoever draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from controller.model import AttemptState, Experiment
from suggest.space import Assignment
from suggest.trial import Trial, TrialState


@dataclass(frozen=True, slots=True)
class RunningTrial:
    number: int
    attempt: int
    state: AttemptState
    start_time: datetime | None
    step: int | None  # of the objective's last reading
    value: float | None
    parameters: Assignment


@dataclass(frozen=True, slots=True)
class Progress:
    """trend: the best value after each succeeded trial. canary: the first trial still runs alone. exhausted: the search
    has no further point. trouble: what it waits for, if service, store or runtime does not answer. stopping: somebody
    asked it to stop.
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
