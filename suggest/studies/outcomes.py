"""How a trial changes when it ends, pauses or is imported.

The service stores it; nothing here does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from suggest.engine import Engine
from suggest.errors import FailedPrecondition, InvalidArgument, Problem
from suggest.imports import FinishedTrial, ImportResult, fit, kept
from suggest.trial import IMPORTED_FROM, Measurement, Outcome, RungResult, Trial, TrialState


def finished_trial(
    engine: Engine, trial: Trial, outcome: Outcome, measurements: Sequence[Measurement]
) -> Trial:
    """Return `trial` with its outcome.

    `measurements` are its last ones, which the engine does not have yet.

    Raises:
        FailedPrecondition: the outcome is success, but an objective or a constraint has no finite
        value.
    """
    spec = engine.study.spec
    if outcome.further and len(outcome.further) != len(spec.objectives) - 1:
        message = (
            f"{len(outcome.further) + 1} values; the study has {len(spec.objectives)} objectives"
        )
        raise InvalidArgument.at("outcome.succeeded.values", f"{message}, give one value for each")
    measured, step = engine.value_of(trial.number, measurements)
    value = measured if outcome.value is None else outcome.value
    other_values = [
        engine.value_of(trial.number, measurements, objective=objective)[0]
        for objective in spec.objectives[1:]
    ]
    further = tuple(v for v in outcome.further or other_values if v is not None)
    bounded = [
        engine.constraint_value(trial.number, constraint, measurements)
        for constraint in spec.constraints
    ]
    constrained = tuple(v for v in bounded if v is not None)
    if outcome.state is TrialState.SUCCEEDED:
        metrics = [objective.metric for objective in spec.objectives]
        metrics += [constraint.metric for constraint in spec.constraints]
        values = [value, *(outcome.further or other_values), *bounded]
        missing = [m for m, v in zip(metrics, values, strict=True) if v is None]
        if missing:
            raise FailedPrecondition(
                f"{engine.study.name}: trial {trial.number} has no finite value of "
                f"{' and '.join(map(repr, missing))}, so it has not succeeded; report one, give a "
                "value, or complete it as failed"
            )
    if outcome.state not in (TrialState.SUCCEEDED, TrialState.PRUNED):
        value, further, constrained = None, (), ()
    return replace(
        trial,
        state=outcome.state,
        value=value,
        step=step if value == measured else engine.last_step(trial.number, measurements),
        reason=outcome.reason,
        failure_class=outcome.failure_class,
        end_time=datetime.now(UTC),
        further=further if value is not None and len(further) == len(other_values) else (),
        constraint_values=constrained if len(constrained) == len(bounded) else (),
    )


def paused_trial(engine: Engine, succeeded: Trial) -> Trial:
    """Return a trial that succeeded below the largest fidelity as a paused one.

    It waits to continue.
    """
    assert succeeded.fidelity is not None
    assert succeeded.value is not None
    paused = replace(
        succeeded,
        state=TrialState.PAUSED,
        end_time=None,
        rungs=(*succeeded.rungs, RungResult(succeeded.fidelity, succeeded.value)),
    )
    return replace(paused, reason=engine.waits_for(paused))


def taken(
    engine: Engine, trial: FinishedTrial, *, number: int, source: str
) -> tuple[Trial | None, ImportResult]:
    """Convert an imported trial to one of this study, with the result for the reply.

    The trial is None if it does not fit.
    """
    spec = engine.study.spec
    fitting = kept(trial.parameters) if spec.define_by_run else fit(spec.space, trial.parameters)
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
        finished = finished_trial(
            engine, opened, trial.outcome, engine.fresh(number, trial.measurements)
        )
    except FailedPrecondition:
        metrics = " and ".join(map(repr, spec.criteria.metrics))
        message = (
            f"has no finite value of {metrics}; give one, or measurements, or import it as failed"
        )
        return None, ImportResult(None, problems=(Problem("outcome", message),))
    return finished, ImportResult(number, problems=fitting.remarks)


def same_way(trial: Trial, outcome: Outcome) -> bool:
    """Return whether the trial ended with this outcome. Reasons are free text and may differ."""
    same_value = outcome.value is None or outcome.value == trial.value
    same_value &= not outcome.further or outcome.further == trial.further
    return (
        trial.state is outcome.state and same_value and trial.failure_class == outcome.failure_class
    )


def added_again(existing: Trial, added: Trial) -> bool:
    """Return whether `existing` may be what became of a trial that was added as `added`.

    A queued trial may have been handed out since, with values
    for further parameters, and may have ended.
    """
    if not added.labels.items() <= existing.labels.items():
        return False
    if existing.state is TrialState.QUEUED and not existing.tries:
        return added.state is TrialState.QUEUED and added.parameters == existing.parameters
    was_cancelled = existing.state is TrialState.CANCELLED
    was_imported = existing.finished and not existing.tries and not was_cancelled
    if was_imported is not added.finished:
        return False
    if added.finished and _result(added) != _result(existing):
        return False
    return all(existing.parameters.get(name) == value for name, value in added.parameters.items())


def _result(trial: Trial) -> tuple[object, ...]:
    """Return how a trial ended. Reasons are free text and may differ."""
    return trial.state, trial.value, trial.further, trial.constraint_values, trial.failure_class


def in_words(state: TrialState, value: float | None) -> str:
    return state.value if value is None else f"{state.value} ({value!r})"
