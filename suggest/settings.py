"""Settings of algorithms: declared once as a dataclass, and read
from what people send, with all problems at once.

A field made by `setting` has a meaning and bounds; its type is that of its default. Names are
camelCase for people.
Pure: this module does not depend on any algorithm.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from suggest.domain import EXACT, Value, is_finite, number, number_meant, show
from suggest.errors import MAX_HINTED, FailedPrecondition, Problem, did_you_mean, under

T = TypeVar("T")
# What other tools add to the names of their algorithms and rules.
_GENERIC = re.compile(
    r"(sampler|search|optimi[sz]ation|optimi[sz]er|algorithm|pruner|pruning|stopping|stop|scheduler)+$"
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as people see it. `kind` is bool, int, float, or str for one of `words`."""

    name: str
    kind: type
    default: Value
    meaning: str
    min: float | None = None
    max: float | None = None
    words: tuple[str, ...] = ()

    def problem_with(self, value: Value) -> str:
        if self.kind is str:
            if value in self.words:
                return ""
            return f"{show(value)} is not one of {', '.join(self.words)}"
        if self.kind is bool:
            return "" if isinstance(value, bool) else f"{show(value)} is neither true nor false"
        x = number(value)
        if x is None or not is_finite(x) or (self.kind is int and x != int(x)):
            kind = "whole number" if self.kind is int else "number"
            return f"{show(value)} is not a {kind}{number_meant(value)}"
        if self.min is not None and x < self.min:
            return f"{show(value)} is too small; use {show(self.min)} or more"
        most = EXACT if self.max is None and self.kind is int else self.max
        if most is not None and x > most:
            return f"{show(value)} is too large; use {show(most)} or less"
        return ""


# Any: dataclasses.field is typed as whatever the field is, and so is this.
def setting(
    default: Value,
    meaning: str,
    *,
    min: float | None = None,
    max: float | None = None,
    words: tuple[str, ...] = (),
) -> Any:
    """Return a field of a settings dataclass. `words` are the values that a text may have."""
    return dataclasses.field(
        default=default, metadata={"meaning": meaning, "min": min, "max": max, "words": words}
    )


@dataclass(frozen=True, slots=True)
class NoSettings:
    """The settings of an algorithm that has none."""


def declared(settings: type) -> tuple[Setting, ...]:
    # Every field was made by `setting`, which is where these types hold.
    fields: list[tuple[str, Any, Mapping[str, Any]]] = [
        (f.name, f.default, f.metadata) for f in dataclasses.fields(settings)
    ]
    return tuple(
        Setting(
            camel_case(name),
            type(default),
            default,
            about["meaning"],
            about["min"],
            about["max"],
            about["words"],
        )
        for name, default, about in fields
    )


def problems(settings: type, given: Mapping[str, Value]) -> tuple[Problem, ...]:
    """Return the problems of the given values. Paths are the given names."""
    known = {s.name: s for s in declared(settings)}
    found: list[Problem] = []
    for name, value in given.items():
        if name not in known:
            hint = did_you_mean(name, known) or (
                f"; there are {', '.join(known)}" if known else "; there are none"
            )
            found.append(Problem(name, f"no such setting{hint}"))
        elif problem := known[name].problem_with(value):
            found.append(Problem(name, problem))
    return tuple(found)


def read(settings: type[T], given: Mapping[str, Value]) -> T:
    """Return the typed settings of values that have no problems.

    Raises FailedPrecondition for a setting or a word that only another version has.
    """
    known = {s.name: s for s in declared(settings)}
    for name, value in given.items():
        if name not in known:
            raise _of_another_version(f"there is no setting {name!r}")
        if known[name].words and value not in known[name].words:
            raise _of_another_version(f"{name} cannot be {value!r}")
    return settings(**{_snake(name): known[name].kind(value) for name, value in given.items()})


def _of_another_version(problem: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"{problem} in this version of tuner, and another version has stored it; update tuner, or "
        "continue with a file that lacks it: tuner resume FILE"
    )


@dataclass(frozen=True, slots=True)
class Choosable:
    """Something that people choose by name and give settings: an algorithm or a pruning rule."""

    name: str
    summary: str
    settings_type: type

    @property
    def settings(self) -> tuple[Setting, ...]:
        return declared(self.settings_type)


C = TypeVar("C", bound=Choosable)


class Catalog(Generic[C]):
    """All choices of one kind, by name.

    The module of a choice is imported when the choice is first used.

    Args:
        what: one of them in a sentence, such as `an algorithm`.
        modules: the module of each choice, whose `ENTRIES` has it.
        elsewhere: the names of each choice in other tools and books, in lower case without hyphens.
    """

    def __init__(self, what: str, modules: Mapping[str, str], elsewhere: Mapping[str, str]) -> None:
        self._what = what
        self._modules = modules
        self._elsewhere: dict[str, str] = {}
        for choice, names in elsewhere.items():
            self._elsewhere |= dict.fromkeys(names.split(), choice)
        self._loaded: dict[str, C] = {}

    def __iter__(self) -> Iterator[C]:
        """Import all modules, and yield all choices."""
        return map(self.__getitem__, self._modules)

    def __getitem__(self, name: str) -> C:
        """Raises FailedPrecondition for a choice that only another version has."""
        if name not in self._modules:
            raise _of_another_version(f"{name!r} is not {self._what}")
        if name not in self._loaded:
            entries: Iterable[C] = importlib.import_module(self._modules[name]).ENTRIES
            self._loaded |= {entry.name: entry for entry in entries}
        return self._loaded[name]

    def get(self, name: str) -> C | None:
        return self[name] if name in self._modules else None

    def problems(self, name: str, given: Mapping[str, Value]) -> Iterator[Problem]:
        """Yield the problems of a choice. Paths are `name` and `settings.NAME`."""
        entry = self.get(name)
        if entry is None:
            choices = f"; there are {', '.join(self._modules)}"
            yield Problem(
                "name", f"{name!r} is not {self._what}{choices}{self._did_you_mean(name)}"
            )
            return
        yield from under("settings", problems(entry.settings_type, given))

    def _did_you_mean(self, name: str) -> str:
        """Return a hint at the choice that other tools call so, or at the most similar name.

        Names are compared also without the prefix `optuna:`, without hyphens, and without words
        such as `Sampler`.
        """
        # lazy: takes milliseconds, and is needed only for mistyped names
        from difflib import get_close_matches

        spelled = {entry.rpartition(":")[2]: entry for entry in reversed(tuple(self._modules))}
        spelled |= {entry: entry for entry in self._modules}
        plain = re.sub(r"[-_ ]", "", name[:MAX_HINTED].lower())
        bare = _GENERIC.sub("", plain)
        for known in (spelled, self._elsewhere):
            for word in (plain, bare):
                if word in known:
                    return f"; did you mean {known[word]}?"
        near = get_close_matches(plain, spelled, n=1)
        return f"; did you mean {spelled[near[0]]}?" if near else ""


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
