"""The budget: when an experiment is over, and how many more trials it may start.

Pure functions of counts and times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.core.model import (
    END_BY_THEMSELVES,
    Budget,
    ExperimentSpec,
    ExperimentState,
    Overrun,
    ReasonCode,
)
from controller.core.spending import HOUR_S, NOTHING_SPENT, Spent
from controller.phrases import quantity
from suggest.estimate import LEAST_TRIALS
from suggest.grid import grid_points
from suggest.trial import TrialState

# Trials that no search runs, and whose hours are still a float: as good as no limit.
UNLIMITED = 10**15


@dataclass(frozen=True, slots=True)
class Ending:
    """The experiment is over.

    With `drain`, running trials may still finish; otherwise they are cancelled. With `closed`, no
    attempt begins meanwhile, not even that of a trial which waits for its first one or a retry.
    """

    state: ExperimentState
    reason: str
    drain: bool
    code: ReasonCode
    closed: bool = False


def spent_trials(counts: Mapping[TrialState, int]) -> int:
    """Return how many finished trials count against the budget: all but the cancelled ones."""
    return sum(
        n for state, n in counts.items() if state.finished and state is not TrialState.CANCELLED
    )


def most_trials(spec: ExperimentSpec) -> int | None:
    """Return how many trials a search has at most; None without a limit.

    A grid has no more than its points.
    """
    is_grid = spec.algorithm.name in END_BY_THEMSELVES and not spec.define_by_run
    limits = [spec.budget.trials, grid_points(spec.space) if is_grid else None]
    most = min((each for each in limits if each is not None), default=None)
    return None if most is None or most > UNLIMITED else most


def room(spec: ExperimentSpec, counts: Mapping[TrialState, int], unfinished: int) -> int | None:
    """Return how many more trials may be requested beside `unfinished` ones; None: no limit."""
    if spec.budget.trials is None:
        return None
    return max(0, spec.budget.trials - spent_trials(counts) - unfinished)


def too_many_failed(spec: ExperimentSpec, counts: Mapping[TrialState, int]) -> bool:
    """Return whether the limit of failed trials is reached."""
    limit = spec.budget.failed_trials
    return limit is not None and counts.get(TrialState.FAILED, 0) >= limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a search has come.

    Attributes:
        counts: Finished trials by outcome.
        best: The best value of a succeeded trial. An experiment without a succeeded trial fails,
            whatever ends it.
        exhausted: The search has no further point.
        since_best: How many trials have ended since the last one that was the best or joined the
            Pareto front.
        reached: With several objectives or constraints, the targets once a trial has reached all of
            them. With one objective, `best` decides.
        regret_bound: How much better than the best trial another point may still be; None while
            that is unknown.
        paused: How many trials wait for a larger fidelity. None of them can be the best.
        spent: What all attempts have used so far.
        ended_by: See `Experiment`.
        idle: No trial is open or paused.
    """

    counts: Mapping[TrialState, int]
    best: float | None
    running_s: float
    exhausted: bool = False
    since_best: int = 0
    reached: str = ""
    regret_bound: float | None = None
    paused: int = 0
    spent: Spent = NOTHING_SPENT
    ended_by: str = ""
    idle: bool = False


def ending(spec: ExperimentSpec, standing: Standing, *, suspended: bool = False) -> Ending | None:
    """Return the strongest reason to end the experiment, or None while there is none.

    The limit of failures comes before the target: if an experiment reaches both in the same turn,
    it is reported as failed, because a person has to look at the failures.

    suspended: The circuit breaker has not decided about the failures yet. Until then only the
    target, a trial, the wall clock and what attempts have used end the experiment.
    """
    budget, objective = spec.budget, spec.objective
    counts, best, reached = standing.counts, standing.best, standing.reached
    if too_many_failed(spec, counts) and not suspended:
        failed = quantity(counts[TrialState.FAILED], "trial")
        reason = f"{failed} failed (budget.failedTrials: {budget.failed_trials})"
        return Ending(ExperimentState.FAILED, reason, False, ReasonCode.TOO_MANY_FAILURES)
    if spec.criteria.is_plain and best is not None and objective.reaches_target(best):
        reached = f"{objective.metric} {best:g} (objective.target: {objective.target:g})"
    if reached:
        reason = f"the target was reached: {reached}"
        return Ending(ExperimentState.SUCCEEDED, reason, False, ReasonCode.TARGET_REACHED)
    some_succeeded = counts.get(TrialState.SUCCEEDED, 0) > 0
    succeeded = best is not None or (some_succeeded and not spec.criteria.is_plain)
    limit = _used_up(spec, standing)
    over = None if suspended else _over(spec, standing, succeeded)
    # The last trial or the final stage may reach a limit that keeps no other from beginning.
    if limit is not None and not (standing.idle and over):
        partial = standing.paused + counts.get(TrialState.PRUNED, 0)
        return limit.ending(spec, succeeded, partial=partial)
    if standing.ended_by:
        reason = f"{standing.ended_by} called study.stop()"
        return _spent(reason, ReasonCode.STOPPED_BY_TRIAL, succeeded, drain=True, closed=True)
    return over


