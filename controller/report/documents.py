"""The JSON of `-o json` and `export`: camelCase keys, RFC 3339 times in UTC,
absent keys instead of null. Pure.

Other programs read this JSON, so keys may be added but never renamed. docs/cli.md describes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from controller.core.model import FINAL, Attempt, Event
from controller.report import spending
from controller.report.final import FinalRecord
from controller.report.formatting import json_number, timestamp
from controller.report.record import ExperimentRecord, StudyTrials, TrialList, TrialRecord
from suggest.estimate import Estimate
from suggest.replies import StudySummary
from suggest.study import Criteria, Study
from suggest.trial import Measurement, Trial, TrialState

Json = dict[str, Any]


def experiment(record: ExperimentRecord) -> Json:
    """Return one element of `get experiments`."""
    experiment = record.experiment
    criteria = experiment.spec.criteria
    return present(
        name=experiment.name,
        namespace=experiment.namespace,
        uid=experiment.uid,
        state=experiment.state.value,
        reason=experiment.reason or None,
        reasonCode=None if experiment.reason_code is None else experiment.reason_code.value,
        trouble=record.trouble or None,
        trials=None if record.unread else {s.value: n for s, n in record.counts.items()},
        best=None if record.best is None else _best(record.best, criteria),
        front=front(record.front, criteria),
        dominatedShare=record.dominated_share,
        gpuHours=spending.gpu_hours(experiment),
        cost=spending.cost(experiment),
        final=None if record.final is None else final(record.final),
        startTime=timestamp(experiment.start_time) or None,
        endTime=timestamp(experiment.end_time) or None,
    )


def front(trials: Sequence[Trial], criteria: Criteria) -> list[Json] | None:
    """Return the trials of a Pareto front; None for a search with one objective."""
    return [_best(trial, criteria) for trial in trials] if len(criteria.objectives) > 1 else None


def best(
    record: ExperimentRecord, trial_record: TrialRecord, estimate: Estimate | None = None
) -> Json:
    """Return what `best` prints.

    The trial, a model's estimate if there is one, and the final stage if it has run.
    """
    extra = present(
        estimate=None if estimate is None else _estimate(record, estimate),
        final=None if record.final is None else final(record.final),
    )
    return trial(record, trial_record) | extra


def _estimate(record: ExperimentRecord, estimate: Estimate) -> Json:
    parameters = {entry.trial.number: entry.trial.parameters for entry in record.trials}
    own = parameters.get(estimate.trial)
    return present(
        number=estimate.trial,
        parameters=None if own is None else dict(own),
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        noise=estimate.noise,
        noiseShare=estimate.noise_share,
        regretBound=estimate.regret_bound,
    )


def final(record: FinalRecord) -> Json:
    """Return the final stage.

    It has `outputs` only if they were looked for and are on this machine.
    """
    newest = record.newest
    outputs = None
    if record.outputs is not None:
        outputs = [{"path": output.path, "bytes": output.size_bytes} for output in record.outputs]
    return present(
        trial=record.run.trial,
        name=record.name,
        state=record.state,
        value=newest.value,
        reason=newest.reason or None,
        failureClass=None if newest.failure_class is None else newest.failure_class.value,
        attempts=[attempt(execution) for execution in record.attempts],
        outputDirectory=record.directory or None,
        outputs=outputs,
    )


def trial(record: TrialList, trial_record: TrialRecord) -> Json:
    """Return one element of `get trials`."""
    trial = trial_record.trial
    measured = record.metrics.get(trial.number, {})
    attempts = None
    if not trial_record.by_client:
        attempts = [_attempt(record, execution) for execution in trial_record.attempts]
    return present(
        number=trial.number,
        name=record.trial_name(trial.number),
        state=trial_record.state.value,
        parent=trial.parent,
        parameters=dict(trial.parameters),
        value=trial.value if trial.value is not None and math.isfinite(trial.value) else None,
        **_all_values(trial, record.criteria),
        step=trial.step,
        metrics={name: json_number(value) for name, value in measured.items()} or None,
        reason=record.reason_of(trial_record) or None,
        failureClass=trial.failure_class or None,
        labels=trial.shown_labels,
        clientId=trial.client_id if trial_record.by_client else None,
        startTime=timestamp(trial_record.start_time) or None,
        endTime=timestamp(trial_record.end_time) or None,
        attempts=attempts,
    )


def _attempt(record: TrialList, execution: Attempt) -> Json:
    assert isinstance(record, ExperimentRecord), "only an experiment's trials have attempts"
    return attempt(execution) | present(gpuSeconds=_gpu_seconds(execution))


def attempt(execution: Attempt) -> Json:
    return present(
        number=execution.number,
        state=execution.state.value,
        exitCode=execution.exit_code,
        signal=execution.signal,
        startTime=timestamp(execution.start_time) or None,
        endTime=timestamp(execution.end_time) or None,
        reason=execution.reason or None,
        failureClass=None if execution.failure_class is None else execution.failure_class.value,
        node=execution.node or None,
        image=execution.image or None,
        logGap=execution.log_gap or None,
        valueDoubt=execution.value_doubt or None,
    )


def whole(record: ExperimentRecord, file: Mapping[str, object]) -> Json:
    """Return what `export --format json` prints.

    `file` is the experiment's document with its secrets redacted.
    """
    return {
        "experiment": with_file(record, file),
        "trials": [with_measurements(record, entry) for entry in record.trials],
        "events": [event(entry) for entry in record.events],
    }


def described(record: ExperimentRecord, file: Mapping[str, object], now: datetime) -> Json:
    """Return what `describe NAME -o json` prints: the experiment, its file, and its forecast."""
    forecast = spending.document(record.experiment.spec, record.forecast(now))
    return with_file(record, file) | present(forecast=forecast)


def with_file(record: ExperimentRecord, file: Mapping[str, object]) -> Json:
    """Return an experiment with its file, whose secrets are redacted."""
    return {
        **experiment(record),
        "revision": record.experiment.revision,
        "study": record.experiment.study,
        "file": dict(file),
    }


def with_measurements(record: TrialList, trial_record: TrialRecord) -> Json:
    """Return what `describe NAME/N -o json` prints: the trial and the measurements read."""
    samples = record.measurements.get(trial_record.trial.number, ())
    return trial(record, trial_record) | {
        "measurements": [measurement(sample) for sample in samples]
    }


def study(study: Study, summary: StudySummary) -> Json:
    """Return one element of `get studies`."""
    objective = study.spec.objective
    return present(
        name=study.name.study,
        namespace=study.name.namespace,
        uid=study.uid,
        metric=objective.metric,
        direction=objective.direction.value,
        algorithm=study.spec.algorithm.name,
        trials={state.value: n for state, n in summary.trials.items()},
        objectives=_objectives(study.spec.criteria),
        constraints=_constraints(study.spec.criteria),
        best=None if summary.best is None else _best(summary.best, study.spec.criteria),
        labels=dict(study.labels) or None,
        createTime=timestamp(study.create_time) or None,
    )


def whole_study(record: StudyTrials) -> Json:
    """Return what `export --format json` prints for a study without an experiment."""
    states = [trial_record.state for trial_record in record.trials]
    counts = {state: n for state in TrialState if (n := states.count(state))}
    best = next(iter(record.front), None)
    trials = [with_measurements(record, entry) for entry in record.trials]
    return {"study": study(record.study, StudySummary(counts, best)), "trials": trials}


def measurement(sample: Measurement) -> Json:
    return {
        "attempt": sample.attempt,
        "metric": sample.metric,
        "step": sample.step,
        "value": json_number(sample.value),
    }


def event(entry: Event) -> Json:
    of_final = entry.trial is FINAL
    return present(
        time=timestamp(entry.time),
        kind=entry.kind,
        message=entry.message,
        stage="final" if of_final else None,
        trial=None if of_final else entry.trial,
        attempt=entry.attempt,
    )


def _best(trial: Trial, criteria: Criteria) -> Json:
    return present(
        number=trial.number,
        value=trial.value,
        parameters=dict(trial.parameters),
        **_all_values(trial, criteria),
    )


def _all_values(trial: Trial, criteria: Criteria) -> Json:
    """Return the values of several objectives and of constraints, by metric."""
    metrics = [objective.metric for objective in criteria.objectives]
    bounded = [constraint.metric for constraint in criteria.constraints]
    return present(
        values=dict(zip(metrics, trial.values, strict=False)) if trial.further else None,
        constraintValues=dict(zip(bounded, trial.constraint_values, strict=False)) or None,
        feasible=criteria.violation(trial) == 0 if trial.constraint_values else None,
    )


def _objectives(criteria: Criteria) -> list[Json] | None:
    """Return the objectives if there are several; otherwise None."""
    if len(criteria.objectives) == 1:
        return None
    objectives = criteria.objectives
    return [{"metric": each.metric, "direction": each.direction.value} for each in objectives]


def _constraints(criteria: Criteria) -> list[Json] | None:
    constraints = criteria.constraints
    return [present(metric=each.metric, min=each.min, max=each.max) for each in constraints] or None


def _gpu_seconds(execution: Attempt) -> float | None:
    """Return the GPU seconds of an ended attempt.

    None for a running one, whose figure would soon be outdated.
    """
    if execution.end_time is None or not execution.gpus:
        return None
    return round(execution.gpus * execution.ran_s(execution.end_time), 3)


def present(**keys: object) -> Json:
    """Return the keys that have a value."""
    return {key: value for key, value in keys.items() if value is not None}
