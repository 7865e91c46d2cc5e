"""Spaces that grow define-by-run: a trial names its parameters while it runs.

A parameter joins the space when a trial meets it first. Its conditions are inferred from the trials
that met it and from those that succeeded without it. They only guide the models: a trial may meet
any parameter at any time, and one that a condition excludes is decided when it is met. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from suggest.domain import (
    NO_MEMBER,
    Choice,
    Domain,
    Float,
    Int,
    Value,
    identity,
    kind_of,
    number,
    show,
)
from suggest.errors import InvalidArgument
from suggest.space import Assignment, Condition, Parameter, Space
from suggest.trial import Trial, TrialState

# Each parameter that joins rebuilds the models; a name that depends on chance never stops to join.
MOST_PARAMETERS = 1000
# Parents with more values explain any difference by chance.
MOST_PARENT_VALUES = 64


def joined(space: Space, name: str, domain: Domain) -> Space:
    """Return the space with the parameter; one that is known has the range that includes both.

    Raises InvalidArgument: the parameter is of another kind than before, or is one too many.
    """
    known = space.by_name.get(name)
    if known is None:
        if len(space.parameters) >= MOST_PARAMETERS:
            raise InvalidArgument.at(
                f"parameter.{name}",
                f"the trials have named {MOST_PARAMETERS} parameters, which is the most; a name "
                "must not depend on chance, on the trial or on data",
            )
        return space.joined_by(Parameter(name, domain))
    both = _including(name, known.domain, domain)
    if both == known.domain:
        return space
    parameters = [replace(p, domain=both) if p.name == name else p for p in space.parameters]
    return Space(tuple(parameters))


def nearest(name: str, domain: Domain, chosen: Value) -> Value:
    """Return the value that a person chose for the trial, or the nearest one of the range.

    A range that was widened for it would be searched by every later trial. Raises InvalidArgument:
    there is none, as for a choice.
    """
    if (value := domain.canonical(chosen)) is not NO_MEMBER:
        return value
    wanted = number(chosen)
    if not isinstance(domain, Choice) and wanted is not None and math.isfinite(wanted):
        inside = min(max(wanted, domain.min), domain.max)
        if domain.step is None or domain.count is None:
            return float(inside)
        return domain.at(min(round((inside - domain.min) / domain.step), domain.count - 1))
    raise InvalidArgument.at(
        f"parameter.{name}",
        f"a value was chosen for the trial: {domain.problem_with(chosen)}; choose another one",
    )


def _including(name: str, old: Domain, new: Domain) -> Domain:
    match old, new:
        case Choice(), Choice():
            if list(map(identity, old.values)) != list(map(identity, new.values)):
                raise InvalidArgument.at(
                    f"parameter.{name}",
                    f"its choices were {_listed(old)} earlier and are {_listed(new)}; "
                    "choices cannot change within a search: use another name, or always the same "
                    "choices",
                )
            return old
        case Float(), Float():
            _check_scales(name, old, new)
            low, high = min(old.min, new.min), max(old.max, new.max)
            same_grid = old == new
            return old if same_grid else Float(low, high, old.scale)
        case Int(), Int():
            _check_scales(name, old, new)
            if old == new:
                return old
            return Int(min(old.min, new.min), max(old.max, new.max), old.scale)
    raise InvalidArgument.at(
        f"parameter.{name}",
        f"it was {kind_of(old)} earlier and is {kind_of(new)}; a parameter keeps its "
        "kind: use another name for the other one",
    )


def _check_scales(name: str, old: Float | Int, new: Float | Int) -> None:
    if old.scale is not new.scale:
        raise InvalidArgument.at(
            f"parameter.{name}",
            f"its scale was {old.scale.value} earlier and is {new.scale.value}; a "
            "parameter keeps its scale: use another name for the other one",
        )


def _listed(choice: Choice) -> str:
    shown = ", ".join(map(show, choice.values[:8]))
    return f"[{shown}{', …' if len(choice.values) > 8 else ''}]"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The points of trials that tell which parameters depend on which.

    complete: those of trials that succeeded, and therefore met all that they needed.
    """

    points: Sequence[Assignment]
    complete: Sequence[Assignment]

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> Evidence:
        begun = [trial for trial in trials if trial.parameters]
        complete = [t.parameters for t in begun if t.state is TrialState.SUCCEEDED]
        return cls([trial.parameters for trial in begun], complete)


def conditioned(space: Space, evidence: Evidence) -> Space:
    """Return the space with the conditions that explain which trials met which parameters.

    The conditions of a parameter hold for every point that has it. They exclude as many complete
    points that lack it as earlier choices and small ranges of integers can.
    """
    parameters: list[Parameter] = []
    for parameter in space.parameters:
        when = _conditions(parameter.name, parameters, evidence)
        parameters.append(replace(parameter, when=when))
    return Space(tuple(parameters))


def _conditions(
    name: str, earlier: Sequence[Parameter], evidence: Evidence
) -> tuple[Condition, ...]:
    having = [point for point in evidence.points if name in point]
    lacking = [point for point in evidence.complete if name not in point]
    if not lacking:
        return ()
    parents = [p for p in earlier if _may_be_parent(p.domain)]
    parents = [p for p in parents if all(p.name in point for point in having)]
    # Choices first, then the shortest ranges: each value more explains more by chance.
    parents.sort(key=lambda p: (not isinstance(p.domain, Choice), p.domain.count or 0))
    found: list[Condition] = []
    while lacking and parents:
        ways = [_condition(parent, having, lacking) for parent in parents]
        left = [[point for point in lacking if way.holds(point)] for way in ways]
        best = min(range(len(ways)), key=lambda k: len(left[k]))
        if len(left[best]) == len(lacking):
            break
        found.append(ways[best])
        lacking = left[best]
        del parents[best]
    return tuple(found)


def _may_be_parent(domain: Domain) -> bool:
    if isinstance(domain, Choice):
        return 1 < len(domain.values) <= MOST_PARENT_VALUES
    if isinstance(domain, Float) or domain.is_uneven or domain.count is None:
        return False
    return 1 < domain.count <= MOST_PARENT_VALUES


def _condition(
    parent: Parameter, having: Sequence[Assignment], lacking: Sequence[Assignment]
) -> Condition:
    """Return the condition that the parent has a value as in the points of `having`.

    A value of a range that no point has follows the nearest one that a point has.
    """
    name, domain = parent.name, parent.domain
    met = _distinct(point[name] for point in having)
    if isinstance(domain, Choice):
        return Condition(name, met)
    without = _distinct(point[name] for point in lacking if name in point)
    assert domain.count is not None
    values = (domain.at(index) for index in range(domain.count))
    return Condition(
        name, tuple(v for v in values if _distance(v, met) <= _distance(v, without)) or met
    )


def _distinct(values: Iterable[Value]) -> tuple[Value, ...]:
    return tuple({identity(value): value for value in values}.values())


def _distance(value: Value, others: Sequence[Value]) -> float:
    assert isinstance(value, int)
    return min((abs(value - o) for o in others if isinstance(o, int)), default=float("inf"))
