"""When an experiment is over, and how many more trials it may start. Pure: counts and times in, a verdict out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.core.model import ExperimentSpec, ExperimentState
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


def too_many_failed(spec: ExperimentSpec, counts: Mapping[TrialState, int]) -> bool:
    """The limit of failures is reached."""
    limit = spec.budget.failed_trials
    return limit is not None and counts.get(TrialState.FAILED, 0) >= limit


def ending(
    spec: ExperimentSpec,
    counts: Mapping[TrialState, int],
    *,
    best: float | None,
    exhausted: bool,
    running_s: float,
    since_best: int = 0,
    reached: str = "",
    suspended: bool = False,
) -> Ending | None:
    """The first reason to end, the strongest first; None while there is none.

    `best`: the best value of a succeeded trial; without a succeeded trial, whatever ends the experiment, it has failed.
    `exhausted`: the search has no further point. `since_best`: trials that have ended since one was the best, or joined
    the Pareto front. `reached`: with several objectives or constraints, the targets once a trial has reached them
    all; with one objective `best` tells. Failures come before the target: an experiment that met both in one turn is
    reported as the one that a person has to look at. `suspended`: the circuit breaker is not done with the failures;
    until then only the target and the wall clock end it.
    """
    budget, objective = spec.budget, spec.objective
    if too_many_failed(spec, counts) and not suspended:
        failed = quantity(counts[TrialState.FAILED], "trial")
        return Ending(ExperimentState.FAILED, f"{failed} failed (budget.failedTrials: {budget.failed_trials})", False)
    if spec.criteria.is_plain and best is not None and objective.reaches_target(best):
        reached = f"{objective.metric} {best:g} (objective.target: {objective.target:g})"
    if reached:
        return Ending(ExperimentState.SUCCEEDED, f"the target was reached: {reached}", False)
    succeeded = best is not None or (not spec.criteria.is_plain and counts.get(TrialState.SUCCEEDED, 0) > 0)
    if budget.wall_clock_s is not None and running_s >= budget.wall_clock_s:
        return _spent(
            f"the time budget is used up (budget.wallClock: {budget.wall_clock_s:g} s)", succeeded, drain=False
        )
    if suspended:
        return None
    if budget.trials is not None and counted(counts) >= budget.trials:
        done = "its one trial is done" if budget.trials == 1 else f"all {budget.trials} trials are done"
        return _spent(done, succeeded, drain=True)
    if budget.no_improvement is not None and since_best >= budget.no_improvement:
        told = f"no improvement in {quantity(since_best, 'trial')} (budget.noImprovement: {budget.no_improvement})"
        return _spent(told, succeeded, drain=True)
    if exhausted:
        return _spent("every point of the search space has been tried", succeeded, drain=True)
    return None


def ending_of(
    spec: ExperimentSpec, outcomes: Iterable[tuple[TrialState, float | None]], *, running_s: float
) -> Ending | None:
    """How an experiment whose trials ended like this would end at once if it went on under `spec`."""
    counts: dict[TrialState, int] = {}
    best: float | None = None
    for state, value in outcomes:
        counts[state] = counts.get(state, 0) + 1
        if state is TrialState.SUCCEEDED:
            best = spec.objective.better(best, value)
    return ending(spec, counts, best=best, exhausted=False, running_s=running_s)


def _spent(reason: str, succeeded: bool, *, drain: bool) -> Ending:
    """There is nothing left to spend. While the last trials still run, the first value may be theirs."""
    if not succeeded:
        return Ending(ExperimentState.FAILED, f"{reason}; no trial succeeded", drain)
    return Ending(ExperimentState.SUCCEEDED, reason, drain)
