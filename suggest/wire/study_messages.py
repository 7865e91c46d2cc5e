"""Messages of studies and their specs. The meaning of a spec (min above max, unknown algorithms) is not checked."""

from __future__ import annotations

from collections.abc import Sequence

from suggest import names
from suggest.errors import Problem
from suggest.space import Choice, Condition, Domain, Float, Int, Normal, Parameter, Scale, Space, Value
from suggest.study import (
    DEFAULT_ETA,
    Algorithm,
    Constraint,
    Direction,
    Fidelity,
    Objective,
    PastSpace,
    Pruning,
    Study,
    StudySpec,
    ValueRule,
)
from suggest.v1 import suggest_pb2 as pb
from suggest.wire.values import (
    Problems,
    raise_if,
    read_enum,
    read_time,
    read_value,
    read_values,
    write_time,
    write_value,
    write_values,
)

_TO_SCALE = {Scale.LINEAR: pb.SCALE_LINEAR, Scale.LOG: pb.SCALE_LOG}
_TO_DIRECTION = {Direction.MINIMIZE: pb.DIRECTION_MINIMIZE, Direction.MAXIMIZE: pb.DIRECTION_MAXIMIZE}
_TO_RULE = {
    ValueRule.LAST: pb.VALUE_RULE_LAST,
    ValueRule.BEST: pb.VALUE_RULE_BEST,
    ValueRule.WORST: pb.VALUE_RULE_WORST,
}
_SCALES: dict[int, Scale] = {v: k for k, v in _TO_SCALE.items()}
_DIRECTIONS: dict[int, Direction] = {v: k for k, v in _TO_DIRECTION.items()}
_RULES: dict[int, ValueRule] = {v: k for k, v in _TO_RULE.items()}


def read_spec(message: pb.StudySpec, path: str, problems: Problems) -> StudySpec:
    space = read_space(message.parameters, f"{path}.parameters", problems)
    objectives = tuple(
        _read_objective(o, f"{path}.objectives[{i}]", problems) for i, o in enumerate(message.objectives)
    )
    if not objectives:
        problems.append(Problem(f"{path}.objectives", "missing; a study has at least one"))
    constraints = tuple(
        Constraint(c.metric, c.min if c.HasField("min") else None, c.max if c.HasField("max") else None)
        for c in message.constraints
    )
    if not message.algorithm.name:
        problems.append(Problem(f"{path}.algorithm.name", "missing; ListAlgorithms lists them"))
    algorithm = Algorithm(
        message.algorithm.name,
        seed=message.algorithm.seed if message.algorithm.HasField("seed") else None,
        settings=read_values(message.algorithm.settings, f"{path}.algorithm.settings", problems),
    )
    pruning = read_pruning(message.pruning, f"{path}.pruning", problems) if message.HasField("pruning") else None
    fidelity = _read_fidelity(message.fidelity) if message.HasField("fidelity") else None
    return StudySpec(space, objectives, algorithm, pruning, constraints, fidelity)


def _read_fidelity(message: pb.Fidelity) -> Fidelity:
    return Fidelity(message.parameter, message.min, message.max, message.eta or DEFAULT_ETA)


def write_spec(spec: StudySpec) -> pb.StudySpec:
    message = pb.StudySpec(
        parameters=write_space(spec.space),
        objectives=[
            pb.Objective(metric=o.metric, direction=_TO_DIRECTION[o.direction], value_rule=_TO_RULE[o.value])
            for o in spec.objectives
        ],
        algorithm=pb.Algorithm(name=spec.algorithm.name),
        constraints=[pb.Constraint(metric=c.metric, min=c.min, max=c.max) for c in spec.constraints],
    )
    if spec.algorithm.seed is not None:
        message.algorithm.seed = spec.algorithm.seed
    write_values(spec.algorithm.settings, message.algorithm.settings)
    if spec.pruning is not None:
        message.pruning.CopyFrom(write_pruning(spec.pruning))
    if (f := spec.fidelity) is not None:
        message.fidelity.CopyFrom(pb.Fidelity(parameter=f.parameter, min=f.min, max=f.max, eta=f.eta))
    return message


def read_space(messages: Sequence[pb.Parameter], path: str, problems: Problems) -> Space:
    return Space(tuple(_read_parameter(p, f"{path}[{i}]", problems) for i, p in enumerate(messages)))


def write_space(space: Space) -> list[pb.Parameter]:
    return [_write_parameter(p) for p in space.parameters]


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
        read_enum(message.direction, _DIRECTIONS, f"{path}.direction", problems),
        read_enum(message.value_rule, _RULES, f"{path}.value_rule", problems, default=ValueRule.LAST),
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
            scale = read_enum(real.scale, _SCALES, f"{path}.float_domain.scale", problems, default=Scale.LINEAR)
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
            scale = read_enum(whole.scale, _SCALES, f"{path}.int_domain.scale", problems, default=Scale.LINEAR)
            return Int(
                whole.min,
                whole.max,
                scale,
                step=whole.step if whole.HasField("step") else 1,
                normal=_read_normal(whole, scale),
            )
        case "choice_domain":
            return Choice(_read_choices(message.choice_domain.values, f"{path}.choice_domain.values", problems))
    problems.append(Problem(path, "has no domain; set one of float_domain, int_domain, choice_domain"))
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
    return None if normal is None else pb.NormalDistribution(mean=normal.mean, deviation=normal.deviation)


def _write_parameter(parameter: Parameter) -> pb.Parameter:
    message = pb.Parameter(
        name=parameter.name,
        conditions=[
            pb.Condition(parameter=c.parameter, values=[write_value(v) for v in c.values]) for c in parameter.when
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
            pb.PastParameters(parameters=write_space(p.space), trials=p.trials, end_time=write_time(p.end_time))
            for p in study.past
        ],
    )


def read_study(message: pb.Study) -> Study:
    """Read a study that a server sent."""
    problems: Problems = []
    study = Study(
        name=names.parse_study(message.name, "name"),
        uid=message.uid,
        spec=read_spec(message.spec, "spec", problems),
        seed=message.seed,
        labels=dict(message.labels),
        create_time=read_time(message.create_time) if message.HasField("create_time") else None,
        owner_address=message.owner_address,
        owner_epoch=message.owner_epoch,
        past=tuple(
            PastSpace(read_space(p.parameters, f"past[{i}].parameters", problems), p.trials, read_time(p.end_time))
            for i, p in enumerate(message.past)
        ),
    )
    raise_if(problems)
    return study
