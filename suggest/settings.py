"""Settings of algorithms: declared once as a dataclass, read from what people send with every complaint at once.

A field made by `setting` carries its meaning and its bounds; its type is that of its default. People write camelCase.
Pure; knows no algorithm.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from suggest.domain import Value, number, show
from suggest.errors import Problem, did_you_mean

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as people see it; `kind` is bool, int, float, or str, which is one of `words`."""

    name: str
    kind: type
    default: Value
    meaning: str
    min: float | None = None
    max: float | None = None
    words: tuple[str, ...] = ()

    def complaint(self, value: Value) -> str:
        if self.kind is str:
            return "" if value in self.words else f"{show(value)} is not one of {', '.join(self.words)}"
        if self.kind is bool:
            return "" if isinstance(value, bool) else f"{show(value)} is neither true nor false"
        x = number(value)
        if x is None or not math.isfinite(x) or (self.kind is int and x != int(x)):
            return f"{show(value)} is not a {'whole ' if self.kind is int else ''}number"
        if self.min is not None and x < self.min:
            return f"{show(value)} is too small; use {show(self.min)} or more"
        if self.max is not None and x > self.max:
            return f"{show(value)} is too large; use {show(self.max)} or less"
        return ""


# Any: dataclasses.field is typed as whatever the field is, and so is this.
def setting(
    default: Value, meaning: str, *, min: float | None = None, max: float | None = None, words: tuple[str, ...] = ()
) -> Any:
    """A field of a settings dataclass; `words`: what a text may be."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, "min": min, "max": max, "words": words})


@dataclass(frozen=True, slots=True)
class NoSettings:
    """For what has nothing to set."""


def declared(settings: type) -> tuple[Setting, ...]:
    # Every field was made by `setting`, which is where these types hold.
    fields: list[tuple[str, Any, Mapping[str, Any]]] = [
        (f.name, f.default, f.metadata) for f in dataclasses.fields(settings)
    ]
    return tuple(
        Setting(_camel(name), type(default), default, about["meaning"], about["min"], about["max"], about["words"])
        for name, default, about in fields
    )


def problems(settings: type, given: Mapping[str, Value]) -> tuple[Problem, ...]:
    """What is wrong with the given values; paths are the names given."""
    known = {s.name: s for s in declared(settings)}
    found: list[Problem] = []
    for name, value in given.items():
        if name not in known:
            hint = did_you_mean(name, known) or (f"; there are {', '.join(known)}" if known else "; there are none")
            found.append(Problem(name, f"no such setting{hint}"))
        elif complaint := known[name].complaint(value):
            found.append(Problem(name, complaint))
    return tuple(found)


def read(settings: type[T], given: Mapping[str, Value]) -> T:
    """The typed settings of given values that have no problems."""
    kinds = {s.name: s.kind for s in declared(settings)}
    return settings(**{_snake(name): kinds[name](value) for name, value in given.items()})


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
