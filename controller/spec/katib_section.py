"""Reading a mapping of Katib's file: keys that must be there,
keys of a type, keys that are not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from controller.phrases import command
from controller.spec.native import SPEC
from controller.spec.problems import ProblemCollector
from controller.spec.spelling import meant_by

# A file's plain data, whose shape is not checked yet.
Json: TypeAlias = dict[str, Any]
_MOST_SHOWN = 120
_NATIVE = frozenset(f"spec.{key.name}" for key in SPEC.keys)


def shown(value: object) -> str:
    """Return a value of the file for a message: text in quotes, anything else as JSON."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


@dataclass(frozen=True, slots=True)
class KatibFile:
    """What the readers of the parts of one file share.

    problems: They get the paths of Katib's file.
    unread: The keys that Katib ignores, with what to say of them.
    warnings: Of what is read and has no effect.
    places: Of native keys in this file, more exactly than in KATIB_KEYS.
    placeholders: Of this file, by the native ones.
    """

    problems: ProblemCollector
    unread: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    placeholders: dict[str, str] = field(default_factory=dict)


class KatibSectionReader:
    """Reads one part of a file."""

    def __init__(self, file: KatibFile) -> None:
        self._file = file
        self._problems = file.problems

    def _mapping(self, parent: Json, key: str, at: str) -> Json:
        return self._taken(parent, key, at, dict, "a mapping") or {}

    def _list(self, parent: Json, key: str, at: str) -> list[Any]:
        return self._taken(parent, key, at, list, "a list") or []

    def _optional(self, parent: Json, key: str, at: str) -> list[Any]:
        return [] if parent.get(key) is None else self._list(parent, key, at)

    @staticmethod
    def _pair(entry: object, *keys: str) -> tuple[Any, ...]:
        """Return the values of an entry of a list; None for what is not there."""
        fields = entry if isinstance(entry, dict) else {}
        return tuple(map(fields.get, keys))

    # Any: of `kind`, or None.
    def _taken(self, parent: Json, key: str, at: str, kind: type, expected: str) -> Any:
        below = f"{at}.{key}" if at else key
        value = parent.get(key)
        if value is None:
            self._problems.add(below, f"must be specified; write {expected}")
        elif not isinstance(value, kind):
            self._problems.add(below, f"expected {expected}")
            return None
        return value

    def _only(self, section: Json, at: str, keys: Iterable[str]) -> None:
        for name in section:
            if name in keys:
                continue
            path = f"{at}.{name}" if at else name
            meant = meant_by(str(name), (key for key in keys if key not in section))
            if path in _NATIVE:
                cure = f"to use it, make a native file: {command('convert', 'FILE')}"
            else:
                cure = "remove it" if meant is None else f"did you mean {meant}?"
            self._file.unread[path] = f"is not a key of Katib's, which ignores it, too; {cure}"
