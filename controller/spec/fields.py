"""The kinds of values in an experiment's file: how each is checked,
described to people and written in a schema.

A reader is a table of keys (`sections.Section`). The check of a file, its JSON Schema and its
reference all use the same table, so they cannot disagree. `take` turns raw data into the canonical
form of the document, or reports a problem and returns INVALID. A value in canonical form is
returned unchanged. This module does not know the names of the keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Final, Protocol

from controller.core.substitute import as_text, nodes
from controller.spec.problems import ProblemCollector
from controller.spec.spelling import meant_by
from suggest.domain import number_meant

INVALID: Final = object()
REQUIRED: Final = object()
ABSENT: Final = object()  # optional, without a default
Schema = dict[str, Any]  # JSON Schema is JSON
_SAFE_INTEGER = 2.0**53


class ValueKind(Protocol):
    @property
    def expected(self) -> str:
        """Return what is expected, as part of a sentence: "a whole number of at least 1"."""

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object: ...

    def schema(self) -> Schema: ...


def describe_value(raw: object) -> str:
    """Describe the value that the file has, as part of a sentence."""
    match raw:
        case None:
            return "nothing"
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case bool():
            return "true" if raw else "false"
        case str():
            shown = raw if len(raw) <= 40 else raw[:37] + "..."
            return f"the string {shown!r}"
        case int() | float():
            return f"the number {as_text(raw)}"
        case _:
            return f"the number {raw}"


def refuse(
    raw: object, at: str, problems: ProblemCollector, expected: str, *, cure: str = ""
) -> object:
    problems.add(at, f"expected {expected}, got {describe_value(raw)}{cure}")
    return INVALID


@dataclass(frozen=True, slots=True)
class Text:
    """A string, which must match `pattern`; `rule` says in words what that means."""

    expected: str = "a string"
    pattern: str = r"[\s\S]+"
    rule: str = "something"
    max_length: int | None = None

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if isinstance(raw, int | float):
            problems.add(
                at,
                f"expected {self.expected}, got {describe_value(raw)}; put quotes around it: "
                f'"{as_text(raw)}"',
            )
            return INVALID
        if not isinstance(raw, str):
            return refuse(raw, at, problems, self.expected)
        if self.max_length is not None and len(raw) > self.max_length:
            problems.add(at, f"{len(raw)} characters are too many; use at most {self.max_length}")
            return INVALID
        if not re.fullmatch(self.pattern, raw):
            problems.add(at, f"{raw!r} is not {self.expected}; use {self.rule}")
            return INVALID
        return raw

    def schema(self) -> Schema:
        limit = {} if self.max_length is None else {"maxLength": self.max_length}
        match self.pattern:
            case r"[\s\S]*":
                return {"type": "string", **limit}
            case r"[\s\S]+":
                return {"type": "string", "minLength": 1, **limit}
        return {"type": "string", "pattern": f"^(?:{self.pattern})$", **limit}


@dataclass(frozen=True, slots=True)
class WholeNumber:
    least: int | None = None
    # Up to here, a double holds every whole number, and so does any JSON.
    most: int = 2**53

    @property
    def expected(self) -> str:
        if self.least is None:
            return "a whole number"
        return f"a whole number of at least {self.least}"

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        integral = isinstance(raw, float) and raw.is_integer() and abs(raw) <= _SAFE_INTEGER
        if isinstance(raw, bool) or not (isinstance(raw, int) or integral):
            return refuse(raw, at, problems, self.expected, cure=number_meant(raw))
        assert isinstance(raw, int | float)
        if self.least is not None and raw < self.least:
            return refuse(raw, at, problems, self.expected)
        if raw > self.most:
            problems.add(at, f"{raw} is too large; use at most {self.most}")
            return INVALID
        return int(raw)

    def schema(self) -> Schema:
        if self.least is None:
            return {"type": "integer"}
        return {"type": "integer", "minimum": self.least}


@dataclass(frozen=True, slots=True)
class NumberOrNone:
    """A whole number, or the word `none` for no limit."""

    number: WholeNumber

    @property
    def expected(self) -> str:
        return f"{self.number.expected}, or none"

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if raw == "none":
            return raw
        if isinstance(raw, str):
            return refuse(raw, at, problems, self.expected)
        return self.number.take(raw, at, problems)

    def schema(self) -> Schema:
        return {"anyOf": [self.number.schema(), {"const": "none"}]}


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number. Whole numbers are kept as int, so that 1 and 1.0 mean the same."""

    least: float | None = None
    most: float = math.inf

    @property
    def expected(self) -> str:
        return "a finite number" if self.least is None else f"a number of at least {self.least:g}"

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            return refuse(raw, at, problems, self.expected, cure=number_meant(raw))
        try:
            value = float(raw)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            finite = self.expected.replace("a number", "a finite number")
            return refuse(raw, at, problems, finite)
        if self.least is not None and value < self.least:
            return refuse(raw, at, problems, self.expected)
        if value > self.most:
            problems.add(at, f"{raw} is too large; use at most {self.most:g}")
            return INVALID
        return int(value) if value.is_integer() and abs(value) <= _SAFE_INTEGER else value

    def schema(self) -> Schema:
        if self.least is None:
            return {"type": "number"}
        return {"type": "number", "minimum": self.least}


