"""The JSON of `-o json` and `export`: camelCase keys, RFC 3339 times in UTC, absent keys instead of null. Pure.

Other programs read this JSON, so keys may be added but never renamed. docs/cli.md describes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from controller.core.model import FINAL, Attempt, Event
from controller.report.final import FinalRecord
from controller.report.formatting import json_number, timestamp
from controller.report.record import ExperimentRecord, StudyTrials, TrialList, TrialRecord, best_of
from suggest.estimate import Estimate
from suggest.study import Criteria, Study
from suggest.trial import Measurement, Trial, TrialState

Json = dict[str, Any]


def experiment(record: ExperimentRecord) -> Json:
    """Return one element of `get experiments`."""
    it = record.experiment
    return _present(
        name=it.name,
        namespace=it.namespace,
        uid=it.uid,
        state=it.state.value,
        reason=it.reason or None,
        reasonCode=None if it.reason_code is None else it.reason_code.value,
        trials={state.value: n for state, n in record.counts.items()},
        best=None if (best := record.best) is None else _best(best, it.spec.criteria),
        front=front(record.front, it.spec.criteria),
        dominatedShare=record.dominated_share,
        final=None if record.final is None else final(record.final),
        startTime=None if it.start_time is None else timestamp(it.start_time),
        endTime=None if it.end_time is None else timestamp(it.end_time),
    )


def front(trials: Sequence[Trial], criteria: Criteria) -> list[Json] | None:
    """Return the trials of a Pareto front; None for a search with one objective."""
    return [_best(each, criteria) for each in trials] if len(criteria.objectives) > 1 else None


def best(record: ExperimentRecord, one: TrialRecord, estimate: Estimate | None = None) -> Json:
    """Return what `best` prints: the trial, a model's estimate if there is one, and the final stage if it has run."""
    extra = _present(
        estimate=None if estimate is None else _estimate(record, estimate),
        final=None if record.final is None else final(record.final),
    )
    return trial(record, one) | extra


def _estimate(record: ExperimentRecord, estimate: Estimate) -> Json:
    whose = next((each.trial for each in record.trials if each.trial.number == estimate.trial), None)
    return _present(
        number=estimate.trial,
        parameters=None if whose is None else dict(whose.parameters),
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        noise=estimate.noise,
        noiseShare=estimate.noise_share,
        regretBound=estimate.regret_bound,
    )


def final(it: FinalRecord) -> Json:
    """Return the final stage. It has `outputs` only if they were looked for and are on this machine."""
    newest = it.newest
    return _present(
        trial=it.run.trial,
        name=it.name,
        state=it.state,
        value=newest.value,
        reason=newest.reason or None,
        failureClass=None if newest.failure_class is None else newest.failure_class.value,
        attempts=[attempt(each) for each in it.attempts],
        outputDirectory=it.directory or None,
        outputs=None if it.outputs is None else [{"path": each.path, "bytes": each.size_bytes} for each in it.outputs],
    )


def trial(record: TrialList, one: TrialRecord) -> Json:
    """Return one element of `get trials`."""
    it = one.trial
    metrics = record.metrics.get(it.number)
    return _present(
        number=it.number,
        name=record.trial_name(it.number),
        state=one.state.value,
        parent=it.parent,
        parameters=dict(it.parameters),
        value=it.value if it.value is not None and math.isfinite(it.value) else None,
        **_all_values(it, record.criteria),
        step=it.step,
        metrics={name: json_number(value) for name, value in metrics.items()} if metrics else None,
        reason=record.reason_of(one) or None,
        failureClass=it.failure_class or None,
        labels=dict(it.labels),
        clientId=it.client_id if one.by_client else None,
        startTime=None if one.start_time is None else timestamp(one.start_time),
        endTime=None if one.end_time is None else timestamp(one.end_time),
        attempts=None if one.by_client else [_attempt(record, each) for each in one.attempts],
    )


def _attempt(record: TrialList, it: Attempt) -> Json:
    assert isinstance(record, ExperimentRecord), "only an experiment's trials have attempts"
    return attempt(it) | _present(gpuSeconds=_gpu_seconds(record, it))


