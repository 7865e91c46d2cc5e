"""Conversion between protobuf messages and domain objects, and the methods that take them.

Only this module, `suggest.server.service` and `suggest.client.async_client` use messages.
A reader appends every problem, with its path in the request, to a given list and returns
a usable placeholder; the caller raises once, at the end. The meaning of a spec (min above
max, unknown algorithms) is not checked. Writers do not validate domain objects, except
for values that protobuf cannot hold.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from suggest import names
from suggest.domain import MAX_JSON_DEPTH, MAX_JSON_LENGTH, compact_json, json_problem
from suggest.errors import InvalidArgument, Problem, Problems, raise_if
from suggest.imports import FinishedTrial, ImportResult
from suggest.nesting import is_nested_deeper
from suggest.replies import StudySummary
from suggest.space import (
    Assignment,
    Choice,
    Condition,
    Domain,
    Float,
    Int,
    Normal,
    Parameter,
    Scale,
    Space,
    Value,
)
from suggest.study import (
    DEFAULT_ETA,
    Algorithm,
    Belief,
    Constraint,
    Direction,
    EarlierStudy,
    Fidelity,
    Objective,
    PastSpace,
    Pruning,
    Study,
    StudyName,
    StudySpec,
    ValueRule,
)
from suggest.trial import Measurement, Outcome, RungResult, Trial, TrialState
from suggest.v1 import suggest_pb2 as pb

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the service, as the proto has it."""

    path: str
    request: type[Message]
    reply: type[Message]


