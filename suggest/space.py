"""The search space: parameters, their domains, their conditions; what is a point of it and what is not.

Pure, standard library only (it is imported by `tuner validate` and by the controller's core).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Value: TypeAlias = str | int | float | bool
Assignment: TypeAlias = Mapping[str, Value]


class Scale(enum.Enum):
    LINEAR = "linear"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Float:
    """A real number in [min, max]. `step` puts it on the grid min + k*step; `points` gives a grid of that many
    points, evenly spaced on the scale. At most one of the two; `step` needs the linear scale."""

    min: float
    max: float
    scale: Scale = Scale.LINEAR
    step: float | None = None
    points: int | None = None


@dataclass(frozen=True, slots=True)
class Int:
    """A whole number min + k*step in [min, max]. A log scale goes with step 1 only."""

    min: int
    max: int
    scale: Scale = Scale.LINEAR
    step: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values, unordered. Values are equal only when their types are too: True is not 1."""

    values: tuple[Value, ...]


Domain: TypeAlias = Float | Int | Choice


@dataclass(frozen=True, slots=True)
class Condition:
    """Holds when `parameter` is active and has one of `values`."""

    parameter: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """Active when all conditions hold. Order in a `Space` is the person's; conditions may point anywhere but in a cycle."""

    name: str
    domain: Domain
    when: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Space:
    parameters: tuple[Parameter, ...]
