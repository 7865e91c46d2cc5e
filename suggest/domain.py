"""Domains: the sets of values that one parameter may take, and membership in them.

Pure, standard library only. A domain is a set. A countable one (with `step`, whole numbers,
choices) has its values by index, in order; a continuous range has not. `points` does not change the
set: it says how many values a grid search takes from a range. This module knows nothing about other
parameters; conditions are in `suggest.space`.
"""

from __future__ import annotations

import enum
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias, TypeVar

from suggest.errors import Problem

# Any JSON value. Only choices have lists and objects, which are never changed.
Value: TypeAlias = str | int | float | bool | list[Any] | dict[str, Any] | None
# A hashable key that is equal for equal values; see `identity`.
Identity: TypeAlias = tuple[str, str | int | float | bool]
Real = TypeVar("Real", int, float)

MAX_CHOICES = 10_000
# Up to here, a double holds every whole number, and so do JSON and all samplers.
EXACT = 2**53
# The largest number in a field of so many bits, as in the protocol.
INT32 = 2**31 - 1
# Characters of a list or an object in compact JSON.
MAX_JSON_LENGTH = 4096
MAX_JSON_DEPTH = 16  # levels of nested lists and objects
# The largest standard deviation of a normal distribution, in widths of its range.
WIDEST = 100
# relative; far above the rounding errors of decimal fractions, far below what people mean.
TOLERANCE = 1e-9


class NoMember(enum.Enum):
    """The type of NO_MEMBER, which is not a value; None cannot serve, because null is one."""

    NO_MEMBER = "no member"


NO_MEMBER: Final = NoMember.NO_MEMBER


class Scale(enum.Enum):
    LINEAR = "linear"
    LOG = "log"


def show(value: Value) -> str:
    """Return the value as a person would write it in YAML: true, 3, 0.1, 'relu', null, [1,2]."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value)
        case float() if value.is_integer() and abs(value) < EXACT:
            return str(int(value))
        case int() | float():
            return repr(value)
    text = compact_json(value) if not json_problem(value) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def compact_json(value: Value) -> str:
    """Return the value as JSON on one line, the same text for equal objects.

    Keys are sorted and there are no spaces. The value must have no `json_problem`.
    """
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
    )


def json_problem(value: object) -> str:
    """Return why `value` is not JSON that a parameter may have, or is too large.

    Return "" if it is fine.
    """
    found = _json_problem(value, 0, [MAX_JSON_LENGTH])
    if (
        not found
        and isinstance(value, list | dict)
        and (length := len(compact_json(value))) > MAX_JSON_LENGTH
    ):
        return f"it has {length} characters as JSON; use at most {MAX_JSON_LENGTH}"
    return found


def _json_problem(value: object, depth: int, left: list[int]) -> str:
    """As `json_problem`. `left` is how many more values may be read."""
    left[0] -= 1
    if left[0] < 0:
        return f"it is longer than {MAX_JSON_LENGTH} characters as JSON; use a shorter value"
    match value:
        case None | bool():
            return ""
        case str():
            if encodable(value):
                return ""
            return f"{value!r} has half a surrogate pair, which is not text"
        case int():
            if abs(value) <= EXACT:
                return ""
            return f"{value} is beyond ±2^53, where doubles skip whole numbers"
        case float():
            if math.isfinite(value):
                return ""
            return f"{value} is not finite, and JSON has only finite numbers"
        case list() | dict() if depth == MAX_JSON_DEPTH:
            return f"it is nested more than {MAX_JSON_DEPTH} levels deep; use a flatter value"
        case list():
            return next((p for each in value if (p := _json_problem(each, depth + 1, left))), "")
        case dict():
            for key, each in value.items():
                if not isinstance(key, str) or not encodable(key):
                    return f"the key {key!r} is not text; the keys of an object are"
                if problem := _json_problem(each, depth + 1, left):
                    return problem
            return ""
    return f"{value!r} is not JSON; use text, a number, true, false, null, a list or an object"


def encodable(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def identity(value: Value) -> Identity:
    """Return a key that is equal for equal values only.

    1 and 1.0 are the same number, True and "1" are not. The order of an object's keys does not
    matter. The value must have no `json_problem`.
    """
    if isinstance(value, str):
        return "text", value
    if isinstance(value, bool):
        return "bool", value
    if value is None:
        return "null", ""
    if isinstance(value, list | dict):
        return ("json", compact_json(_plain(value)))
    return ("number", value)


def _plain(value: Value) -> Value:
    """Return the value with whole numbers as int."""
    match value:
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case float() if value.is_integer():
            return int(value)
    return value


def number(value: Value) -> float | int | None:
    """Return the value if it is a number, else None. A bool is not a number."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