_SERVICE = pb.DESCRIPTOR.services_by_name["SuggestService"]
SERVICE = _SERVICE.full_name
METHODS = {
    method.name: Method(
        f"/{SERVICE}/{method.name}",
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
    )
    for method in _SERVICE.methods
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


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
        case "json_value":
            return _read_json(message.json_value, path, problems)
    kinds = "string_value, int_value, double_value, bool_value, json_value"
    problems.add(path, f"holds no value; set one of {kinds}")
    return ""


def _read_json(text: str, path: str, problems: Problems) -> Value:
    """Parse null, a list or an object.

    The text is untrusted, so its depth is checked before it is parsed.
    """
    if len(text) > MAX_JSON_LENGTH:
        problem = f"it has {len(text)} characters; use at most {MAX_JSON_LENGTH}"
    elif is_nested_deeper(text, MAX_JSON_DEPTH):
        problem = f"it is nested more than {MAX_JSON_DEPTH} levels deep; use a flatter value"
    else:
        try:
            value: Value = json.loads(text, object_pairs_hook=_object)
        except ValueError as error:
            problem = str(error)
        else:
            if value is not None and not isinstance(value, list | dict):
                problem = (
                    "expected null, a list or an object; the other kinds have fields of their own"
                )
            else:
                problem = json_problem(value)
    if not problem:
        return value
    problems.add(path, f"json_value: {problem}")
    return ""


def _object(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has a key twice; keep one of the two")
    return members


def write_value(value: Value, path: str = "") -> pb.Value:
    """Write a value. Raises InvalidArgument, and TypeError for a value that is not JSON."""
    match value:
        case bool():
            return pb.Value(bool_value=value)
        case int():
            if not -(2**63) <= value < 2**63:
                raise InvalidArgument.at(path, f"{value} does not fit into 64 bits")
            return pb.Value(int_value=value)
        case float():
            return pb.Value(double_value=value)
        case str():
            return pb.Value(string_value=value)
    if value is not None and not isinstance(value, list | dict):
        expected = "text, a number, a boolean, None, or a list or dict of these"
        raise TypeError(
            f"{path or 'value'}: expected {expected}, got {value!r} ({type(value).__name__})"
        )
    if problem := json_problem(value):
        raise InvalidArgument.at(path, problem)
    return pb.Value(json_value=compact_json(value))


def read_values(
    messages: Mapping[str, pb.Value], path: str, problems: Problems
) -> dict[str, Value]:
    return {key: read_value(messages[key], f"{path}.{key}", problems) for key in sorted(messages)}


def write_values(values: Assignment, into: MutableMapping[str, pb.Value]) -> None:
    """Fill `into` in place, because a protobuf map of messages cannot be assigned."""
    for key, value in values.items():
        into[key].CopyFrom(write_value(value, key))


def read_enum(
    number: int,
    members: Mapping[int, E],
    path: str,
    problems: Problems,
    *,
    default: E | None = None,
) -> E:
    if number in members:
        return members[number]
    fallback = next(iter(members.values())) if default is None else default
    if number != 0:
        problems.add(path, f"{number} is not a value of this enum that the server knows")
    elif default is None:
        problems.add(path, "is not set")
    return fallback


def read_labels(labels: Mapping[str, str], path: str, problems: Problems) -> dict[str, str]:
    if len(labels) > 64:
        problems.add(path, f"{len(labels)} labels; at most 64")
    for key, value in labels.items():
        if not 0 < len(key) <= 128 or len(value) > 1024:
            problems.add(
                f"{path}.{key[:40]}",
                "a label's key has 1 to 128 characters, its value at most 1024",
            )
    return dict(labels)


def write_time(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    # A long list has many times, and Timestamp's own conversions take twice as long.
    seconds, microseconds = divmod((moment - _EPOCH) // _MICROSECOND, 1_000_000)
    return Timestamp(seconds=seconds, nanos=microseconds * 1000)


def read_time(stamp: Timestamp) -> datetime:
    return _EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)


def write_duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    whole, nanoseconds = divmod(round(seconds * 1e9), 10**9)
    return Duration(seconds=whole, nanos=nanoseconds)


def read_duration(duration: Duration) -> float | None:
    """Return the seconds, None if the duration is absent or 0."""
    return duration.seconds + duration.nanos / 1e9 or None


# Studies

# The names of the members are those of the proto.
_TO_SCALE = {scale: pb.Scale.Value(f"SCALE_{scale.name}") for scale in Scale}
_TO_DIRECTION = {
    direction: pb.Direction.Value(f"DIRECTION_{direction.name}") for direction in Direction
}
_TO_RULE = {rule: pb.ValueRule.Value(f"VALUE_RULE_{rule.name}") for rule in ValueRule}
_SCALES: dict[int, Scale] = {v: k for k, v in _TO_SCALE.items()}
_DIRECTIONS: dict[int, Direction] = {v: k for k, v in _TO_DIRECTION.items()}
_RULES: dict[int, ValueRule] = {v: k for k, v in _TO_RULE.items()}


def read_spec(message: pb.StudySpec, problems: Problems) -> StudySpec:
    space = read_space(message.parameters, "spec.parameters", problems)
    objectives = read_objectives(message.objectives, "spec.objectives", problems)
    if not objectives:
        problems.add("spec.objectives", "missing; a study has at least one")
    constraints = read_constraints(message.constraints)
    if not message.algorithm.name:
        problems.add("spec.algorithm.name", "missing; ListAlgorithms lists them")
    algorithm = Algorithm(
        message.algorithm.name,
        seed=message.algorithm.seed if message.algorithm.HasField("seed") else None,
        settings=read_values(message.algorithm.settings, "spec.algorithm.settings", problems),
    )
    pruning = (
        read_pruning(message.pruning, "spec.pruning", problems)
        if message.HasField("pruning")
        else None
    )
    f, fidelity = message.fidelity, None
    if message.HasField("fidelity"):
        fidelity = Fidelity(f.parameter, f.min, f.max, f.eta or DEFAULT_ETA)
    return StudySpec(
        space,
        objectives,
        algorithm,
        pruning,
        constraints,
        fidelity,
        message.define_by_run,
        learn_from=tuple(
            EarlierStudy(each.study, each.weight if each.HasField("weight") else 1.0)
            for each in message.learn_from
        ),
        prior=tuple(
            Belief(
                each.parameter,
                read_value(each.around, f"spec.prior[{i}].around", problems),
                each.sure,
            )
            for i, each in enumerate(message.prior)
        ),
    )


def read_objectives(
    messages: Iterable[pb.Objective], path: str, problems: Problems
) -> tuple[Objective, ...]:
    return tuple(
        _read_objective(message, f"{path}[{i}]", problems) for i, message in enumerate(messages)
    )


def write_objectives(objectives: Iterable[Objective]) -> list[pb.Objective]:
    return [
        pb.Objective(
            metric=o.metric, direction=_TO_DIRECTION[o.direction], value_rule=_TO_RULE[o.value]
        )
        for o in objectives
    ]


def read_constraints(messages: Iterable[pb.Constraint]) -> tuple[Constraint, ...]:
    return tuple(Constraint(c.metric, _bound(c, "min"), _bound(c, "max")) for c in messages)


def _bound(message: pb.Constraint, field: Literal["min", "max"]) -> float | None:
    bound: float = getattr(message, field)
    return bound if message.HasField(field) else None


def write_constraints(constraints: Iterable[Constraint]) -> list[pb.Constraint]:
    return [pb.Constraint(metric=c.metric, min=c.min, max=c.max) for c in constraints]


def write_spec(spec: StudySpec) -> pb.StudySpec:
    message = pb.StudySpec(
        parameters=write_space(spec.space),
        objectives=write_objectives(spec.objectives),
        algorithm=pb.Algorithm(name=spec.algorithm.name),
        constraints=write_constraints(spec.constraints),
        define_by_run=spec.define_by_run,
        learn_from=[
            pb.EarlierStudy(study=each.study, weight=each.weight) for each in spec.learn_from
        ],
        prior=[
            pb.Belief(
                parameter=each.parameter,
                around=write_value(each.around, f"prior.{each.parameter}.around"),
                sure=each.sure,
            )
            for each in spec.prior
        ],
    )
    if spec.algorithm.seed is not None:
        message.algorithm.seed = spec.algorithm.seed
    write_values(spec.algorithm.settings, message.algorithm.settings)
    if spec.pruning is not None:
        message.pruning.CopyFrom(write_pruning(spec.pruning))
    if (f := spec.fidelity) is not None:
        message.fidelity.CopyFrom(
            pb.Fidelity(parameter=f.parameter, min=f.min, max=f.max, eta=f.eta)
        )
    return message


def request_id_of(spec: StudySpec) -> str:
    """Return a request id, the same for equal specs: a second client gets the first one's study."""
    return (
        f"spec-{hashlib.sha256(write_spec(spec).SerializeToString(deterministic=True)).hexdigest()}"
    )


def read_space(messages: Sequence[pb.Parameter], path: str, problems: Problems) -> Space:
    return Space(tuple(read_parameter(p, f"{path}[{i}]", problems) for i, p in enumerate(messages)))


def write_space(space: Space) -> list[pb.Parameter]:
    return [write_parameter(p) for p in space.parameters]


def read_pruning(message: pb.Pruning, path: str, problems: Problems) -> Pruning:
    if not message.name:
        problems.add(f"{path}.name", "missing")
    return Pruning(message.name, read_values(message.settings, f"{path}.settings", problems))


def write_pruning(pruning: Pruning) -> pb.Pruning:
    message = pb.Pruning(name=pruning.name)
    write_values(pruning.settings, message.settings)
    return message


def _read_objective(message: pb.Objective, path: str, problems: Problems) -> Objective:
    if not message.metric:
        problems.add(f"{path}.metric", "missing")
    return Objective(
        message.metric,
        read_enum(message.direction, _DIRECTIONS, f"{path}.direction", problems),
        read_enum(
            message.value_rule, _RULES, f"{path}.value_rule", problems, default=ValueRule.LAST
        ),
    )


def read_parameter(message: pb.Parameter, path: str, problems: Problems) -> Parameter:
    if not message.name:
        problems.add(f"{path}.name", "missing")
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
            scale = read_enum(
                real.scale, _SCALES, f"{path}.float_domain.scale", problems, default=Scale.LINEAR
            )
            return Float(
                real.min,
                real.max,
                scale,
                step=real.step if real.HasField("step") else None,
                points=real.points if real.HasField("points") else None,
                normal=_read_normal(real, scale),
            )
        case "int_domain":
            whole = message.int_domain
            scale = read_enum(
                whole.scale, _SCALES, f"{path}.int_domain.scale", problems, default=Scale.LINEAR
            )
            return Int(
                whole.min,
                whole.max,
                scale,
                step=whole.step if whole.HasField("step") else 1,
                normal=_read_normal(whole, scale),
            )
        case "choice_domain":
            return Choice(
                _read_choices(
                    message.choice_domain.values, f"{path}.choice_domain.values", problems
                )
            )
    problems.add(path, "has no domain; set one of float_domain, int_domain, choice_domain")
    return Choice(("",))


def _read_normal(message: pb.FloatDomain | pb.IntDomain, scale: Scale) -> Normal | None:
    if not message.HasField("normal"):
        return None
    normal = message.normal
    return Normal.within(
        message.min,
        message.max,
        scale,
        mean=normal.mean if normal.HasField("mean") else None,
        deviation=normal.deviation if normal.HasField("deviation") else None,
    )


def _write_normal(normal: Normal | None) -> pb.NormalDistribution | None:
    if normal is None:
        return None
    return pb.NormalDistribution(mean=normal.mean, deviation=normal.deviation)


def write_parameter(parameter: Parameter) -> pb.Parameter:
    message = pb.Parameter(
        name=parameter.name,
        conditions=[
            pb.Condition(parameter=c.parameter, values=[write_value(v) for v in c.values])
            for c in parameter.when
        ],
    )
    match parameter.domain:
        case Float(low, high, scale, step, points, normal):
            message.float_domain.CopyFrom(
                pb.FloatDomain(
                    min=low,
                    max=high,
                    scale=_TO_SCALE[scale],
                    step=step,
                    points=points,
                    normal=_write_normal(normal),
                )
            )
        case Int(low, high, scale, step, normal):
            message.int_domain.CopyFrom(
                pb.IntDomain(
                    min=low,
                    max=high,
                    scale=_TO_SCALE[scale],
                    step=None if step == 1 else step,
                    normal=_write_normal(normal),
                )
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
        create_time=write_time(study.create_time),
        owner_address=study.owner_address,
        owner_epoch=study.owner_epoch,
        past=[
            pb.PastParameters(
                parameters=write_space(p.space), trials=p.trials, end_time=write_time(p.end_time)
            )
            for p in study.past
        ],
    )


def read_study(message: pb.Study) -> Study:
    """Read a study that a server sent."""
    problems = Problems()
    study = Study(
        name=names.parse_study(message.name, "name"),
        uid=message.uid,
        spec=read_spec(message.spec, problems),
        seed=message.seed,
        labels=dict(message.labels),
        create_time=read_time(message.create_time) if message.HasField("create_time") else None,
        owner_address=message.owner_address,
        owner_epoch=message.owner_epoch,
        past=tuple(
            PastSpace(
                read_space(p.parameters, f"past[{i}].parameters", problems),
                p.trials,
                read_time(p.end_time),
            )
            for i, p in enumerate(message.past)
        ),
    )
    raise_if(problems)
    return study


# Trials

_TO_STATE = {state: pb.TrialState.Value(f"TRIAL_STATE_{state.name}") for state in TrialState}
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
    problems = Problems()
    has = message.HasField
    trial = Trial(
        number=message.number,
        state=read_enum(message.state, _STATES, "state", problems),
        parameters=read_values(message.parameters, "parameters", problems),
        value=message.value if has("value") else None,
        step=message.step if has("step") else None,
        reason=message.reason,
        failure_class=message.failure_class,
        client_id=message.client_id,
        request_id=message.request_id,
        labels=dict(message.labels),
        create_time=read_time(message.create_time) if has("create_time") else None,
        end_time=read_time(message.end_time) if has("end_time") else None,
        tries=message.tries,
        lease_s=read_duration(message.lease_duration) if has("lease_duration") else None,
        lease_expire_time=(
            read_time(message.lease_expire_time) if has("lease_expire_time") else None
        ),
        further=tuple(message.values[1:]),
        constraint_values=tuple(message.constraint_values),
        fidelity=message.fidelity if has("fidelity") else None,
        rungs=tuple(RungResult(rung.fidelity, rung.value) for rung in message.rungs),
        parent=message.parent if has("parent") else None,
    )
    raise_if(problems)
    return trial


def write_summary(study: Study, summary: StudySummary) -> pb.StudySummary:
    counts = [pb.TrialCount(state=_TO_STATE[state], count=n) for state, n in summary.trials.items()]
    return pb.StudySummary(
        trials=counts, best=None if summary.best is None else write_trial(study.name, summary.best)
    )


def read_summary(message: pb.StudySummary) -> StudySummary:
    """Read a summary that a server sent."""
    by_state = {
        _STATES[count_of_state.state]: count_of_state.count
        for count_of_state in message.trials
        if count_of_state.state in _STATES
    }
    counts = {state: by_state[state] for state in TrialState if state in by_state}
    return StudySummary(counts, read_trial(message.best) if message.HasField("best") else None)


def read_finished(
    messages: Iterable[pb.FinishedTrial], path: str, problems: Problems
) -> list[FinishedTrial]:
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
    return ImportResult(
        message.number if message.HasField("number") else None, message.known, remarks
    )


def write_import_result(result: ImportResult) -> pb.ImportResult:
    remarks = [pb.ImportRemark(field=p.path, description=p.message) for p in result.problems]
    return pb.ImportResult(number=result.number, known=result.known, remarks=remarks)


def read_states(numbers: Iterable[int], path: str, problems: Problems) -> tuple[TrialState, ...]:
    return tuple(read_enum(n, _STATES, f"{path}[{i}]", problems) for i, n in enumerate(numbers))


def write_states(states: Iterable[TrialState]) -> list[pb.TrialState.ValueType]:
    return [_TO_STATE[state] for state in states]


def read_measurements(
    messages: Iterable[pb.Measurement], path: str, problems: Problems
) -> tuple[Measurement, ...]:
    measurements = tuple(map(read_measurement, messages))
    for i, (attempt, metric, step, _) in enumerate(measurements):
        if attempt < 1:
            problems.add(f"{path}[{i}].attempt", f"{attempt}: attempts count from 1")
        if step < 0:
            problems.add(f"{path}[{i}].step", f"{step} is negative")
        if not 0 < len(metric) <= 256:
            problems.add(f"{path}[{i}].metric", "a metric's name has 1 to 256 characters")
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
            return Outcome(
                TrialState.FAILED,
                reason=message.failed.reason,
                failure_class=message.failed.failure_class,
            )
        case "cancelled":
            return Outcome(TrialState.CANCELLED, reason=message.cancelled.reason)
    problems.add(path, "is not set; one of succeeded, pruned, infeasible, failed, cancelled")
    return Outcome(TrialState.CANCELLED)


def _read_succeeded(message: pb.Succeeded, path: str, problems: Problems) -> Outcome:
    if not message.values:
        return Outcome(TrialState.SUCCEEDED, message.value if message.HasField("value") else None)
    if message.HasField("value"):
        problems.add(f"{path}.values", "set beside value; set one of them")
    for place, value in enumerate(message.values):
        if not math.isfinite(value):
            problems.add(f"{path}.values[{place}]", f"{value} is not finite")
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
            return pb.Outcome(
                failed=pb.Failed(failure_class=outcome.failure_class, reason=outcome.reason)
            )
        case TrialState.CANCELLED:
            return pb.Outcome(cancelled=pb.Cancelled(reason=outcome.reason))
    raise InvalidArgument.at("outcome", f"{outcome.state.value} is not an outcome")
