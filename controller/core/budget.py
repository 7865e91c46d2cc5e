"""The budget: when an experiment is over, and how many more trials it may start.

Pure functions of counts and times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.core.model import ExperimentSpec, ExperimentState, ReasonCode
from controller.phrases import quantity
from suggest.estimate import LEAST_TRIALS
from suggest.trial import TrialState


@dataclass(frozen=True, slots=True)
class Ending:
    """The experiment is over.

    With `drain`, running trials may still finish; otherwise they are cancelled.
    """

    state: ExperimentState
    reason: str
    drain: bool
    code: ReasonCode


def spent_trials(counts: Mapping[TrialState, int]) -> int:
    """Return how many finished trials count against the budget: all but the cancelled ones."""
    return sum(
        n for state, n in counts.items() if state.finished and state is not TrialState.CANCELLED
    )


def room(spec: ExperimentSpec, counts: Mapping[TrialState, int], unfinished: int) -> int | None:
    """Return how many more trials may be requested while `unfinished` ones are open.

    None means no limit.
    """
    if spec.budget.trials is None:
        return None
    return max(0, spec.budget.trials - spent_trials(counts) - unfinished)


def too_many_failed(spec: ExperimentSpec, counts: Mapping[TrialState, int]) -> bool:
    """Return whether the limit of failed trials is reached."""
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
    regret_bound: float | None = None,
    suspended: bool = False,
    paused: int = 0,
) -> Ending | None:
    """Return the strongest reason to end the experiment, or None while there is none.

    The limit of failures comes before the target: if an experiment reaches both in the same turn,
    it is reported as failed, because a person has to look at the failures.

    Args:
        best: The best value of a succeeded trial. An experiment without a succeeded trial fails,
            whatever ends it.
        exhausted: The search has no further point.
        since_best: How many trials have ended since the last one that was the best or joined the
            Pareto front.
        reached: With several objectives or constraints, the targets once a trial has reached all of
            them. With one objective, `best` decides.
        regret_bound: How much better than the best trial another point may still be; None while
            that is unknown.
        suspended: The circuit breaker has not decided about the failures yet. Until then only the
            target and the wall clock end the experiment.
        paused: How many trials wait for a larger fidelity. None of them can be the best.
    """
    budget, objective = spec.budget, spec.objective
    if too_many_failed(spec, counts) and not suspended:
        failed = quantity(counts[TrialState.FAILED], "trial")
        reason = f"{failed} failed (budget.failedTrials: {budget.failed_trials})"
        return Ending(ExperimentState.FAILED, reason, False, ReasonCode.TOO_MANY_FAILURES)
    if spec.criteria.is_plain and best is not None and objective.reaches_target(best):
        reached = f"{objective.metric} {best:g} (objective.target: {objective.target:g})"
    if reached:
        reason = f"the target was reached: {reached}"
        return Ending(ExperimentState.SUCCEEDED, reason, False, ReasonCode.TARGET_REACHED)
    succeeded = best is not None or (
        not spec.criteria.is_plain and counts.get(TrialState.SUCCEEDED, 0) > 0
    )
    if budget.wall_clock_s is not None and running_s >= budget.wall_clock_s:
        return _out_of_time(
            spec, budget.wall_clock_s, succeeded, partial=paused + counts.get(TrialState.PRUNED, 0)
        )
    if suspended:
        return None
    if budget.trials is not None and spent_trials(counts) >= budget.trials:
        done = (
            "its one trial is done"
            if budget.trials == 1
            else f"all {budget.trials} trials are done"
        )
        return _spent(done, ReasonCode.TRIALS_DONE, succeeded, drain=True)
    if budget.no_improvement is not None and since_best >= budget.no_improvement:
        reason = (
            f"no improvement in {quantity(since_best, 'trial')} (budget.noImprovement: "
            f"{budget.no_improvement})"
        )
        return _spent(reason, ReasonCode.NO_IMPROVEMENT, succeeded, drain=True)
    if (
        budget.regret_below is not None
        and regret_bound is not None
        and regret_bound <= budget.regret_below
    ):
        reason = f"no point is likely to be better by more than {regret_bound:.3g}"
        reason += f" (budget.regretBelow: {budget.regret_below:g})"
        return _spent(reason, ReasonCode.REGRET_BELOW, succeeded, drain=True)
    if exhausted:
        reason = "every point of the search space has been tried"
        return _spent(reason, ReasonCode.SPACE_EXHAUSTED, succeeded, drain=True)
    return None


def _out_of_time(spec: ExperimentSpec, limit_s: float, succeeded: bool, *, partial: int) -> Ending:
    """Return the end by time. `partial` trials have ended or wait below the largest fidelity."""
    reason = f"the time budget is used up (budget.wallClock: {limit_s:g} s)"
    if succeeded or not partial or spec.fidelity is None:
        return _spent(reason, ReasonCode.TIME_SPENT, succeeded, drain=False)
    whole = f"{spec.fidelity.parameter} {spec.fidelity.max:g}"
    reason = (
        f"{reason} before a trial reached {whole}; raise budget.wallClock, or lower fidelity.max"
    )
    return Ending(ExperimentState.FAILED, reason, False, ReasonCode.NO_TRIAL_SUCCEEDED)


def ends_without_reruns(
    spec: ExperimentSpec,
    counts: Mapping[TrialState, int],
    *,
    best: float | None,
    reached: str,
    running_s: float,
) -> bool:
    """Return whether the search is over although trials are set aside, which do not run again then.

    `counts`, `best` and `reached` are of all other trials.
    """
    over = ending(
        spec,
        counts,
        best=best,
        exhausted=False,
        running_s=running_s,
        reached=reached,
        suspended=True,
    )
    return over is not None


def needs_estimate(spec: ExperimentSpec, counts: Mapping[TrialState, int], estimated: int) -> bool:
    """Return whether the regret has to be bounded (again).

    estimated: how many trials had ended when it was last bounded. It is bounded again when a
    twentieth more have ended, because that takes as long as to fit a model.
    """
    ended = spent_trials(counts)
    if spec.budget.regret_below is None or counts.get(TrialState.SUCCEEDED, 0) < LEAST_TRIALS:
        return False
    return ended >= estimated + max(1, estimated // 20)


def ending_of(
    spec: ExperimentSpec, outcomes: Iterable[tuple[TrialState, float | None]], *, running_s: float
) -> Ending | None:
    """Return the ending that continuing with these outcomes under `spec` would reach at once."""
    counts: dict[TrialState, int] = {}
    best: float | None = None
    for state, value in outcomes:
        counts[state] = counts.get(state, 0) + 1
        if state is TrialState.SUCCEEDED:
            best = spec.objective.better(best, value)
    return ending(spec, counts, best=best, exhausted=False, running_s=running_s)


def _spent(reason: str, code: ReasonCode, succeeded: bool, *, drain: bool) -> Ending:
    """Return the ending of a spent budget.

    The last running trials may finish: one may be the first to succeed.
    """
    if not succeeded:
        return Ending(
            ExperimentState.FAILED,
            f"{reason}; no trial succeeded",
            drain,
            ReasonCode.NO_TRIAL_SUCCEEDED,
        )
    return Ending(ExperimentState.SUCCEEDED, reason, drain, code)
