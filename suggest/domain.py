"""Domains: the sets of values that one parameter may take, and what is a member of them.

Pure, standard library only. A domain is a set: a countable one (`step`, whole numbers, choices) knows its values by
index, in order; a continuous range does not. `points` changes no set: it is what a grid search takes from a range, and
`suggest.sampling` reads it. Nothing here knows other parameters; conditions live in `suggest.space`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from suggest.errors import Problem

Value: TypeAlias = str | int | float | bool

MAX_CHOICES = 10_000
EXACT = 2**53  # up to here a double, and so JSON and every sampler, holds each whole number
TOLERANCE = 1e-9  # relative; what decimal fractions lose in binary is far below, what people mean far above


class Scale(enum.Enum):
    LINEAR = "linear"
    LOG = "log"


def show(value: Value) -> str:
    """As a person would write it in the file: true, 3, 0.1, 'relu'."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value)
        case float() if value.is_integer() and abs(value) < EXACT:
            return str(int(value))
    return repr(value)


def identity(value: Value) -> tuple[str, Value]:
    """Equal for equal values only: 1 and 1.0 are one number, True is not, "1" is not."""
    kind = "bool" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"
    return kind, value


def number(value: Value) -> float | int | None:
    """The value when it is a number; a bool never is."""
    return None if isinstance(value, bool | str) else value


@dataclass(frozen=True, slots=True)
class Float:
    """A real number in [min, max]; with `step`, which needs the linear scale, only min + k*step.

    `points` is for a grid search alone, which tries that many values, evenly spaced on the scale; any number of the
    range remains a member. At most one of step and points.
    """

    min: float
    max: float
    scale: Scale = Scale.LINEAR
    step: float | None = None
    points: int | None = None

    @property
    def count(self) -> int | None:
        """How many values there are; None for a continuum."""
        if self.min == self.max:
            return 1
        if self.step is not None:
            return round((self.max - self.min) / self.step) + 1
        return None

    def at(self, index: int) -> float:
        """The index-th of a countable number of values, in rising order."""
        return float(self.min) if index == 0 else self._stepped(index)

    def _stepped(self, index: int) -> float:
        # In decimals, as the person wrote it: 0.1 + 2*0.1 is 0.3.
        assert self.step is not None
        return float(Decimal(repr(float(self.min))) + index * Decimal(repr(float(self.step))))

    def index_of(self, value: Value) -> int | None:
        """The index of a member among countably many; None for what is none, and on a continuum."""
        x, count = number(value), self.count
        if x is None or count is None or not math.isfinite(x):
            return None
        index = self._nearest(x, count)
        if index is None:
            return None
        slack = TOLERANCE * (self.step or 0.0)
        return index if math.isclose(x, self.at(index), rel_tol=TOLERANCE, abs_tol=slack) else None

    def _nearest(self, x: float, count: int) -> int | None:
        if count == 1:
            return 0
        index = round((x - self.min) / (self.max - self.min) * (count - 1))
        return index if 0 <= index < count else None

    def canonical(self, value: Value) -> float | None:
        """The member that `value` means, as a float; None when it means none."""
        x = number(value)
        if x is None:
            return None
        if self.count is None:
            return float(x) if self.min <= x <= self.max else None
        index = self.index_of(x)
        return None if index is None else self.at(index)

    def contains(self, value: Value) -> bool:
        return self.canonical(value) is not None

    def complaint(self, value: Value) -> str:
        """Why `value` is no member; empty when it is one."""
        if self.contains(value):
            return ""
        x = number(value)
        if x is None or not math.isfinite(x):
            return f"{show(value)} is not a finite number; use one from {show(self.min)} to {show(self.max)}"
        if not self.min <= x <= self.max:
            return f"{show(x)} is outside {show(self.min)} to {show(self.max)}"
        count = self.count
        assert count is not None  # within a continuum every number is a member
        index = self._nearest(x, count) or 0
        lower = index if self.at(index) < x else index - 1
        around = f"{show(self.at(max(lower, 0)))} or {show(self.at(min(lower + 1, count - 1)))}"
        steps = f"the steps of {show(self.step or 0.0)} from {show(self.min)} to {show(self.max)}"
        return f"{show(x)} is not on {steps}; the nearest are {around}"

    def problems(self) -> Iterator[Problem]:
        """What is wrong with the domain itself; paths are its fields."""
        if not (math.isfinite(self.min) and math.isfinite(self.max)):
            for name, bound in (("min", self.min), ("max", self.max)):
                if not math.isfinite(bound):
                    yield Problem(name, f"{show(bound)} is not finite; a range needs finite ends")
            return
        if self.min > self.max:
            yield Problem("min", f"{show(self.min)} is above max, {show(self.max)}; swap the two")
            return
        if not math.isfinite(self.max - self.min):
            yield Problem("max", f"the range from {show(self.min)} to {show(self.max)} is too wide for a double")
        if self.scale is Scale.LOG and self.min <= 0:
            yield Problem("min", f"{show(self.min)} cannot be on a log scale; use a min above 0, or scale: linear")
        if self.step is not None and self.points is not None:
            yield Problem("points", f"{self.points} together with step {show(self.step)}; give one of the two")
        elif self.points is not None:
            yield from self._points_problems(self.points)
        elif self.step is not None:
            yield from self._step_problems(self.step)

    def _points_problems(self, points: int) -> Iterator[Problem]:
        if self.min == self.max:
            if points != 1:
                yield Problem("points", f"{points} points cannot be told apart between equal ends; leave points out")
        elif not 2 <= points <= EXACT:
            yield Problem("points", f"{points} points cannot span a range; use 2 or more")

    def _step_problems(self, step: float) -> Iterator[Problem]:
        if self.scale is Scale.LOG:
            yield Problem("step", f"{show(step)} on a log scale; use points for a grid there, or scale: linear")
        elif not (math.isfinite(step) and step > 0):
            yield Problem("step", f"{show(step)} is no step; use a number above 0")
        else:
            steps = (self.max - self.min) / step
            if steps > EXACT:
                yield Problem("step", f"{show(step)} makes more than 2^53 values; use a larger step")
            elif abs(steps - round(steps)) > TOLERANCE * max(1.0, steps):
                down, up = (show(self._stepped(k)) for k in (math.floor(steps), math.ceil(steps)))
                yield Problem("step", _misfit(step, self.min, self.max, down, up))


