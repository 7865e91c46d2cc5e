"""How a trial ends: its value, and whether two endings are the same. Reads an engine, changes nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from suggest.engine import Engine
from suggest.errors import FailedPrecondition
from suggest.trial import Outcome, Trial, TrialState


def finished_trial(engine: Engine, trial: Trial, outcome: Outcome) -> Trial:
    """`trial` as it ended; the engine knows all its measurements."""
    value, step = engine.value_of(trial.number)
    if outcome.value is not None:
        value = outcome.value
    if outcome.state is TrialState.SUCCEEDED and value is None:
        metric = engine.study.spec.objective.metric
        raise FailedPrecondition(
            f"{engine.study.name}: trial {trial.number} has no finite value of {metric!r}, so it has not succeeded; "
            "report one, give a value, or complete it as failed"
        )
    return replace(
        trial,
        state=outcome.state,
        value=value if outcome.state in (TrialState.SUCCEEDED, TrialState.PRUNED) else None,
        step=step,
        reason=outcome.reason,
        failure_class=outcome.failure_class,
        end_time=datetime.now(UTC),
    )


def same_way(trial: Trial, outcome: Outcome) -> bool:
    """Reasons are prose and may differ."""
    same_value = outcome.value is None or outcome.value == trial.value
    return trial.state is outcome.state and same_value and trial.failure_class == outcome.failure_class


def in_words(state: TrialState, value: float | None) -> str:
    return state.value if value is None else f"{state.value} ({value!r})"
