"""The parameters of Katib's experiments: their feasible spaces as domains,
and texts to values and back. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import orjson

from suggest.domain import (
    NO_MEMBER,
    Choice,
    Domain,
    Float,
    Int,
    NoMember,
    Normal,
    Scale,
    Value,
    last_step,
)
from suggest.errors import InvalidArgument, Problem, Problems
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.space import NAME_RULE, is_name
from suggest.trial import ValueColumn

MAX_PARAMETERS = 1000
MAX_TEXT = 10_000  # characters of a parameter's value
_WHOLE = re.compile(r"[+-]?[0-9]{1,16}", re.ASCII)
PARAMETERS = "experiment.spec.parameter_specs.parameters"
_DISTRIBUTIONS = (pb.DISTRIBUTION_UNSPECIFIED, pb.UNIFORM, pb.LOG_UNIFORM, pb.NORMAL, pb.LOG_NORMAL)


class TextValues(NamedTuple):
    """A parameter's texts as values; the places of those outside of the domain or unreadable."""

    column: ValueColumn
    outside: Sequence[int]
    unreadable: Sequence[int]


class ParameterText:
    """Converts the values of one parameter between Katib's texts and the study's domain."""

    def __init__(self, name: str, domain: Domain) -> None:
        self.name = name
        self.domain = domain

    def text(self, value: Value) -> str:
        """Return the text for a value of the domain."""
        return str(value)

    def values(self, texts: Sequence[str]) -> TextValues:
        """Return the values of many texts, None for one that has none."""
        if isinstance(self.domain, Float) and self.domain.count is None:
            return _values_of_range(self.domain, texts)
        # Thousands of trials have few different texts.
        known = {text: self._value(text) for text in set(texts)}
        as_json = {text: json.dumps(value) for text, (value, _) in known.items()}
        values = [known[text][0] for text in texts]
        outside = [place for place, text in enumerate(texts) if not known[text][1]]
        unreadable = [place for place in outside if values[place] is None]
        return TextValues(
            ValueColumn(values, [as_json[text] for text in texts]), outside, unreadable
        )

    def _value(self, text: str) -> tuple[Value, bool]:
        """Return the text's value, None if it has none, and whether it is in the domain."""
        domain = self.domain
        if isinstance(domain, Choice):
            return (None, False) if len(text) > MAX_TEXT else (text, domain.contains(text))
        x = finite(text)
        if x is None or (isinstance(domain, Int) and x != int(x)):
            return None, False
        member: Value | NoMember = domain.canonical(x)
        if member is NO_MEMBER:
            return (int(x) if isinstance(domain, Int) else x), False
        return member, True


def _values_of_range(domain: Float, texts: Sequence[str]) -> TextValues:
    """Return the values of texts in a range without steps, where each number is a member."""
    low, high = domain.min, domain.max
    numbers = list(map(finite, texts))
    outside = [place for place, x in enumerate(numbers) if x is None or not low <= x <= high]
    unreadable = [place for place in outside if numbers[place] is None]
    # orjson writes numbers ten times as fast as json.
    as_json = orjson.dumps(numbers).decode()[1:-1].split(",") if numbers else []
    return TextValues(ValueColumn(numbers, as_json), outside, unreadable)


def finite(text: str) -> float | None:
    """Return the number in a text, None if it is not a finite number."""
    if len(text) > MAX_TEXT:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_parameters(
    given: Sequence[pb.ParameterSpec], problems: Problems, *, is_grid: bool
) -> Iterator[ParameterText]:
    if len(given) > MAX_PARAMETERS:
        problems.add(PARAMETERS, f"{len(given)} parameters; give 1 to {MAX_PARAMETERS}")
        return
    if is_grid and (
        without := [
            p.name for p in given if p.parameter_type == pb.DOUBLE and not p.feasible_space.step
        ]
    ):
        inner = (
            f"Param {without[0]} step is nil; For discrete search space, all parameters must "
            f"include step"
        )
        problems.add(
            "", f"failed to validate parameters({', '.join(p.name for p in given)}): {inner}"
        )
        return
    names: set[str] = set()
    for place, parameter in enumerate(given):
        path = f"{PARAMETERS}[{place}]"
        if parameter.name in names:
            problems.add(f"{path}.name", f"Detect duplicated parameter name: {parameter.name}")
        elif not is_name(parameter.name):
            problems.add(f"{path}.name", f"{parameter.name[:80]!r} is not a name; use {NAME_RULE}")
        names.add(parameter.name)
        try:
            yield read_parameter(parameter, is_grid=is_grid)
        except InvalidArgument as e:
            problems += [
                Problem(f"{path}.{p.path}", f"{parameter.name}: {p.message}") for p in e.problems
            ]