@dataclass(frozen=True, slots=True)
class OfType:
    """A value of one of the types, kept as it is.

    form: Its schema.
    finite: What to do with a number in it that JSON does not have; "" if that is checked elsewhere.
    """

    types: type | UnionType
    expected: str
    form: Mapping[str, object]
    finite: str = ""

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if not isinstance(raw, self.types):
            return refuse(raw, at, problems, self.expected)
        wrong = [
            (place, x)
            for place, x in (nodes(raw, at) if self.finite else ())
            if isinstance(x, float) and not math.isfinite(x)
        ]
        for place, x in wrong:
            rule = "is not finite, and JSON has only finite numbers"
            problems.add(place, f"{x} {rule}; {self.finite}")
        return INVALID if wrong else raw

    def schema(self) -> Schema:
        return dict(self.form)


FLAG = OfType(bool, "true or false", {"type": "boolean"})
SCALAR = OfType(
    str | int | float,
    "a string, a number, true or false",
    {"type": ["string", "number", "boolean"]},
    finite="use a finite one",
)
# A choice, or a reference to one. The domain checks its depth and length.
ANY = OfType(object, "a value", {})


def mapping_of(expected: str) -> OfType:
    """Return the kind of plain data that is checked elsewhere, such as a manifest."""
    return OfType(dict, expected, {"type": "object"}, finite="write it as a string")


@dataclass(frozen=True, slots=True)
class Word:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def expected(self) -> str:
        return " or ".join(
            (", ".join(self.words[:-1]), self.words[-1]) if len(self.words) > 1 else self.words
        )

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if raw in self.words:
            return raw
        if not isinstance(raw, str):
            return refuse(raw, at, problems, self.expected)
        suggestion = meant_by(raw, self.words)
        problems.add(
            at,
            f"{raw!r} is not {self.expected}"
            + (f"; did you mean {suggestion}?" if suggestion else ""),
        )
        return INVALID

    def schema(self) -> Schema:
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Parsed:
    """A value with its own notation: a duration, an amount of memory, a regular expression.

    `read` returns the canonical form of a string or number, or raises ValueError with the message.
    """

    expected: str
    read: Callable[[str | int | float], object]
    form: Mapping[str, object]

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if isinstance(raw, bool) or not isinstance(raw, str | int | float):
            return refuse(raw, at, problems, self.expected)
        try:
            return self.read(raw)
        except ValueError as error:
            problems.add(at, str(error))
            return INVALID

    def schema(self) -> Schema:
        return dict(self.form)


@dataclass(frozen=True, slots=True)
class ListOf:
    item: ValueKind
    expected: str = "a list"
    least: int = 0

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if not isinstance(raw, list):
            return refuse(raw, at, problems, self.expected)
        if len(raw) < self.least:
            problems.add(at, f"expected {self.expected}, got an empty list")
            return INVALID
        items = [self.item.take(item, f"{at}[{i}]", problems) for i, item in enumerate(raw)]
        return INVALID if any(item is INVALID for item in items) else items

    def schema(self) -> Schema:
        return {"type": "array", "items": self.item.schema()} | (
            {"minItems": self.least} if self.least else {}
        )


def _unchanged(value: object) -> object:
    return value


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a section.

    default: in canonical form.
    says: the default in words, if it depends on other keys.
    field: the attribute of the model's class that has the value; "" if `document` does more than
    copy it. If the key is absent, the attribute keeps the default of its class.
    value: converts the canonical form to the attribute's value.
    """

    name: str
    kind: ValueKind
    help: str
    default: object = ABSENT
    says: str = ""
    field: str = ""
    value: Callable[[Any], object] = _unchanged  # Any: the kind determines the form


def fields_of(keys: Iterable[Key], section: Mapping[str, object]) -> dict[str, Any]:
    """Return the values of these keys as arguments of the model's class, under its field names."""
    return {
        key.field: key.value(section[key.name]) for key in keys if key.field and key.name in section
    }
