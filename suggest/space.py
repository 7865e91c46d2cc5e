"""The search space: parameters, their domains and conditions,
and which assignments are points of it.

Pure, standard library only, because `tuner validate` and the controller's core import it. Problems
have paths relative to the space, such as `lr.min`; the caller adds the place in front.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from suggest.domain import (
    NO_MEMBER,
    Choice,
    Domain,
    Float,
    Identity,
    Int,
    Normal,
    Scale,
    Value,
    identity,
    json_problem,
    show,
    spelled,
)
from suggest.errors import Hints, InvalidArgument, Problem, under

__all__ = [
    "Assignment",
    "Choice",
    "Condition",
    "Domain",
    "Float",
    "Int",
    "Normal",
    "Parameter",
    "Scale",
    "Space",
    "Value",
]

Assignment: TypeAlias = Mapping[str, Value]

MAX_NAME = 253  # characters


def name_rule(most: int) -> str:
    return f"1 to {most} characters that can be printed, without {{ and }}"


NAME_RULE = name_rule(MAX_NAME)


def is_name(name: str) -> bool:
    """Return whether the text can name a parameter.

    It can be whatever `${name}` can say in one line, such as `--lr`.
    """
    return 0 < len(name) <= MAX_NAME and name.isprintable() and "{" not in name and "}" not in name


@dataclass(frozen=True, slots=True)
class Condition:
    """Holds when `parameter` is active and has one of `values`."""

    parameter: str
    values: tuple[Value, ...]

    def holds(self, active: Assignment) -> bool:
        """Return whether the condition holds. `active` has the values of active parameters only."""
        if self.parameter not in active:
            return False
        value = active[self.parameter]
        return any(v == value and identity(v) == identity(value) for v in self.values)

    def __str__(self) -> str:
        return f"{self.parameter} is {' or '.join(show(v) for v in self.values)}"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter, which is active when all of its conditions hold.

    Conditions may name any other parameter.
    """

    name: str
    domain: Domain
    when: tuple[Condition, ...] = ()

    def active(self, among: Assignment) -> bool:
        """Return whether the parameter is active.

        `among` has the values of active parameters only.
        """
        return all(condition.holds(among) for condition in self.when)


