"""When an experiment is over, and how many more trials it may start. Pure: counts and times in, a verdict out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.model import ExperimentSpec, ExperimentState
from controller.phrases import quantity
from suggest.trial import TrialState


@dataclass(frozen=True, slots=True)
class Ending:
    """The experiment is over. `drain`: what runs may still finish; otherwise it is cancelled."""

    state: ExperimentState
    reason: str
    drain: bool


def counted(counts: Mapping[TrialState, int]) -> int:
    """Finished trials that cost budget: every outcome but cancelled."""
    return sum(n for state, n in counts.items() if state.finished and state is not TrialState.CANCELLED)


def room(spec: ExperimentSpec, counts: Mapping[TrialState, int], unfinished: int) -> int | None:
    """How many more trials may be asked for, when `unfinished` are under way; None = no limit."""
    if spec.budget.trials is None:
        return None
    return max(0, spec.budget.trials - counted(counts) - unfinished)


def ending(
    spec: ExperimentSpec, counts: Mapping[TrialState, int], *, best: float | None, exhausted: bool, running_s: float
) -> Ending | None:
    """The first reason to end, the strongest first; None while there is none.

    `best`: the best value of a succeeded trial. `exhausted`: the search has no further point. Failures come before the
    target: an experiment that met both in one turn is reported as the one that a person has to look at.
    """
    budget, objective = spec.budget, spec.objective
    failed = counts.get(TrialState.FAILED, 0)
    if budget.failed_trials is not None and failed >= budget.failed_trials:
        limit = f"{quantity(failed, 'trial')} failed (budget.failedTrials: {budget.failed_trials})"
        return Ending(ExperimentState.FAILED, limit, False)
    if objective.target is not None and best is not None:
        reached = best >= objective.target if objective.maximize else best <= objective.target
        if reached:
            goal = f"the target was reached: {objective.metric} {best:g} (objective.target: {objective.target:g})"
            return Ending(ExperimentState.SUCCEEDED, goal, False)
    if budget.wall_clock_s is not None and running_s >= budget.wall_clock_s:
        spent = f"the wall clock is spent (budget.wallClock: {budget.wall_clock_s:g} s)"
        return Ending(ExperimentState.SUCCEEDED, spent, False)
    if budget.trials is not None and counted(counts) >= budget.trials:
        done = "its one trial is done" if budget.trials == 1 else f"all {budget.trials} trials are done"
        return Ending(ExperimentState.SUCCEEDED, done, True)
    if exhausted:
        return Ending(ExperimentState.SUCCEEDED, "every point of the search space was tried", True)
    return None
