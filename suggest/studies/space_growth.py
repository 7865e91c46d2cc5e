"""Rules for extending a search space that has trials: every point
of the old space must be a point of the new one.

Then all results stay valid: no trial lacks a value or has one too many. Paths are relative to the
space (`lr.min`), and every problem says what to do instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from suggest.axis import Axis, axis_of
from suggest.domain import NO_MEMBER, Identity, identity, kind_of, show
from suggest.errors import InvalidArgument, Problem, raise_if, under
from suggest.space import Choice, Domain, Float, Int, Parameter, Space, Value
from suggest.study import PastSpace, Study

MAX_PAST = 100  # past spaces of one study, which are stored and read together with the study
MAX_PAST_TEXT = 1_000_000  # characters of all past spaces of one study
_PATH = "spec.parameters"
WAY_ON = "or create a new study and import the trials of this one"


def growth_problems(old: Space, new: Space) -> tuple[Problem, ...]:
    """Return the problems that keep `old` from growing into `new`, which must be a valid space.

    There are none if the two are equal.
    """
    return tuple(_problems(old, new))


def grown(study: Study, space: Space, *, trials: int) -> Study:
    """Return the study with this space; `trials` is the number of its trials.

    The requirements of the study's algorithm are not checked.

    Raises:
        InvalidArgument: the space is invalid, or the study cannot grow into it; with all problems.
    """
    old = study.spec.space
    raise_if(under(_PATH, space.problems() or growth_problems(old, space)))
    if space == old:
        return study
    if len(study.past) == MAX_PAST:
        message = (
            f"has grown {MAX_PAST} times; create a new study and import the trials of this one"
        )
        raise InvalidArgument.at(_PATH, message)
    past = PastSpace(old, trials, datetime.now(UTC))
    if sum(len(repr(past_space.space)) for past_space in (*study.past, past)) > MAX_PAST_TEXT:
        message = (
            "is too large to have grown so often; create a new study and import the trials "
            "of this one"
        )
        raise InvalidArgument.at(_PATH, message)
    return replace(study, spec=replace(study.spec, space=space), past=(*study.past, past))


def _problems(old: Space, new: Space) -> Iterator[Problem]:
    for was in old.parameters:
        now = new.by_name.get(was.name)
        if now is None:
            yield Problem(
                was.name, f"was removed, and existing trials have values for it; keep it, {WAY_ON}"
            )
            continue
        yield from under(was.name, _domain_problems(was.domain, now.domain))
        yield from _condition_problems(was, now, old)
    unreached = set[str]()  # new parameters that no point of the old space makes active
    for parameter in new.ordered:
        if parameter.name in old.by_name:
            continue
        if any(_never_held(c.parameter, c.values, old, unreached) for c in parameter.when):
            unreached.add(parameter.name)
        else:
            message = (
                "is new, and existing trials have no value for it; make it active for new "
                "choices only"
            )
            yield Problem(parameter.name, f"{message} (when), {WAY_ON}")


def _never_held(parent: str, values: tuple[Value, ...], old: Space, unreached: set[str]) -> bool:
    if parent in old.by_name:
        return not _members(old.by_name[parent].domain, values)
    return parent in unreached


def _condition_problems(was: Parameter, now: Parameter, old: Space) -> Iterator[Problem]:
    """A condition may get further values if the parent's choices are new as well."""
    before, after = ({c.parameter: c.values for c in parameter.when} for parameter in (was, now))
    for parent in dict.fromkeys([*before, *after]):
        path = f"{was.name}.when.{parent}"
        if parent not in before or parent not in after:
            change = "is a new condition" if parent in after else "is gone"
            yield Problem(
                path, f"{change}, and existing trials do not follow it; undo it, {WAY_ON}"
            )
            continue
        domain = old.by_name[parent].domain
        if _members(domain, after[parent]) != _members(domain, before[parent]):
            values = " or ".join(show(v) for v in before[parent])
            yield Problem(
                path, f"it held for {values}; it must keep these of its earlier values, {WAY_ON}"
            )


def _members(domain: Domain, values: Iterable[Value]) -> set[Identity]:
    """Return the values that are in the domain."""
    if isinstance(domain, Choice):  # as sets: there may be thousands of values in both
        return {identity(value) for value in values} & {identity(value) for value in domain.values}
    return {
        identity(member) for value in values if (member := domain.canonical(value)) is not NO_MEMBER
    }


def _domain_problems(old: Domain, new: Domain) -> Iterator[Problem]:
    match old, new:
        case Choice(), Choice():
            if removed := _members(old, old.values) - _members(new, new.values):
                gone = [show(value) for value in old.values if identity(value) in removed]
                values = ", ".join(gone[:8]) + ", …" * (len(removed) > 8)
                yield Problem(
                    "values",
                    f"{values} was removed, and existing trials have it; keep it, {WAY_ON}",
                )
        case Float(), Float():
            yield from _range_problems(old, new)
        case Int(), Int():
            yield from _range_problems(old, new)
        case _:
            change = f"was {kind_of(old)} and is {kind_of(new)}"
            yield Problem("type", f"{change}; a parameter keeps its type, {WAY_ON}")


def _range_problems(old: Float | Int, new: Float | Int) -> Iterator[Problem]:
    if old.scale is not new.scale:
        message = f"was {old.scale.value} and is {new.scale.value}; a parameter keeps its scale"
        yield Problem("scale", f"{message}, {WAY_ON}")
        return
    if new.min > old.min:
        yield Problem(
            "min",
            f"{show(new.min)} is above {show(old.min)}, and a range only grows; lower it, {WAY_ON}",
        )
    if new.max < old.max:
        yield Problem(
            "max",
            f"{show(new.max)} is below {show(old.max)}, and a range only grows; raise it, {WAY_ON}",
        )
    if new.min <= old.min and new.max >= old.max:
        yield from _step_problems(old, new)


def _step_problems(old: Float | Int, new: Float | Int) -> Iterator[Problem]:
    if old.count is None and new.count is not None:
        yield Problem("step", f"values between its steps were allowed before; omit step, {WAY_ON}")
        return
    if old.count is not None and new.count is not None:
        if (lost := _lost(old, new)) is not None:
            cure = "choose min and step so that the old values stay among the new ones"
            yield Problem(
                "step", f"{show(lost)} was a value and is not one any more; {cure}, {WAY_ON}"
            )
        return
    before, after = axis_of(old), axis_of(new)
    if before is not None and after is not None and (lost := _lost(before, after)) is not None:
        cure = (
            "choose as many points as keep the old ones (in the same range twice as many less one)"
        )
        yield Problem(
            "points",
            f"{show(lost)} was a point of the grid and is not one any more; {cure}, {WAY_ON}",
        )


def _lost(old: Axis, new: Axis) -> Value | None:
    """Return a value of the evenly spaced `old` that `new` lacks, without a look at every value."""
    count = old.count
    assert count is not None  # an axis is countable
    places = sorted({0, min(1, count - 1), count - 1})
    indexes = [new.index_of(old.at(place)) for place in places]
    for place, index in zip(places, indexes, strict=True):
        if index is None:
            return old.at(place)
    # The spacing is even, so if the first two values and the last one match,
    # all values between them match.
    if len(places) == 3 and (indexes[2] or 0) - (indexes[0] or 0) != (count - 1) * (
        (indexes[1] or 0) - (indexes[0] or 0)
    ):
        return next(
            (old.at(k) for k in range(2, min(count, 1000)) if new.index_of(old.at(k)) is None),
            old.at(1),
        )
    return None