@dataclass(frozen=True, slots=True)
class Space:
    parameters: tuple[Parameter, ...]
    # Derived from the parameters when first needed.
    _ordered: tuple[Parameter, ...] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    _by_name: dict[str, Parameter] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def by_name(self) -> Mapping[str, Parameter]:
        if self._by_name is None:
            object.__setattr__(self, "_by_name", {p.name: p for p in self.parameters})
        assert self._by_name is not None
        return self._by_name

    @property
    def ordered(self) -> tuple[Parameter, ...]:
        """Return the parameters, each after those that its conditions name.

        Otherwise they are in the order of the space.

        Raises:
            InvalidArgument: the conditions form a cycle.
        """
        if self._ordered is None:
            ordered, stuck = _sort(self.parameters)
            if stuck:
                raise InvalidArgument(self.problems())
            object.__setattr__(self, "_ordered", tuple(ordered))
        assert self._ordered is not None
        return self._ordered

    def active(self, assignment: Assignment, name: str) -> bool:
        """Return whether the parameter is active in the assignment."""
        parameter = self.by_name.get(name)
        if parameter is None:
            return False
        return not parameter.when or name in self.restricted(assignment, also=name)

    def joined_by(self, parameter: Parameter) -> Space:
        """Return the space with one more parameter, which is new and has no conditions.

        What was derived of this space is kept: thousands may join, one after the other.
        """
        assert not parameter.when
        space = Space((*self.parameters, parameter))
        object.__setattr__(space, "_ordered", (*self.ordered, parameter))
        object.__setattr__(space, "_by_name", {**self.by_name, parameter.name: parameter})
        return space

    def restricted(self, assignment: Assignment, *, also: str = "") -> dict[str, Value]:
        """Return the assignment without inactive and unknown parameters.

        `also` is kept if it is active.
        """
        kept: dict[str, Value] = {}
        for parameter in self.ordered:
            name = parameter.name
            if (name in assignment or name == also) and parameter.active(kept):
                kept[name] = assignment.get(name, "")
        return kept

    def point(self, value_of: Callable[[Parameter], Value]) -> dict[str, Value]:
        """Return the point: for each active parameter, parents first, what `value_of` returns."""
        values: dict[str, Value] = {}
        for parameter in self.ordered:
            if parameter.active(values):
                values[parameter.name] = value_of(parameter)
        return self.in_order(values)

    def in_order(self, values: Assignment) -> dict[str, Value]:
        """Return the values of the parameters that have one, in the order of the space."""
        return {p.name: values[p.name] for p in self.parameters if p.name in values}

    def missing(self, assignment: Assignment) -> tuple[Parameter, ...]:
        """Return the parameters that are active in the assignment but have no value in it."""
        return tuple(p for p in self.ordered if p.name not in assignment and p.active(assignment))

    def canonical(self, assignment: Assignment) -> dict[str, Value]:
        """Return the point in canonical form.

        It is in the order of the space, with an int for an Int and a float for a Float.

        The assignment must have no problems. Values of unknown parameters are left
        out. Compare stored points in this form: a space before it grew may spell
        the last step of a Float differently.
        """
        point: dict[str, Value] = {}
        for parameter in self.parameters:
            if parameter.name in assignment:
                point[parameter.name] = spelled(parameter.domain, assignment[parameter.name])
        return point

    def point_problems(self, assignment: Assignment, *, partial: bool) -> tuple[Problem, ...]:
        """Return why the assignment is not a point.

        With `partial`, return why it is not a part of one that a sampler can complete.
        """
        return tuple(self._point_problems(assignment, partial))

    def _point_problems(self, assignment: Assignment, partial: bool) -> Iterator[Problem]:
        known = self.by_name
        hint = Hints(known)
        for name in assignment:
            if name not in known:
                yield Problem(name, f"unknown parameter{hint(name)}")
        active: dict[str, Value] = {}
        # Hangs on a value that is wrong: whether it is active cannot be said.
        unsure: set[str] = set()
        for parameter in self.ordered:
            name = parameter.name
            is_active = parameter.active(active)
            if any(c.parameter in unsure for c in parameter.when):
                unsure.add(name)
            if name not in assignment:
                if is_active and not partial:
                    yield Problem(name, "no value; every active parameter needs one")
                continue
            value = assignment[name]
            member = parameter.domain.canonical(value)
            if member is NO_MEMBER:
                unsure.add(name)
                yield Problem(name, parameter.domain.problem_with(value))
            elif is_active:
                active[name] = member
            elif name not in unsure:
                failing = " and ".join(str(c) for c in parameter.when if not c.holds(active))
                yield Problem(
                    name,
                    f"has a value but is active only when {failing}; omit it, or give that too",
                )

    def problems(self, *, may_be_empty: bool = False) -> tuple[Problem, ...]:
        """Return all problems of the space."""
        return tuple(self._problems(may_be_empty))

    def _problems(self, may_be_empty: bool) -> Iterator[Problem]:
        if not self.parameters and not may_be_empty:
            yield Problem("", "no parameters; a search needs at least one")
        names: set[str] = set()
        hint, members = Hints(self.by_name), dict[str, frozenset[Identity] | None]()
        for parameter in self.parameters:
            name = parameter.name
            if not is_name(name):
                yield Problem(name, f"{name[:80]!r} is not a name for a parameter; use {NAME_RULE}")
            if name in names:
                yield Problem(name, "occurs twice; every parameter needs a unique name")
            names.add(name)
            yield from under(name, parameter.domain.problems())
            yield from self._condition_problems(parameter, hint, members)
        yield from _cycles(self.parameters)

    def _condition_problems(
        self, parameter: Parameter, hint: Hints, members: dict[str, frozenset[Identity] | None]
    ) -> Iterator[Problem]:
        """Yield the problems of a parameter's conditions.

        `members` caches the members of choices, with None for choices
        that have problems themselves.
        """
        for condition in parameter.when:
            path = f"{parameter.name}.when.{condition.parameter}"
            parent = self.by_name.get(condition.parameter)
            if parent is None:
                near = hint(condition.parameter, but=parameter.name)
                yield Problem(path, f"{condition.parameter} is not a parameter{near}")
            elif parent.name == parameter.name:
                yield Problem(path, "a parameter cannot depend on itself; name another one")
            elif not isinstance(parent.domain, Choice) and parent.domain.is_uneven:
                what = (
                    "a distribution" if parent.domain.normal is not None else "steps on a log scale"
                )
                yield Problem(
                    path,
                    f"{parent.name} has {what}, which conditions cannot name; remove the one or "
                    "the other",
                )
            elif not condition.values:
                yield Problem(path, "no values; give those that make the parameter active")
            else:
                if parent.name not in members:
                    members[parent.name] = _members(parent.domain)
                sure = members[parent.name]
                if sure is None:
                    continue
                for value in condition.values:
                    if problem := json_problem(value):
                        yield Problem(path, f"can never be true: {problem}")
                    elif identity(value) not in sure and (
                        mismatch := _problem_with(parent.domain, value)
                    ):
                        yield Problem(path, f"can never be true: {mismatch}")