@dataclass(frozen=True, slots=True)
class Int:
    """A whole number min + k*step in [min, max]. A log scale goes with step 1 only."""

    min: int
    max: int
    scale: Scale = Scale.LINEAR
    step: int = 1

    @property
    def count(self) -> int:
        return (self.max - self.min) // self.step + 1

    def at(self, index: int) -> int:
        return self.min + index * self.step

    def index_of(self, value: Value) -> int | None:
        x = number(value)
        if x is None or not math.isfinite(x) or not self.min <= x <= self.max or x != int(x):
            return None
        index, rest = divmod(int(x) - self.min, self.step)
        return None if rest else index

    def canonical(self, value: Value) -> int | None:
        """The member that `value` means, as an int (3.0 means 3); None when it means none."""
        index = self.index_of(value)
        return None if index is None else self.at(index)

    def contains(self, value: Value) -> bool:
        return self.index_of(value) is not None

    def complaint(self, value: Value) -> str:
        """Why `value` is no member; empty when it is one."""
        if self.contains(value):
            return ""
        x = number(value)
        if x is None or not math.isfinite(x) or x != int(x):
            return f"{show(value)} is not a whole number; use one from {self.min} to {self.max}"
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
                yield Problem(name, f"{bound} is beyond ±2^53, where doubles skip whole numbers; use a smaller one")
        if self.min > self.max:
            yield Problem("min", f"{self.min} is above max, {self.max}; swap the two")
            return
        if self.scale is Scale.LOG and self.min <= 0:
            yield Problem("min", f"{self.min} cannot be on a log scale; use a min above 0, or scale: linear")
        if self.step < 1:
            yield Problem("step", f"{self.step} is no step; use 1 or more")
        elif self.scale is Scale.LOG and self.step != 1:
            yield Problem("step", f"{self.step} on a log scale, which goes with step 1 only; leave step out")
        elif rest := (self.max - self.min) % self.step:
            down = self.max - rest
            yield Problem("step", _misfit(self.step, self.min, self.max, str(down), str(down + self.step)))


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values, unordered. Values are equal only when their types are too: True is not 1."""

    values: tuple[Value, ...]

    @property
    def count(self) -> int:
        return len(self.values)

    def at(self, index: int) -> Value:
        return self.values[index]

    def index_of(self, value: Value) -> int | None:
        wanted = identity(value)
        return next((k for k, v in enumerate(self.values) if v == value and identity(v) == wanted), None)

    def canonical(self, value: Value) -> Value | None:
        """The declared value that `value` equals (1.0 for a declared 1 is 1); None when it is no choice."""
        index = self.index_of(value)
        return None if index is None else self.values[index]

    def contains(self, value: Value) -> bool:
        return self.index_of(value) is not None

    def complaint(self, value: Value) -> str:
        """Why `value` is no member; empty when it is one."""
        if self.contains(value):
            return ""
        shown = ", ".join(show(v) for v in self.values[:8]) + (", …" if self.count > 8 else "")
        return f"{show(value)} is none of the choices {shown}"

    def problems(self) -> Iterator[Problem]:
        if not self.values:
            yield Problem("values", "no choices; give one or more")
        if self.count > MAX_CHOICES:
            yield Problem("values", f"{self.count} choices are more than {MAX_CHOICES}; use an int for a long range")
            return
        seen: set[tuple[str, Value]] = set()
        for index, value in enumerate(self.values):
            x = number(value)
            if x is not None and not math.isfinite(x):
                yield Problem(f"values[{index}]", f"{show(value)} is not finite; a choice is text, a bool or a number")
            elif isinstance(x, int) and abs(x) > EXACT:
                yield Problem(
                    f"values[{index}]", f"{x} is beyond ±2^53, where doubles skip whole numbers; make it text"
                )
            elif identity(value) in seen:
                yield Problem(f"values[{index}]", f"{show(value)} is there twice; leave one out")
            seen.add(identity(value))


Domain: TypeAlias = Float | Int | Choice


def _misfit(step: float, low: float, high: float, down: str, up: str) -> str:
    return (
        f"{show(step)} does not lead from min {show(low)} to max {show(high)}; use max {down} or {up}, or another step"
    )
