"""How a trial ends: its value, and whether two endings are the same. Reads an engine, changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from suggest.engine import Engine
from suggest.errors import FailedPrecondition, Problem
from suggest.imports import IMPORTED_FROM, FinishedTrial, ImportResult, fit
from suggest.trial import Measurement, Outcome, Trial, TrialState


def finished_trial(engine: Engine, trial: Trial, outcome: Outcome, measurements: Sequence[Measurement]) -> Trial:
    """`trial` as it ended; with these last measurements, which the engine does not know yet."""
    measured, step = engine.value_of(trial.number, measurements)
    value = measured if outcome.value is None else outcome.value
    if outcome.state is TrialState.SUCCEEDED and value is None:
        metric = engine.study.spec.objective.metric
        raise FailedPrecondition(
            f"{engine.study.name}: trial {trial.number} has no finite value of {metric!r}, so it has not succeeded; "
            "report one, give a value, or complete it as failed"
        )
    if outcome.state not in (TrialState.SUCCEEDED, TrialState.PRUNED):
        value = None
    return replace(
        trial,
        state=outcome.state,
        value=value,
        step=step if value == measured else engine.last_step(trial.number, measurements),
        reason=outcome.reason,
        failure_class=outcome.failure_class,
        end_time=datetime.now(UTC),
    )


def taken(engine: Engine, trial: FinishedTrial, *, number: int, source: str) -> tuple[Trial | None, ImportResult]:
    """A trial from elsewhere as one of this study, None if it cannot be one; and what to say of it."""
    fitting = fit(engine.study.spec.space, trial.parameters)
    if fitting.refused:
        return None, ImportResult(None, problems=(*fitting.refused, *fitting.remarks))
    opened = Trial(
        number,
        TrialState.RUNNING,
        fitting.parameters,
        labels={**trial.labels, IMPORTED_FROM: source},
        create_time=datetime.now(UTC),
    )
    try:
        finished = finished_trial(engine, opened, trial.outcome, engine.fresh(number, trial.measurements))
    except FailedPrecondition:
        metric = engine.study.spec.objective.metric
        message = f"has no finite value of {metric!r}; give one, or measurements, or import it as failed"
        return None, ImportResult(None, problems=(Problem("outcome", message),))
    return finished, ImportResult(number, problems=fitting.remarks)


def same_way(trial: Trial, outcome: Outcome) -> bool:
    """Reasons are prose and may differ."""
    same_value = outcome.value is None or outcome.value == trial.value
    return trial.state is outcome.state and same_value and trial.failure_class == outcome.failure_class


def in_words(state: TrialState, value: float | None) -> str:
    return state.value if value is None else f"{state.value} ({value!r})"