def _members(domain: Domain) -> frozenset[Identity] | None:
    """Return the identities of the members, so that a long choice is searched only once.

    None if it has problems.
    """
    if any(True for _ in domain.problems()):
        return None
    return frozenset(map(identity, domain.values)) if isinstance(domain, Choice) else frozenset()


def _problem_with(domain: Domain, value: Value) -> str:
    """Return the problem of a value that is not among the `_members`."""
    return domain.refusal(value) if isinstance(domain, Choice) else domain.problem_with(value)


def _parents(parameter: Parameter, known: Mapping[str, int]) -> set[int]:
    return {
        known[c.parameter]
        for c in parameter.when
        if c.parameter in known and c.parameter != parameter.name
    }


def _sort(parameters: Sequence[Parameter]) -> tuple[list[Parameter], dict[int, set[int]]]:
    """Return the parameters in topological order, and those that a cycle holds back.

    Each of the latter has its parents.
    """
    indexes = {p.name: k for k, p in enumerate(parameters)}
    waiting = {k: parents for k, p in enumerate(parameters) if (parents := _parents(p, indexes))}
    children: dict[int, list[int]] = {}
    for child, parents in waiting.items():
        for parent in parents:
            children.setdefault(parent, []).append(child)
    free = [k for k in range(len(parameters)) if k not in waiting]
    ordered: list[Parameter] = []
    while free:
        index = heapq.heappop(free)
        ordered.append(parameters[index])
        for child in children.get(index, ()):
            waiting[child].discard(index)
            if not waiting[child]:
                del waiting[child]
                heapq.heappush(free, child)
    return ordered, waiting


def _cycles(parameters: Sequence[Parameter]) -> Iterator[Problem]:
    """Yield one problem for each cycle, at its first parameter.

    Parameters that only depend on a cycle have none.
    """
    _, stuck = _sort(parameters)
    visited: set[int] = set()
    for start in sorted(stuck):
        path: list[int] = []
        index = start
        while index not in visited:
            visited.add(index)
            path.append(index)
            index = min(parent for parent in stuck[index] if parent in stuck)
        if index in path:
            cycle = path[path.index(index) :]
            first = cycle.index(min(cycle))
            names = [parameters[k].name for k in [*cycle[first:], *cycle[:first], cycle[first]]]
            yield Problem(
                f"{names[0]}.when.{names[1]}",
                f"conditions form a cycle: {' -> '.join(names)}; remove one",
            )