_LONGEST_NUMBER = 300  # in files: `controller.spec.yaml_text`
# The forms of numbers that people write as text.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_POWER = re.compile(r"([+-]?\d+(?:\.\d+)?) ?(?:\^|\*\*) ?([+-]?\d{1,3})")
_GROUPS = re.compile(r"[+-]?\d{1,3}(?:[ _']\d{3})+|[+-]?\d{1,3}(?:,\d{3}){2,}")
# 1,000 may mean either.
_DECIMAL_COMMA = re.compile(r"(?![+-]?[1-9]\d{0,2},\d{3}$)[+-]?\d{1,300},\d+")


def number_meant(value: object) -> str:
    """Return the end of a message about a text in place of a number: how to write it.

    Return "" if it means no number.

    Text is a number in quotes, a power (10^-4), has groups of digits (1_000) or a decimal comma.
    """
    if not isinstance(value, str):
        return ""
    text = value.strip()
    if len(text) > _LONGEST_NUMBER and _NUMBER.fullmatch(text):
        return f"; a number has at most {_LONGEST_NUMBER} characters"
    if _NUMBER.fullmatch(text):
        return f"; write it without quotes: {text}"
    try:
        if power := _POWER.fullmatch(text):
            meant = float(power[1]) ** int(power[2])
        elif _GROUPS.fullmatch(text):
            meant = float(re.sub(r"[ _',]", "", text))
        elif _DECIMAL_COMMA.fullmatch(text):
            meant = float(text.replace(",", "."))
        else:
            return ""
    except ArithmeticError:
        return ""
    return f"; write {show(meant)}" if math.isfinite(meant) else ""


def is_finite(x: float) -> bool:
    """Return whether x is neither infinite nor NaN.

    `math.isfinite` raises for whole numbers beyond the doubles.
    """
    return abs(x) < math.inf


@dataclass(frozen=True, slots=True)
class Normal:
    """A normal distribution, truncated to the range of its parameter.

    On a log scale a log-normal one.

    On a log scale, `mean` is the geometric mean and `deviation` the geometric standard deviation, a
    factor above 1. So both are in the parameter's units.
    """

    mean: float
    deviation: float

    @classmethod
    def within(
        cls,
        low: float,
        high: float,
        scale: Scale,
        mean: float | None = None,
        deviation: float | None = None,
    ) -> Normal:
        """Return the distribution in a range.

        By default the mean is halfway on the scale, 3 deviations from the ends.

        A range with problems has a distribution with problems.
        """
        if scale is Scale.LOG:
            is_range = 0 < low <= high <= sys.float_info.max
            first, last = (math.log(low), math.log(high)) if is_range else (0.0, 0.0)
            middle, width = math.exp((first + last) / 2), math.exp((last - first) / 6)
        elif max(abs(low), abs(high)) <= sys.float_info.max:
            middle, width = low / 2 + high / 2, high / 6 - low / 6
        else:
            # Also for whole numbers beyond the doubles.
            middle = width = math.nan
        return cls(
            float(middle if mean is None else mean),
            float(width if deviation is None else deviation),
        )

    def problems(self, low: float, high: float, scale: Scale) -> Iterator[Problem]:
        """Return the problems of the distribution on a range that has none."""
        if low == high:
            yield Problem(
                "distribution", "min equals max, so a distribution has no width; omit distribution"
            )
            return
        if not low <= self.mean <= high:
            yield Problem(
                "mean", f"{show(self.mean)} is outside {show(low)} to {show(high)}; use one between"
            )
        is_log = scale is Scale.LOG
        least = 1.0 if is_log else 0.0
        if not (math.isfinite(self.deviation) and self.deviation > least):
            what = "a factor above 1, because the scale is log" if is_log else "a number above 0"
            yield Problem(
                "deviation", f"{show(self.deviation)} is not a standard deviation; use {what}"
            )
            return
        width = math.log(self.deviation) if is_log else self.deviation
        if width > WIDEST * (math.log(high) - math.log(low) if is_log else high - low):
            yield Problem(
                "deviation",
                f"{show(self.deviation)} is nearly uniform in this range; use a smaller one",
            )


