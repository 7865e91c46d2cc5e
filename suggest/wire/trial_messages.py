"""Messages of trials, their measurements and outcomes."""

from __future__ import annotations

import math
from collections.abc import Iterable

from suggest import names
from suggest.errors import InvalidArgument, Problem
from suggest.imports import FinishedTrial, ImportResult
from suggest.replies import StudySummary
from suggest.study import Study, StudyName
from suggest.trial import Measurement, Outcome, RungResult, Trial, TrialState
from suggest.v1 import suggest_pb2 as pb
from suggest.wire.values import (
    Problems,
    raise_if,
    read_duration,
    read_enum,
    read_labels,
    read_time,
    read_values,
    write_duration,
    write_time,
    write_values,
)

_TO_STATE = {
    TrialState.QUEUED: pb.TRIAL_STATE_QUEUED,
    TrialState.RUNNING: pb.TRIAL_STATE_RUNNING,
    TrialState.PAUSED: pb.TRIAL_STATE_PAUSED,
    TrialState.SUCCEEDED: pb.TRIAL_STATE_SUCCEEDED,
    TrialState.PRUNED: pb.TRIAL_STATE_PRUNED,
    TrialState.INFEASIBLE: pb.TRIAL_STATE_INFEASIBLE,
    TrialState.FAILED: pb.TRIAL_STATE_FAILED,
    TrialState.CANCELLED: pb.TRIAL_STATE_CANCELLED,
}
_STATES: dict[int, TrialState] = {v: k for k, v in _TO_STATE.items()}


def write_trial(study: StudyName, trial: Trial) -> pb.Trial:
    message = pb.Trial(
        name=names.trial_name(study, trial.number),
        number=trial.number,
        state=_TO_STATE[trial.state],
        value=trial.value,
        step=trial.step,
        reason=trial.reason,
        failure_class=trial.failure_class,
        client_id=trial.client_id,
        request_id=trial.request_id,
        labels=dict(trial.labels),
        create_time=write_time(trial.create_time),
        end_time=write_time(trial.end_time),
        tries=trial.tries,
        lease_duration=write_duration(trial.lease_s),
        lease_expire_time=write_time(trial.lease_expire_time),
        values=trial.values if trial.further else (),
        constraint_values=trial.constraint_values,
        fidelity=trial.fidelity,
        rungs=[pb.RungResult(fidelity=rung.fidelity, value=rung.value) for rung in trial.rungs],
        parent=trial.parent,
    )
    write_values(trial.parameters, message.parameters)
    return message


def read_trial(message: pb.Trial) -> Trial:
    """Read a trial that a server sent."""
    problems: Problems = []
    trial = Trial(
        number=message.number,
        state=read_enum(message.state, _STATES, "state", problems),
        parameters=read_values(message.parameters, "parameters", problems),
        value=message.value if message.HasField("value") else None,
        step=message.step if message.HasField("step") else None,
        reason=message.reason,
        failure_class=message.failure_class,
        client_id=message.client_id,
        request_id=message.request_id,
        labels=dict(message.labels),
        create_time=read_time(message.create_time) if message.HasField("create_time") else None,
        end_time=read_time(message.end_time) if message.HasField("end_time") else None,
        tries=message.tries,
        lease_s=read_duration(message.lease_duration) if message.HasField("lease_duration") else None,
        lease_expire_time=read_time(message.lease_expire_time) if message.HasField("lease_expire_time") else None,
        further=tuple(message.values[1:]),
        constraint_values=tuple(message.constraint_values),
        fidelity=message.fidelity if message.HasField("fidelity") else None,
        rungs=tuple(RungResult(rung.fidelity, rung.value) for rung in message.rungs),
        parent=message.parent if message.HasField("parent") else None,
    )
    raise_if(problems)
    return trial


def write_summary(study: Study, summary: StudySummary) -> pb.StudySummary:
    counts = [pb.TrialCount(state=_TO_STATE[state], count=n) for state, n in summary.trials.items()]
    return pb.StudySummary(trials=counts, best=None if summary.best is None else write_trial(study.name, summary.best))


def read_summary(message: pb.StudySummary) -> StudySummary:
    """Read a summary that a server sent."""
    by_state = {
        _STATES[count_of_state.state]: count_of_state.count
        for count_of_state in message.trials
        if count_of_state.state in _STATES
    }
    counts = {state: by_state[state] for state in TrialState if state in by_state}
    return StudySummary(counts, read_trial(message.best) if message.HasField("best") else None)


def read_finished(messages: Iterable[pb.FinishedTrial], path: str, problems: Problems) -> list[FinishedTrial]:
    trials = []
    for i, m in enumerate(messages):
        at = f"{path}[{i}]"
        trials.append(
            FinishedTrial(
                read_values(m.parameters, f"{at}.parameters", problems),
                read_outcome(m.outcome, f"{at}.outcome", problems),
                read_measurements(m.measurements, f"{at}.measurements", problems),
                read_labels(m.labels, f"{at}.labels", problems),
                m.source_id,
            )
        )
    return trials


