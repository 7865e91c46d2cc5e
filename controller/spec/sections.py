"""The mappings of a file: sections with a table of `Key`s,
and mappings whose names the person chooses.

An unknown key is always a problem, whose message says which key was probably meant.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.spec.fields import (
    ABSENT,
    ANY,
    INVALID,
    REQUIRED,
    Key,
    Schema,
    ValueKind,
    Word,
    refuse,
)
from controller.spec.problems import ProblemCollector
from controller.spec.spelling import meant_by

NO_MERGE_KEYS = "merge keys are not part of YAML 1.2; write the keys out"


@dataclass(frozen=True, slots=True)
class MapOf:
    """Names that the person chooses, each with a value of one kind; invalid ones are left out."""

    item: ValueKind
    expected: str = "a mapping"
    key_pattern: str = r"[\s\S]+"
    key_rule: str = "a name"

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if not isinstance(raw, dict):
            return refuse(raw, at, problems, self.expected)
        result = {}
        for key, value in raw.items():
            below = f"{at}.{key}"
            if not re.fullmatch(self.key_pattern, key):
                problems.add(below, f"{key!r} is not a name here; use {self.key_rule}", at_key=True)
                continue
            item = self.item.take(value, below, problems)
            if item is not INVALID:
                result[key] = item
        return result

    def schema(self) -> Schema:
        names = {"propertyNames": {"pattern": f"^(?:{self.key_pattern})$"}}
        if self.key_pattern == r"[\s\S]+":
            names = {}
        return {"type": "object", "additionalProperties": self.item.schema(), **names}


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping with a table of keys; `rest` takes the others, which are refused without it."""

    keys: tuple[Key, ...]
    expected: str = "a mapping"
    rest: ValueKind | None = None
    rest_pattern: str = r"[\s\S]+"
    rest_words: str = "other names"
    # Key -> the reason, and what to write instead.
    refused: Mapping[str, str] = field(default_factory=dict)
    # Key that belongs to another section -> its path.
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if not isinstance(raw, dict):
            return refuse(raw, at, problems, self.expected)
        values: dict[str, object] = {}
        for key in self.keys:
            below = f"{at}.{key.name}" if at else key.name
            # Null may be the value of a parameter.
            if raw.get(key.name) is not None or (key.name in raw and key.kind is ANY):
                value = key.kind.take(raw[key.name], below, problems)
                if value is not INVALID:
                    values[key.name] = value
            elif key.name in raw:
                problems.add(
                    below,
                    f"expected {key.kind.expected}, got nothing; write one, or remove the key",
                )
            elif key.default is REQUIRED:
                problems.add(below, f"is missing; write {key.kind.expected}")
            elif isinstance(key.kind, Section) and key.default is not ABSENT:
                values[key.name] = key.kind.take({}, below, problems)
            elif key.default is not ABSENT:
                # A document may be changed, the table may not.
                values[key.name] = copy.copy(key.default)
        known_keys = {key.name for key in self.keys}
        for name in raw:
            if name not in known_keys:
                self._other(name, raw[name], f"{at}.{name}" if at else name, problems, values)
        return values

    def _other(
        self,
        name: str,
        raw: object,
        below: str,
        problems: ProblemCollector,
        values: dict[str, object],
    ) -> None:
        names = [key.name for key in self.keys]
        if name in self.refused:
            problems.add(below, self.refused[name], at_key=True)
        elif self.rest is not None and re.fullmatch(self.rest_pattern, name):
            value = self.rest.take(raw, below, problems)
            if value is not INVALID:
                values[name] = value
        elif name.isdecimal() and raw is None:
            cure = "write a decimal number with a point, such as 0.97"
            problems.add(below, f"the comma before it begins another key; {cure}", at_key=True)
        elif name == "<<":
            problems.add(below, NO_MERGE_KEYS, at_key=True)
        elif name in self.elsewhere:
            problems.add(
                below, f"no such key here; did you mean {self.elsewhere[name]}?", at_key=True
            )
        elif suggestion := meant_by(
            name, names, fits=lambda option: self._word(option, raw) is not None
        ):
            word = self._word(suggestion, raw)
            meant = f"{suggestion}: {word}" if word else suggestion
            problems.add(below, f"no such key; did you mean {meant}?", at_key=True)
        elif (suggestion := meant_by(name, self.elsewhere)) is not None:
            problems.add(
                below, f"no such key here; did you mean {self.elsewhere[suggestion]}?", at_key=True
            )
        else:
            known = f"the keys here are {', '.join(names)}"
            if self.rest is not None:
                known += f", and {self.rest_words}"
            problems.add(below, f"no such key; {known}", at_key=True)

    def _word(self, name: str, raw: object) -> str | None:
        """Return which of the key's words was meant; None if it does not take one of a few."""
        kind = next(key.kind for key in self.keys if key.name == name)
        if not isinstance(kind, Word) or not isinstance(raw, str):
            return None
        return raw if raw in kind.words else meant_by(raw, kind.words)

    def schema(self) -> Schema:
        properties = {}
        for key in self.keys:
            default = {} if key.default in (REQUIRED, ABSENT) else {"default": key.default}
            properties[key.name] = {**key.kind.schema(), "description": key.help, **default}
        required = [key.name for key in self.keys if key.default is REQUIRED]
        other: Schema = {"additionalProperties": False}
        if self.rest is not None and self.rest_pattern == r"[\s\S]+":
            other = {"additionalProperties": self.rest.schema()}
        elif self.rest is not None:
            other |= {"patternProperties": {f"^(?:{self.rest_pattern})$": self.rest.schema()}}
        return {
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            **other,
        }
