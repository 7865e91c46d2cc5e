"""Invariants of the final stage, checked when each attempt starts and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.core.model import (
    Attempt,
    AttemptState,
    Experiment,
    ExperimentState,
    FailureClass,
    StopCause,
)
from suggest.study import Direction
from suggest.trial import Trial, TrialState
from tests.sim.invariant import InvariantViolation


def check_final_start(of: Trial, trials: Sequence[Trial], experiment: Experiment) -> None:
    """Check that an attempt starts after the last trial, with the best parameters,
    and is recorded as final.
    """
    if unfinished := [trial.number for trial in trials if not trial.finished]:
        raise InvariantViolation(f"the final stage starts, and trials {unfinished} have not ended")
    if of.value != _best_value(trials, experiment):
        raise InvariantViolation(
            f"the final stage has the parameters of {of}, which is not the best"
        )
    if experiment.final is None or experiment.final.trial != of.number:
        raise InvariantViolation(f"it runs with trial {of.number}; recorded is {experiment.final}")


def check_final_end(
    experiment: Experiment,
    attempts: Sequence[Attempt],
    trials: Sequence[Trial],
    *,
    seen: Mapping[int, int],
    before: int,
) -> None:
    """Check that exactly one attempt has succeeded, unless the final
    stage failed for its own reason.

    `seen`: the number of trials when each attempt started, by attempt. `before`: the number of
    attempts when the search was last extended.
    """
    run = experiment.final
    now = [attempt for attempt in attempts if attempt.number > before]
    # If the extended search had nothing more to try, earlier attempts may count.
    attempts = now or [
        attempt for attempt in attempts if run is not None and attempt.number >= run.first
    ]
    ends = [attempt.state for attempt in attempts]
    if any(not attempt.ended for attempt in attempts):
        raise InvariantViolation(f"the experiment ended before its final stage: {attempts}")
    due = experiment.spec.final is not None and experiment.state is ExperimentState.SUCCEEDED
    if not (due and _best_value(trials, experiment) is not None):
        if AttemptState.SUCCEEDED in ends:
            raise InvariantViolation(f"a final stage of nothing: {attempts}")
        return
    if not attempts or attempts[-1].state not in (AttemptState.SUCCEEDED, AttemptState.FAILED):
        raise InvariantViolation(
            f"it succeeded, and its final stage did not run to an end: {attempts}"
        )
    if AttemptState.SUCCEEDED in ends[:-1]:
        raise InvariantViolation(f"the final stage ran again after it had succeeded: {attempts}")
    if run is None or all(
        trial.number != run.trial or trial.value != _best_value(trials, experiment)
        for trial in trials
    ):
        raise InvariantViolation(f"it ended with {run}, which is not the best")
    if seen.get(attempts[-1].number, len(trials)) != len(trials):
        raise InvariantViolation(
            f"trials have run since its final stage: {seen} of {len(trials)}, {attempts}"
        )
    _check_failures(experiment, attempts)


def _check_failures(experiment: Experiment, attempts: Sequence[Attempt]) -> None:
    last = attempts[-1]
    if any(attempt.stop_cause is StopCause.PRUNED for attempt in attempts):
        raise InvariantViolation(f"the final stage was pruned: {attempts}")
    if last.state is not AttemptState.FAILED:
        return
    retries = experiment.spec.trial.retries.get(last.failure_class or FailureClass.CONFIGURATION, 0)
    spent = sum(attempt.failure_class is last.failure_class for attempt in attempts)
    if spent != retries + 1:
        raise InvariantViolation(
            f"the final stage failed after {spent} failures of that class, with {retries} retries"
        )
    if "its final stage failed" not in experiment.reason:
        raise InvariantViolation(f"the final stage failed, and nobody is told: {experiment.reason}")


def _best_value(trials: Sequence[Trial], experiment: Experiment) -> float | None:
    values = [
        trial.value
        for trial in trials
        if trial.state is TrialState.SUCCEEDED and trial.value is not None
    ]
    return (max if experiment.spec.objective.direction is Direction.MAXIMIZE else min)(
        values, default=None
    )