@dataclass(frozen=True, slots=True)
class Float:
    """A real number in [min, max]; with `step` only min + k*step.

    `points` is how many values a grid search tries, evenly spaced on the scale. Any number of the
    range remains a member. At most one of step and points is set. Without `normal`, values are
    equally likely on the scale.
    """

    min: float
    max: float
    scale: Scale = Scale.LINEAR
    step: float | None = None
    points: int | None = None
    normal: Normal | None = None

    @property
    def is_uneven(self) -> bool:
        """Return whether some steps of the scale are likelier than others."""
        return self.normal is not None or (self.scale is Scale.LOG and self.step is not None)

    @property
    def count(self) -> int | None:
        """Return how many values there are; None for a continuous range."""
        if self.min == self.max:
            return 1
        if self.step is not None:
            return round((self.max - self.min) / self.step) + 1
        return None

    def at(self, index: int) -> float:
        """Return the value at an index of a countable domain, in ascending order."""
        # The last step may be above max by a rounding error.
        return float(self.min if index == 0 else min(self._stepped(index), self.max))

    def _stepped(self, index: int) -> float:
        # Compute in decimals, as the person wrote the numbers: 0.1 + 2*0.1 is 0.3.
        assert self.step is not None
        return float(Decimal(repr(float(self.min))) + index * Decimal(repr(float(self.step))))

    def index_of(self, value: Value) -> int | None:
        """Return the index of a member of a countable domain.

        None for other values and for continuous ranges.
        """
        x, count = number(value), self.count
        if x is None or count is None or not abs(x) <= sys.float_info.max:
            return None
        index = self._nearest(x, count)
        if index is None:
            return None
        slack = TOLERANCE * (self.step or 0.0)
        return index if math.isclose(x, self.at(index), rel_tol=TOLERANCE, abs_tol=slack) else None

    def _nearest(self, x: float, count: int) -> int | None:
        if count == 1:
            return 0
        place = (x - self.min) / (self.max - self.min) * (count - 1)
        # It may be infinite, which has no nearest whole number.
        if not -1 < place < count:
            return None
        index = round(place)
        return index if 0 <= index < count else None

    def canonical(self, value: Value) -> float | NoMember:
        """Return the member that `value` means, as a float; NO_MEMBER if there is none."""
        x = number(value)
        if x is None:
            return NO_MEMBER
        if self.count is None:
            return float(x) if self.min <= x <= self.max else NO_MEMBER
        index = self.index_of(x)
        return NO_MEMBER if index is None else self.at(index)

    def contains(self, value: Value) -> bool:
        return self.canonical(value) is not NO_MEMBER

    def problem_with(self, value: Value) -> str:
        """Return why `value` is not a member; "" if it is one."""
        if self.contains(value):
            return ""
        x = number(value)
        if x is None or not is_finite(x):
            cure = number_meant(value) or f"; use one from {show(self.min)} to {show(self.max)}"
            return f"{show(value)} is not a finite number{cure}"
        if not self.min <= x <= self.max:
            return f"{show(x)} is outside {show(self.min)} to {show(self.max)}"
        count = self.count
        # Every number of a continuous range is a member.
        assert count is not None
        index = self._nearest(x, count) or 0
        lower = index if self.at(index) < x else index - 1
        around = f"{show(self.at(max(lower, 0)))} or {show(self.at(min(lower + 1, count - 1)))}"
        steps = f"the steps of {show(self.step or 0.0)} from {show(self.min)} to {show(self.max)}"
        return f"{show(x)} is not on {steps}; the nearest are {around}"

    def problems(self) -> Iterator[Problem]:
        """Return the problems of the domain itself. Paths are its fields."""
        if not (math.isfinite(self.min) and math.isfinite(self.max)):
            for name, bound in (("min", self.min), ("max", self.max)):
                if not math.isfinite(bound):
                    yield Problem(name, f"{show(bound)} is not finite; a range needs finite ends")
            return
        if self.min > self.max:
            yield Problem("min", f"{show(self.min)} is above max, {show(self.max)}; swap the two")
            return
        if not math.isfinite(self.max - self.min):
            yield Problem(
                "max",
                f"the range from {show(self.min)} to {show(self.max)} is too wide for a double",
            )
        if self.scale is Scale.LOG and self.min <= 0:
            yield Problem(
                "min",
                f"{show(self.min)} cannot be on a log scale; use a min above 0, or scale: linear",
            )
        if self.step is not None and self.points is not None:
            yield Problem(
                "points", f"{self.points} together with step {show(self.step)}; give one of the two"
            )
        elif self.points is not None:
            yield from self._points_problems(self.points)
        elif self.step is not None:
            yield from self._step_problems(self.step)
        if self.normal is not None and (self.scale is Scale.LINEAR or self.min > 0):
            yield from self.normal.problems(self.min, self.max, self.scale)

    def _points_problems(self, points: int) -> Iterator[Problem]:
        if self.min == self.max:
            if points != 1:
                yield Problem(
                    "points",
                    f"{points} points are indistinguishable between equal ends; omit points",
                )
        elif points < 2:
            yield Problem("points", f"{points} points cannot span a range; use 2 or more")
        elif points > INT32:
            yield Problem("points", f"{points} points are too many; use at most {INT32}")

    def _step_problems(self, step: float) -> Iterator[Problem]:
        if not (math.isfinite(step) and step > 0):
            yield Problem("step", f"{show(step)} is not a step; use a number above 0")
        elif beyond := self._beyond(step):
            yield Problem(
                "max",
                f"{beyond} is beyond the largest double, with step {show(step)}; use a smaller "
                "range",
            )
        else:
            steps = (self.max - self.min) / step
            if steps > EXACT:
                yield Problem(
                    "step", f"{show(step)} makes more than 2^53 values; use a larger step"
                )
            elif abs(steps - round(steps)) > TOLERANCE * max(1.0, steps):
                down, up = (show(self._stepped(k)) for k in (math.floor(steps), math.ceil(steps)))
                yield Problem("step", _step_mismatch(step, self.min, self.max, down, up))

    def _beyond(self, step: float) -> str:
        """Return the sum that is not a double, of those that samplers need.

        They look half a step beyond each end.
        """
        sums = {
            "min - step": self.min - step,
            "max + step": self.max + step,
            "max - min + step": self.max - self.min + step,
        }
        return next((name for name, value in sums.items() if not math.isfinite(value)), "")


