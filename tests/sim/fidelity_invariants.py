"""Invariants of trials that run in steps of a fidelity."""

from __future__ import annotations

from collections.abc import Sequence

from controller.core.model import FINAL, Attempt, AttemptState, ExperimentSpec
from suggest.trial import Trial, TrialState
from tests.sim.invariant import InvariantViolation


def is_step(attempt: Attempt, spec: ExperimentSpec) -> bool:
    """Return whether the attempt has succeeded below the largest fidelity,
    which does not end its trial.
    """
    fidelity = spec.fidelity
    if fidelity is None or attempt.state is not AttemptState.SUCCEEDED or attempt.fidelity is None:
        return False
    return attempt.fidelity < fidelity.levels[-1]


def check_steps(spec: ExperimentSpec, attempts: Sequence[Attempt], trials: Sequence[Trial]) -> None:
    """Check an ended experiment: each step of a trial counts once, in its order,
    and promotions are earned.
    """
    assert spec.fidelity is not None
    levels = spec.fidelity.levels
    for trial in trials:
        steps = [
            a for a in attempts if a.trial == trial.number and a.trial != FINAL and is_step(a, spec)
        ]
        results = [(a.fidelity, a.value) for a in steps]
        known = [(each.fidelity, each.value) for each in trial.rungs]
        if trial.state is not TrialState.CANCELLED and results != known:
            raise InvariantViolation(
                f"trial {trial.number} was run as {results}, and its study knows {known}"
            )
        first = levels.index(trial.rungs[0].fidelity) if trial.rungs else 0
        if [each.fidelity for each in trial.rungs] != list(
            levels[first : first + len(trial.rungs)]
        ):
            raise InvariantViolation(f"trial {trial.number} skipped a fidelity: {known}")
        run = [a.fidelity for a in attempts if a.trial == trial.number and a.fidelity is not None]
        if run != sorted(run):
            raise InvariantViolation(f"trial {trial.number} went back to a smaller fidelity: {run}")
        if trial.state is TrialState.SUCCEEDED and run and run[-1] != levels[-1]:
            raise InvariantViolation(f"trial {trial.number} succeeded at {run[-1]}")