def attempt(it: Attempt) -> Json:
    return _present(
        number=it.number,
        state=it.state.value,
        exitCode=it.exit_code,
        signal=it.signal,
        startTime=None if it.start_time is None else timestamp(it.start_time),
        endTime=None if it.end_time is None else timestamp(it.end_time),
        reason=it.reason or None,
        failureClass=None if it.failure_class is None else it.failure_class.value,
        node=it.node or None,
        image=it.image or None,
    )


def whole(record: ExperimentRecord, file: Mapping[str, object]) -> Json:
    """Return what `export --format json` prints. `file` is the experiment's document with its secrets redacted."""
    trials = []
    for one in record.trials:
        measured = [measurement(each) for each in record.measurements.get(one.trial.number, ())]
        trials.append({**trial(record, one), "measurements": measured})
    return {
        "experiment": {
            **experiment(record),
            "revision": record.experiment.revision,
            "study": record.experiment.study,
            "file": dict(file),
        },
        "trials": trials,
        "events": [event(each) for each in record.events],
    }


def study(it: Study, counts: Mapping[TrialState, int] | None, best: Trial | None) -> Json:
    """Return one element of `get studies`. `counts` is None if the server is too old to report them."""
    objective = it.spec.objective
    return _present(
        name=it.name.study,
        namespace=it.name.namespace,
        uid=it.uid,
        metric=objective.metric,
        direction=objective.direction.value,
        algorithm=it.spec.algorithm.name,
        trials=None if counts is None else {state.value: n for state, n in counts.items()},
        objectives=_objectives(it.spec.criteria),
        constraints=_constraints(it.spec.criteria),
        best=None if best is None else _best(best, it.spec.criteria),
        labels=dict(it.labels) or None,
        createTime=None if it.create_time is None else timestamp(it.create_time),
    )


def whole_study(record: StudyTrials) -> Json:
    """Return what `export --format json` prints for a study without an experiment."""
    trials = []
    states = [one.state for one in record.trials]
    counts = {state: n for state in TrialState if (n := states.count(state))}
    best = next(iter(best_of(record.trials, record.study.spec.criteria)), None)
    for one in record.trials:
        measured = [measurement(each) for each in record.measurements.get(one.trial.number, ())]
        trials.append({**trial(record, one), "measurements": measured})
    return {"study": study(record.study, counts, best), "trials": trials}


def measurement(it: Measurement) -> Json:
    return {"attempt": it.attempt, "metric": it.metric, "step": it.step, "value": json_number(it.value)}


def event(it: Event) -> Json:
    of_final = it.trial is FINAL
    return _present(
        time=timestamp(it.time),
        kind=it.kind,
        message=it.message,
        stage="final" if of_final else None,
        trial=None if of_final else it.trial,
        attempt=it.attempt,
    )


def _best(it: Trial, criteria: Criteria) -> Json:
    return _present(number=it.number, value=it.value, parameters=dict(it.parameters), **_all_values(it, criteria))


def _all_values(it: Trial, criteria: Criteria) -> Json:
    """Return the values of several objectives and of constraints, by metric."""
    metrics = [each.metric for each in criteria.objectives]
    bounded = [each.metric for each in criteria.constraints]
    return _present(
        values=dict(zip(metrics, it.values, strict=False)) if it.further else None,
        constraintValues=dict(zip(bounded, it.constraint_values, strict=False)) or None,
        feasible=criteria.violation(it) == 0 if it.constraint_values else None,
    )


def _objectives(criteria: Criteria) -> list[Json] | None:
    """Return the objectives if there are several; otherwise None."""
    if len(criteria.objectives) == 1:
        return None
    return [{"metric": each.metric, "direction": each.direction.value} for each in criteria.objectives]


def _constraints(criteria: Criteria) -> list[Json] | None:
    return [_present(metric=each.metric, min=each.min, max=each.max) for each in criteria.constraints] or None


def _gpu_seconds(record: ExperimentRecord, it: Attempt) -> float | None:
    """Return the GPU seconds of an ended attempt; None for a running one, whose figure would soon be outdated."""
    if it.end_time is None or not record.gpus:
        return None
    return round(record.gpu_seconds(it, now=it.end_time), 3)


def _present(**keys: object) -> Json:
    return {key: value for key, value in keys.items() if value is not None}