@dataclass(frozen=True, slots=True)
class Int:
    """A whole number min + k*step in [min, max].

    Without `normal`, values are equally likely on the scale.
    """

    min: int
    max: int
    scale: Scale = Scale.LINEAR
    step: int = 1
    normal: Normal | None = None

    @property
    def is_uneven(self) -> bool:
        return self.normal is not None or (self.scale is Scale.LOG and self.step != 1)

    @property
    def count(self) -> int:
        return (self.max - self.min) // self.step + 1

    def at(self, index: int) -> int:
        return self.min + index * self.step

    def index_of(self, value: Value) -> int | None:
        x = number(value)
        if x is None or not self.min <= x <= self.max or x != int(x):
            return None
        index, rest = divmod(int(x) - self.min, self.step)
        return None if rest else index

    def canonical(self, value: Value) -> int | NoMember:
        """Return the member that `value` means, as an int (3.0 means 3).

        NO_MEMBER if there is none.
        """
        index = self.index_of(value)
        return NO_MEMBER if index is None else self.at(index)

    def contains(self, value: Value) -> bool:
        return self.index_of(value) is not None

    def problem_with(self, value: Value) -> str:
        """Return why `value` is not a member; "" if it is one."""
        if self.contains(value):
            return ""
        x = number(value)
        if x is None or not is_finite(x) or x != int(x):
            cure = number_meant(value) or f"; use one from {self.min} to {self.max}"
            return f"{show(value)} is not a whole number{cure}"
        if not self.min <= x <= self.max:
            return f"{show(x)} is outside {self.min} to {self.max}"
        below = self.at((int(x) - self.min) // self.step)
        return (
            f"{show(x)} is not on the steps of {self.step} from {self.min} to {self.max}; "
            f"the nearest are {below} or {below + self.step}"
        )

    def problems(self) -> Iterator[Problem]:
        for name, bound in (("min", self.min), ("max", self.max)):
            if abs(bound) > EXACT:
                yield Problem(
                    name,
                    f"{bound} is beyond ±2^53, where doubles skip whole numbers; use a smaller one",
                )
        if self.min > self.max:
            yield Problem("min", f"{self.min} is above max, {self.max}; swap the two")
            return
        if self.scale is Scale.LOG and self.min <= 0:
            yield Problem(
                "min", f"{self.min} cannot be on a log scale; use a min above 0, or scale: linear"
            )
        if self.step < 1:
            yield Problem("step", f"{self.step} is not a step; use 1 or more")
        elif rest := (self.max - self.min) % self.step:
            down = self.max - rest
            yield Problem(
                "step",
                _step_mismatch(self.step, self.min, self.max, str(down), str(down + self.step)),
            )
        if self.normal is not None and (self.scale is Scale.LINEAR or self.min > 0):
            yield from self.normal.problems(self.min, self.max, self.scale)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several JSON values, unordered.

    Values of different types are different: True is not 1.
    """

    values: tuple[Value, ...]

    @property
    def count(self) -> int:
        return len(self.values)

    def at(self, index: int) -> Value:
        return self.values[index]

    def index_of(self, value: Value) -> int | None:
        # Compare first, which is cheap: a value that equals a choice is JSON.
        return next(
            (k for k, v in enumerate(self.values) if v == value and identity(v) == identity(value)),
            None,
        )

    def canonical(self, value: Value) -> Value | NoMember:
        """Return the declared value that equals `value` (1.0 equals a declared 1).

        NO_MEMBER if there is none.
        """
        index = self.index_of(value)
        return NO_MEMBER if index is None else self.values[index]

    def contains(self, value: Value) -> bool:
        return self.index_of(value) is not None

    def problem_with(self, value: Value) -> str:
        """Return why `value` is not a member; "" if it is one."""
        return "" if self.contains(value) else self.refusal(value)

    def refusal(self, value: Value) -> str:
        """Return the message for a known non-member, without searching the choices again."""
        shown = ", ".join(show(v) for v in self.values[:8]) + (", …" if self.count > 8 else "")
        return f"{show(value)} is not one of the choices {shown}"

    def problems(self) -> Iterator[Problem]:
        if not self.values:
            yield Problem("values", "no choices; give one or more")
        if self.count > MAX_CHOICES:
            yield Problem(
                "values",
                f"{self.count} choices are more than {MAX_CHOICES}; use an int for a long range",
            )
            return
        seen: set[Identity] = set()
        for index, value in enumerate(self.values):
            x = number(value)
            if x is not None and not math.isfinite(x):
                yield Problem(
                    f"values[{index}]",
                    f"{show(value)} is not finite; make it text",
                )
            elif isinstance(x, int) and abs(x) > EXACT:
                yield Problem(
                    f"values[{index}]",
                    f"{x} is beyond ±2^53, where doubles skip whole numbers; make it text",
                )
            elif problem := json_problem(value):
                yield Problem(f"values[{index}]", problem)
            elif identity(value) in seen:
                yield Problem(f"values[{index}]", f"{show(value)} occurs twice; remove one")
            else:
                seen.add(identity(value))


Domain: TypeAlias = Float | Int | Choice


def kind_of(domain: Domain) -> str:
    """Return what a person calls the domain."""
    return {Float: "a float", Int: "an int", Choice: "a choice"}[type(domain)]


def last_step(low: Real, high: Real, step: Real) -> Real:
    """Return the largest `low + k * step` up to `high`, which need not be on a step itself.

    `step` is above 0. Computed in decimals, as the person wrote the numbers:
    0.3 is on the steps of 0.1 from 0.
    """
    first, by = Decimal(str(low)), Decimal(str(step))
    steps = (Decimal(str(high)) - first) / by
    if steps > EXACT:
        # A domain refuses so many values.
        return high
    return type(low)(first + math.floor(steps) * by)


def _step_mismatch(step: float, low: float, high: float, down: str, up: str) -> str:
    return (
        f"{show(step)} does not lead from min {show(low)} to max {show(high)}; use max {down} "
        f"or {up}, or another step"
    )


def spelled(domain: Domain, value: Value) -> Value:
    """Return the member that `value` means, or `value` itself if it means none."""
    kind = type(value)
    # These are spelled in one way only. Long studies have thousands;
    # to find a member takes ten times as long.
    if (
        kind is str
        or (kind is int and isinstance(domain, Int))
        or (kind is float and _is_continuous(domain))
    ):
        return value
    member = domain.canonical(value)
    return value if member is NO_MEMBER else member


def _is_continuous(domain: Domain) -> bool:
    return isinstance(domain, Float) and domain.count is None


# How models see values: as numbers. Elsewhere, 1 and True would be the same choice.


def _has_index(domain: Domain) -> bool:
    """Return whether models see a value's index: of a choice, and of steps even on the scale."""
    return domain.count is not None and not (
        isinstance(domain, Int) and domain.scale is Scale.LOG and domain.step == 1
    )


def encode(domain: Domain, value: Value) -> float | int | None:
    """Return the number by which models know a value: its index, or the value itself.

    None if it is not a member.
    """
    if isinstance(domain, Choice) or _has_index(domain):
        return domain.index_of(value)
    member = domain.canonical(value)
    return None if member is NO_MEMBER else member


def decode(domain: Domain, number: float | int) -> Value:
    """Return the value of a number, which may lie outside of a range by a rounding error.

    NaN is its lower end.
    """
    if isinstance(domain, Choice) or _has_index(domain):
        return domain.at(int(number))
    inside = min(max(domain.min, number), domain.max)
    return float(inside) if isinstance(domain, Float) else int(inside)