def write_finished(trial: FinishedTrial) -> pb.FinishedTrial:
    message = pb.FinishedTrial(
        outcome=write_outcome(trial.outcome),
        measurements=[write_measurement(m) for m in trial.measurements],
        labels=dict(trial.labels),
        source_id=trial.source_id,
    )
    write_values(trial.parameters, message.parameters)
    return message


def read_import_result(message: pb.ImportResult) -> ImportResult:
    """Read an import result that a server sent."""
    remarks = tuple(Problem(r.field, r.description) for r in message.remarks)
    return ImportResult(message.number if message.HasField("number") else None, message.known, remarks)


def write_import_result(result: ImportResult) -> pb.ImportResult:
    remarks = [pb.ImportRemark(field=p.path, description=p.message) for p in result.problems]
    return pb.ImportResult(number=result.number, known=result.known, remarks=remarks)


def read_states(numbers: Iterable[int], path: str, problems: Problems) -> tuple[TrialState, ...]:
    return tuple(read_enum(n, _STATES, f"{path}[{i}]", problems) for i, n in enumerate(numbers))


def write_states(states: Iterable[TrialState]) -> list[pb.TrialState.ValueType]:
    return [_TO_STATE[state] for state in states]


def read_measurements(messages: Iterable[pb.Measurement], path: str, problems: Problems) -> tuple[Measurement, ...]:
    measurements = tuple(map(read_measurement, messages))
    for i, (attempt, metric, step, _) in enumerate(measurements):
        if attempt < 1:
            problems.append(Problem(f"{path}[{i}].attempt", f"{attempt}: attempts count from 1"))
        if step < 0:
            problems.append(Problem(f"{path}[{i}].step", f"{step} is negative"))
        if not 0 < len(metric) <= 256:
            problems.append(Problem(f"{path}[{i}].metric", "a metric's name has 1 to 256 characters"))
    return measurements


def read_measurement(message: pb.Measurement) -> Measurement:
    """Read a measurement that a server sent."""
    return Measurement(message.attempt, message.metric, message.step, message.value)


def write_measurement(m: Measurement) -> pb.Measurement:
    return pb.Measurement(attempt=m.attempt, metric=m.metric, step=m.step, value=m.value)


def read_outcome(message: pb.Outcome, path: str, problems: Problems) -> Outcome:
    match message.WhichOneof("kind"):
        case "succeeded":
            return _read_succeeded(message.succeeded, f"{path}.succeeded", problems)
        case "pruned":
            value = message.pruned.value if message.pruned.HasField("value") else None
            return Outcome(TrialState.PRUNED, value, reason=message.pruned.reason)
        case "infeasible":
            return Outcome(TrialState.INFEASIBLE, reason=message.infeasible.reason)
        case "failed":
            return Outcome(TrialState.FAILED, reason=message.failed.reason, failure_class=message.failed.failure_class)
        case "cancelled":
            return Outcome(TrialState.CANCELLED, reason=message.cancelled.reason)
    problems.append(Problem(path, "is not set; one of succeeded, pruned, infeasible, failed, cancelled"))
    return Outcome(TrialState.CANCELLED)


def _read_succeeded(message: pb.Succeeded, path: str, problems: Problems) -> Outcome:
    if not message.values:
        return Outcome(TrialState.SUCCEEDED, message.value if message.HasField("value") else None)
    if message.HasField("value"):
        problems.append(Problem(f"{path}.values", "set beside value; set one of them"))
    for place, value in enumerate(message.values):
        if not math.isfinite(value):
            problems.append(Problem(f"{path}.values[{place}]", f"{value} is not finite"))
    return Outcome(TrialState.SUCCEEDED, message.values[0], further=tuple(message.values[1:]))


def write_outcome(outcome: Outcome) -> pb.Outcome:
    match outcome.state:
        case TrialState.SUCCEEDED:
            if outcome.value is not None and outcome.further:
                return pb.Outcome(succeeded=pb.Succeeded(values=[outcome.value, *outcome.further]))
            return pb.Outcome(succeeded=pb.Succeeded(value=outcome.value))
        case TrialState.PRUNED:
            return pb.Outcome(pruned=pb.Pruned(value=outcome.value, reason=outcome.reason))
        case TrialState.INFEASIBLE:
            return pb.Outcome(infeasible=pb.Infeasible(reason=outcome.reason))
        case TrialState.FAILED:
            return pb.Outcome(failed=pb.Failed(failure_class=outcome.failure_class, reason=outcome.reason))
        case TrialState.CANCELLED:
            return pb.Outcome(cancelled=pb.Cancelled(reason=outcome.reason))
    raise InvalidArgument([Problem("outcome", f"{outcome.state.value} is not an outcome")])
