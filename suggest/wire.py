"""Protobuf to nouns and back: the only module, with `suggest.service` and `suggest.client`, that sees messages.

Reading collects every problem with its path in the request into the list it is given, and returns something usable in
its stead; whoever reads raises once, at the end. Writing trusts the nouns, except for what protobuf cannot hold.
What a spec *means* (min above max, unknown algorithms) is not judged here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from suggest import names
from suggest.errors import InvalidArgument, Problem
from suggest.space import Assignment, Choice, Condition, Domain, Float, Int, Parameter, Scale, Space, Value
from suggest.study import Algorithm, Direction, Objective, Pruning, Study, StudyName, StudySpec, ValueRule
from suggest.trial import Measurement, Outcome, Trial, TrialState
from suggest.v1 import suggest_pb2 as pb

Problems = list[Problem]
E = TypeVar("E")

_TO_SCALE = {Scale.LINEAR: pb.SCALE_LINEAR, Scale.LOG: pb.SCALE_LOG}
_TO_DIRECTION = {Direction.MINIMIZE: pb.DIRECTION_MINIMIZE, Direction.MAXIMIZE: pb.DIRECTION_MAXIMIZE}
_TO_RULE = {ValueRule.LAST: pb.VALUE_RULE_LAST, ValueRule.BEST: pb.VALUE_RULE_BEST}
_TO_STATE = {
    TrialState.QUEUED: pb.TRIAL_STATE_QUEUED,
    TrialState.RUNNING: pb.TRIAL_STATE_RUNNING,
    TrialState.SUCCEEDED: pb.TRIAL_STATE_SUCCEEDED,
    TrialState.PRUNED: pb.TRIAL_STATE_PRUNED,
    TrialState.INFEASIBLE: pb.TRIAL_STATE_INFEASIBLE,
    TrialState.FAILED: pb.TRIAL_STATE_FAILED,
    TrialState.CANCELLED: pb.TRIAL_STATE_CANCELLED,
}
_SCALES: dict[int, Scale] = {v: k for k, v in _TO_SCALE.items()}
_DIRECTIONS: dict[int, Direction] = {v: k for k, v in _TO_DIRECTION.items()}
_RULES: dict[int, ValueRule] = {v: k for k, v in _TO_RULE.items()}
_STATES: dict[int, TrialState] = {v: k for k, v in _TO_STATE.items()}


def raise_if(problems: Problems) -> None:
    if problems:
        raise InvalidArgument(problems)


# Values


def read_value(message: pb.Value, path: str, problems: Problems) -> Value:
    match message.WhichOneof("kind"):
        case "string_value":
            return message.string_value
        case "int_value":
            return message.int_value
        case "double_value":
            return message.double_value
        case "bool_value":
            return message.bool_value
    problems.append(Problem(path, "holds no value; set one of string_value, int_value, double_value, bool_value"))
    return ""


def write_value(value: Value) -> pb.Value:
    match value:
        case bool():
            return pb.Value(bool_value=value)
        case int():
            if not -(2**63) <= value < 2**63:
                raise InvalidArgument([Problem("", f"{value} does not fit into 64 bits")])
            return pb.Value(int_value=value)
        case float():
            return pb.Value(double_value=value)
        case str():
            return pb.Value(string_value=value)
    raise InvalidArgument([Problem("", f"{value!r} is no string, number or boolean")])


def read_values(messages: Mapping[str, pb.Value], path: str, problems: Problems) -> dict[str, Value]:
    return {key: read_value(messages[key], f"{path}.{key}", problems) for key in sorted(messages)}


def write_values(values: Assignment, into: MutableMapping[str, pb.Value]) -> None:
    """A map of messages cannot be assigned to: its entries are filled in place."""
    for key, value in values.items():
        into[key].CopyFrom(write_value(value))


def _read_enum(number: int, known: Mapping[int, E], path: str, problems: Problems, *, default: E | None = None) -> E:
    if number in known:
        return known[number]
    fallback = next(iter(known.values())) if default is None else default
    if number != 0:
        problems.append(Problem(path, f"{number} is no value of this enum that the server knows"))
    elif default is None:
        problems.append(Problem(path, "is not set"))
    return fallback


def read_labels(labels: Mapping[str, str], path: str, problems: Problems) -> dict[str, str]:
    if len(labels) > 64:
        problems.append(Problem(path, f"{len(labels)} labels; at most 64"))
    for key, value in labels.items():
        if not 0 < len(key) <= 128 or len(value) > 1024:
            problems.append(
                Problem(f"{path}.{key[:40]}", "a label's key has 1 to 128 characters, its value at most 1024")
            )
    return dict(labels)


def _time(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def _moment(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)


# Studies


def read_spec(message: pb.StudySpec, path: str, problems: Problems) -> StudySpec:
    parameters = tuple(
        _read_parameter(p, f"{path}.parameters[{i}]", problems) for i, p in enumerate(message.parameters)
    )
    objectives = tuple(
        _read_objective(o, f"{path}.objectives[{i}]", problems) for i, o in enumerate(message.objectives)
    )
    if len(objectives) != 1:
        problems.append(Problem(f"{path}.objectives", f"{len(objectives)} objectives; exactly one is supported"))
    if not message.algorithm.name:
        problems.append(Problem(f"{path}.algorithm.name", "missing; ListAlgorithms says which there are"))
    algorithm = Algorithm(
        message.algorithm.name,
        seed=message.algorithm.seed if message.algorithm.HasField("seed") else None,
        settings=read_values(message.algorithm.settings, f"{path}.algorithm.settings", problems),
    )
    pruning = read_pruning(message.pruning, f"{path}.pruning", problems) if message.HasField("pruning") else None
    return StudySpec(Space(parameters), objectives, algorithm, pruning)


def write_spec(spec: StudySpec) -> pb.StudySpec:
    message = pb.StudySpec(
        parameters=[_write_parameter(p) for p in spec.space.parameters],
        objectives=[
            pb.Objective(metric=o.metric, direction=_TO_DIRECTION[o.direction], value_rule=_TO_RULE[o.value])
            for o in spec.objectives
        ],
        algorithm=pb.Algorithm(name=spec.algorithm.name),
    )
    if spec.algorithm.seed is not None:
        message.algorithm.seed = spec.algorithm.seed
    write_values(spec.algorithm.settings, message.algorithm.settings)
    if spec.pruning is not None:
        message.pruning.CopyFrom(write_pruning(spec.pruning))
    return message


def read_pruning(message: pb.Pruning, path: str, problems: Problems) -> Pruning:
    if not message.name:
        problems.append(Problem(f"{path}.name", "missing"))
    return Pruning(message.name, read_values(message.settings, f"{path}.settings", problems))


def write_pruning(pruning: Pruning) -> pb.Pruning:
    message = pb.Pruning(name=pruning.name)
    write_values(pruning.settings, message.settings)
    return message


def _read_objective(message: pb.Objective, path: str, problems: Problems) -> Objective:
    if not message.metric:
        problems.append(Problem(f"{path}.metric", "missing"))
    return Objective(
        message.metric,
        _read_enum(message.direction, _DIRECTIONS, f"{path}.direction", problems),
        _read_enum(message.value_rule, _RULES, f"{path}.value_rule", problems, default=ValueRule.LAST),
    )


def _read_parameter(message: pb.Parameter, path: str, problems: Problems) -> Parameter:
    if not message.name:
        problems.append(Problem(f"{path}.name", "missing"))
    conditions = tuple(
        Condition(c.parameter, _read_choices(c.values, f"{path}.conditions[{i}].values", problems))
        for i, c in enumerate(message.conditions)
    )
    return Parameter(message.name, _read_domain(message, path, problems), conditions)


def _read_choices(messages: Sequence[pb.Value], path: str, problems: Problems) -> tuple[Value, ...]:
    return tuple(read_value(v, f"{path}[{i}]", problems) for i, v in enumerate(messages))


def _read_domain(message: pb.Parameter, path: str, problems: Problems) -> Domain:
    match message.WhichOneof("domain"):
        case "float_domain":
            real = message.float_domain
            return Float(
                real.min,
                real.max,
                _read_enum(real.scale, _SCALES, f"{path}.float_domain.scale", problems, default=Scale.LINEAR),
                step=real.step if real.HasField("step") else None,
                points=real.points if real.HasField("points") else None,
            )
        case "int_domain":
            whole = message.int_domain
            return Int(
                whole.min,
                whole.max,
                _read_enum(whole.scale, _SCALES, f"{path}.int_domain.scale", problems, default=Scale.LINEAR),
                step=whole.step if whole.HasField("step") else 1,
            )
        case "choice_domain":
            return Choice(_read_choices(message.choice_domain.values, f"{path}.choice_domain.values", problems))
    problems.append(Problem(path, "has no domain; set one of float_domain, int_domain, choice_domain"))
    return Choice(("",))


def _write_parameter(parameter: Parameter) -> pb.Parameter:
    message = pb.Parameter(
        name=parameter.name,
        conditions=[
            pb.Condition(parameter=c.parameter, values=[write_value(v) for v in c.values]) for c in parameter.when
        ],
    )
    match parameter.domain:
        case Float(low, high, scale, step, points):
            message.float_domain.CopyFrom(
                pb.FloatDomain(min=low, max=high, scale=_TO_SCALE[scale], step=step, points=points)
            )
        case Int(low, high, scale, step):
            message.int_domain.CopyFrom(
                pb.IntDomain(min=low, max=high, scale=_TO_SCALE[scale], step=None if step == 1 else step)
            )
        case Choice(values):
            message.choice_domain.CopyFrom(pb.ChoiceDomain(values=[write_value(v) for v in values]))
    return message


def write_study(study: Study) -> pb.Study:
    return pb.Study(
        name=str(study.name),
        uid=study.uid,
        spec=write_spec(study.spec),
        seed=study.seed,
        labels=dict(study.labels),
        create_time=_time(study.create_time),
        owner_address=study.owner_address,
        owner_epoch=study.owner_epoch,
    )


def read_study(message: pb.Study) -> Study:
    """What a server sent."""
    problems: Problems = []
    study = Study(
        name=names.parse_study(message.name, "name"),
        uid=message.uid,
        spec=read_spec(message.spec, "spec", problems),
        seed=message.seed,
        labels=dict(message.labels),
        create_time=_moment(message.create_time) if message.HasField("create_time") else None,
        owner_address=message.owner_address,
        owner_epoch=message.owner_epoch,
    )
    raise_if(problems)
    return study


# Trials


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
        create_time=_time(trial.create_time),
        end_time=_time(trial.end_time),
    )
    write_values(trial.parameters, message.parameters)
    return message


def read_trial(message: pb.Trial) -> Trial:
    """What a server sent."""
    problems: Problems = []
    trial = Trial(
        number=message.number,
        state=_read_enum(message.state, _STATES, "state", problems),
        parameters=read_values(message.parameters, "parameters", problems),
        value=message.value if message.HasField("value") else None,
        step=message.step if message.HasField("step") else None,
        reason=message.reason,
        failure_class=message.failure_class,
        client_id=message.client_id,
        request_id=message.request_id,
        labels=dict(message.labels),
        create_time=_moment(message.create_time) if message.HasField("create_time") else None,
        end_time=_moment(message.end_time) if message.HasField("end_time") else None,
    )
    raise_if(problems)
    return trial


def read_states(numbers: Iterable[int], path: str, problems: Problems) -> tuple[TrialState, ...]:
    return tuple(_read_enum(n, _STATES, f"{path}[{i}]", problems) for i, n in enumerate(numbers))


def write_states(states: Iterable[TrialState]) -> list[pb.TrialState.ValueType]:
    return [_TO_STATE[state] for state in states]


def read_measurements(messages: Iterable[pb.Measurement], path: str, problems: Problems) -> tuple[Measurement, ...]:
    found = tuple(read_measurement(m) for m in messages)
    for i, m in enumerate(found):
        if m.attempt < 1:
            problems.append(Problem(f"{path}[{i}].attempt", f"{m.attempt}: attempts count from 1"))
        if m.step < 0:
            problems.append(Problem(f"{path}[{i}].step", f"{m.step} is negative"))
        if not 0 < len(m.metric) <= 256:
            problems.append(Problem(f"{path}[{i}].metric", "a metric's name has 1 to 256 characters"))
    return found


def read_measurement(message: pb.Measurement) -> Measurement:
    """What a server sent."""
    return Measurement(message.attempt, message.metric, message.step, message.value)


def write_measurement(m: Measurement) -> pb.Measurement:
    return pb.Measurement(attempt=m.attempt, metric=m.metric, step=m.step, value=m.value)


def read_outcome(message: pb.Outcome, path: str, problems: Problems) -> Outcome:
    match message.WhichOneof("kind"):
        case "succeeded":
            value = message.succeeded.value if message.succeeded.HasField("value") else None
            return Outcome(TrialState.SUCCEEDED, value)
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


def write_outcome(outcome: Outcome) -> pb.Outcome:
    match outcome.state:
        case TrialState.SUCCEEDED:
            return pb.Outcome(succeeded=pb.Succeeded(value=outcome.value))
        case TrialState.PRUNED:
            return pb.Outcome(pruned=pb.Pruned(value=outcome.value, reason=outcome.reason))
        case TrialState.INFEASIBLE:
            return pb.Outcome(infeasible=pb.Infeasible(reason=outcome.reason))
        case TrialState.FAILED:
            return pb.Outcome(failed=pb.Failed(failure_class=outcome.failure_class, reason=outcome.reason))
        case TrialState.CANCELLED:
            return pb.Outcome(cancelled=pb.Cancelled(reason=outcome.reason))
    raise InvalidArgument([Problem("outcome", f"{outcome.state.value} is no outcome")])
