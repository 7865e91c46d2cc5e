"""Reading a mapping of Katib's file: keys that must be there,
keys of a type, keys that are not read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from controller.spec.problems import ProblemCollector

# A file's plain data, whose shape is not checked yet.
Json: TypeAlias = dict[str, Any]


class KatibSectionReader:
    """Reads one part of a file. `problems` get the paths of Katib's file."""

    def __init__(self, problems: ProblemCollector) -> None:
        self._problems = problems

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

    def _only(
        self, section: Json, at: str, keys: Iterable[str], refused: dict[str, str] | None = None
    ) -> None:
        for name in section:
            if name not in keys:
                problem = (refused or {}).get(name, "is not supported; remove it")
                self._problems.add(f"{at}.{name}" if at else name, problem, at_key=True)