def _over(spec: ExperimentSpec, standing: Standing, succeeded: bool) -> Ending | None:
    """Return the end of a search that needs no further trial."""
    budget, counts = spec.budget, standing.counts
    if budget.trials is not None and spent_trials(counts) >= budget.trials:
        done = f"all {budget.trials} trials are done"
        if budget.trials == 1:
            done = "its one trial is done"
        return _spent(done, ReasonCode.TRIALS_DONE, succeeded, drain=True)
    if budget.no_improvement is not None and standing.since_best >= budget.no_improvement:
        reason = (
            f"no improvement in {quantity(standing.since_best, 'trial')} (budget.noImprovement: "
            f"{budget.no_improvement})"
        )
        return _spent(reason, ReasonCode.NO_IMPROVEMENT, succeeded, drain=True)
    bound = standing.regret_bound
    if budget.regret_below is not None and bound is not None and bound <= budget.regret_below:
        reason = f"no point is likely to be better by more than {bound:.3g}"
        reason += f" (budget.regretBelow: {budget.regret_below:g})"
        return _spent(reason, ReasonCode.REGRET_BELOW, succeeded, drain=True)
    if standing.exhausted:
        reason = "every point of the search space has been tried"
        return _spent(reason, ReasonCode.SPACE_EXHAUSTED, succeeded, drain=True)
    return None


@dataclass(frozen=True, slots=True)
class _UsedUp:
    """A limit of time, GPU-hours or money that is reached. key: in the file, below `budget`."""

    key: str
    reason: str
    code: ReasonCode
    drain: bool = False
    closed: bool = False

    def ending(self, spec: ExperimentSpec, succeeded: bool, *, partial: int) -> Ending:
        """Return the end. `partial` trials have ended or wait below the largest fidelity."""
        if succeeded or not partial or spec.fidelity is None:
            return _spent(self.reason, self.code, succeeded, drain=self.drain, closed=self.closed)
        whole = f"{spec.fidelity.parameter} {spec.fidelity.max:g}"
        cure = f"raise budget.{self.key}, or lower fidelity.max"
        reason = f"{self.reason} before a trial reached {whole}; {cure}"
        code = ReasonCode.NO_TRIAL_SUCCEEDED
        return Ending(ExperimentState.FAILED, reason, self.drain, code, self.closed)


def _used_up(spec: ExperimentSpec, standing: Standing) -> _UsedUp | None:
    budget = spec.budget
    if budget.wall_clock_s is not None and standing.running_s >= budget.wall_clock_s:
        reason = f"the time budget is used up (budget.wallClock: {budget.wall_clock_s:g} s)"
        finish = budget.overrun is Overrun.FINISH
        return _UsedUp("wallClock", reason, ReasonCode.TIME_SPENT, finish, closed=finish)
    return _spent_up(budget, standing.spent)


def _spent_up(budget: Budget, spent: Spent) -> _UsedUp | None:
    drain = budget.overrun is not Overrun.STOP
    if budget.gpu_hours is not None and spent.gpu_hours >= budget.gpu_hours:
        reason = f"the GPU-hours are used up (budget.gpuHours: {budget.gpu_hours:g})"
        return _UsedUp("gpuHours", reason, ReasonCode.GPU_HOURS_SPENT, drain, closed=True)
    if budget.cost is not None and spent.cost >= budget.cost:
        reason = f"the money is used up (budget.cost: {budget.cost:g})"
        return _UsedUp("cost", reason, ReasonCode.COST_SPENT, drain, closed=True)
    return None


def is_used_up(spec: ExperimentSpec, spent: Spent) -> bool:
    """Return whether a limit of GPU-hours or money is reached."""
    return _spent_up(spec.budget, spent) is not None


def until_used_up_s(spec: ExperimentSpec, spent: Spent, rate: Spent) -> float | None:
    """Return the seconds until what runs reaches a limit of GPU-hours or money.

    None if it never does. rate: what all running attempts use in an hour.
    """
    limits = (
        (spec.budget.gpu_hours, spent.gpu_hours, rate.gpu_hours),
        (spec.budget.cost, spent.cost, rate.cost),
    )
    waits_s = [
        (limit - so_far) / each_hour * HOUR_S
        for limit, so_far, each_hour in limits
        if limit is not None and each_hour > 0
    ]
    return min(waits_s, default=None)


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
    spec: ExperimentSpec,
    outcomes: Iterable[tuple[TrialState, float | None]],
    *,
    running_s: float,
    spent: Spent,
) -> Ending | None:
    """Return the ending that continuing with these outcomes under `spec` would reach at once."""
    counts: dict[TrialState, int] = {}
    best: float | None = None
    for state, value in outcomes:
        counts[state] = counts.get(state, 0) + 1
        if state is TrialState.SUCCEEDED:
            best = spec.objective.better(best, value)
    return ending(spec, Standing(counts=counts, best=best, running_s=running_s, spent=spent))


def _spent(
    reason: str, code: ReasonCode, succeeded: bool, *, drain: bool, closed: bool = False
) -> Ending:
    """Return the ending of a spent budget.

    The last running trials may finish: one may be the first to succeed.
    """
    if not succeeded:
        return Ending(
            ExperimentState.FAILED,
            f"{reason}; no trial succeeded",
            drain,
            ReasonCode.NO_TRIAL_SUCCEEDED,
            closed,
        )
    return Ending(ExperimentState.SUCCEEDED, reason, drain, code, closed)