def read_parameter(parameter: pb.ParameterSpec, *, is_grid: bool) -> ParameterText:
    """Convert a parameter. Raises InvalidArgument."""
    space, name = parameter.feasible_space, parameter.name
    if parameter.parameter_type in (pb.CATEGORICAL, pb.DISCRETE):
        return ParameterText(
            name, _choice(space, is_numeric=parameter.parameter_type == pb.DISCRETE)
        )
    if parameter.parameter_type not in (pb.INT, pb.DOUBLE):
        raise InvalidArgument.at(
            "parameter_type", "is not supported; use int, double, discrete or categorical"
        )
    is_int = parameter.parameter_type == pb.INT
    if space.list:
        raise InvalidArgument.at(
            "feasible_space.list", "an int or a double has min and max; omit the list"
        )
    low, high = (_number(getattr(space, end), end, is_int=is_int) for end in ("min", "max"))
    step = _step(space.step, is_int=is_int) if space.step else None
    if low > high:
        raise InvalidArgument.at(
            "feasible_space", f"min {space.min} is above max {space.max}; exchange them"
        )
    if step is not None and step <= 0:
        raise InvalidArgument.at(
            "feasible_space.step", f"{space.step} is not a step; use a number above 0"
        )
    shape = pb.DISTRIBUTION_UNSPECIFIED if is_grid else space.distribution
    is_log = shape in (pb.LOG_UNIFORM, pb.LOG_NORMAL)
    if is_log and low <= 0:
        raise InvalidArgument.at(
            "feasible_space.min", f"{space.min} cannot be on a log scale; use a min above 0"
        )
    if shape not in _DISTRIBUTIONS:
        raise InvalidArgument.at(
            "feasible_space.distribution", f"distribution {shape} is not supported"
        )
    scale = Scale.LOG if is_log else Scale.LINEAR
    is_normal = shape in (pb.NORMAL, pb.LOG_NORMAL)
    if is_normal and low == high:
        raise InvalidArgument.at(
            "feasible_space", "min equals max, so a normal distribution has no width; use uniform"
        )
    normal = Normal.within(low, high, scale) if is_normal else None
    if not is_int and step is not None and (high - low) / step > 10**15:
        raise InvalidArgument.at(
            "feasible_space.step", f"{space.step} makes more than 10^15 values; use a larger step"
        )
    # The end of Katib's range need not be on a step.
    last = high if step is None else last_step(low, high, step)
    if last == low < high:
        return ParameterText(
            name, Int(int(low), int(low)) if is_int else Float(float(low), float(low))
        )
    if is_int:
        return ParameterText(name, Int(int(low), int(last), scale, int(step or 1), normal))
    return ParameterText(name, Float(float(low), float(last), scale, step, normal=normal))


def _choice(space: pb.FeasibleSpace, *, is_numeric: bool) -> Choice:
    if space.min or space.max or space.step:
        raise InvalidArgument.at(
            "feasible_space", "a list has neither min, max nor step; omit them"
        )
    if not space.list:
        raise InvalidArgument.at("feasible_space.list", "is empty; give one value or more")
    values = tuple(space.list)
    if len(set(values)) < len(values):
        raise InvalidArgument.at("feasible_space.list", "has a value twice; remove one")
    if is_numeric:
        for value in values:
            _number(value, "list", is_int=False)
    return Choice(values)


def _step(text: str, *, is_int: bool) -> float | int:
    """Return a step. A step of an int below 1 is 1.

    Rounded down, as in Katib, its values are all whole numbers.
    """
    if is_int and not _WHOLE.fullmatch(text):
        step = _number(text, "step", is_int=False)
        if 0 < step < 1:
            return 1
    return _number(text, "step", is_int=is_int)


def _number(text: str, field: str, *, is_int: bool) -> float | int:
    at = f"feasible_space.{field}"
    if not text:
        raise InvalidArgument.at(at, "must be specified; write a number as text")
    if is_int:
        if not _WHOLE.fullmatch(text):
            raise InvalidArgument.at(
                at, f'expected a whole number of at most 16 digits such as "1", got {text[:80]!r}'
            )
        return int(text)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidArgument.at(at, f'expected a number such as "0.1", got {text[:80]!r}')
    return number
