"""The problems of a file: collected by path, given lines, and shown all at once.

A check knows the path of a problem (`spec.parameters.lr.min`) but not its line. `yaml_text`
provides the lines, and this module combines the two. It does not know the keys of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from controller.phrases import quantity
from suggest.errors import InvalidArgument, Problem


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the text (line and column from 1), or the `--set` that a value came from."""

    line: int
    column: int
    override: str = ""


class NoConfigMap(Exception):
    """A ConfigMap cannot be read. The message says why, and the cure."""


# For problems of the whole file, such as a missing file.
NOWHERE = Mark(0, 0)


def _itself(text: str) -> str:
    return text


def _is_at(path: str, root: str) -> bool:
    """Return whether `path` is `root` or below it."""
    return path == root or path.startswith((f"{root}.", f"{root}["))


@dataclass(frozen=True, slots=True)
class Marks:
    """The places of each path's key and value. The path of the root is "".

    place_of: returns the path in the text of a native path, for a text in another format. words:
    returns a message with the keys of that format.
    """

    keys: dict[str, Mark]
    values: dict[str, Mark]
    place_of: Callable[[str], str] = _itself
    words: Callable[[str], str] = _itself

    def below(self, path: str) -> Marks:
        """Return the marks of what is at `path`, as those of a text of its own."""
        keys, values = (
            {
                key[len(path) :].removeprefix("."): mark
                for key, mark in table.items()
                if _is_at(key, path)
            }
            for table in (self.keys, self.values)
        )
        return Marks(keys, values)

    def locate(self, warning: str) -> str:
        """Return a warning, which begins with a native path, with the keys of the text."""
        path, colon, message = warning.partition(": ")
        return f"{self.place_of(path)}{colon}{self.words(message)}"

    def nearest(self, path: str, *, at_key: bool = False) -> Mark:
        """Return the mark of `path`, or of the closest path above it that the text has."""
        exact = (self.keys if at_key else self.values).get(path)
        while exact is None and path:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
            exact = self.keys.get(path) or self.values.get(path)
        return exact or self.values.get("", Mark(1, 1))


@dataclass(frozen=True, slots=True)
class LocatedProblem:
    """One problem with its place; `str` gives the line for people."""

    mark: Mark
    path: str
    message: str

    def __str__(self) -> str:
        words = f"{self.path}: {self.message}" if self.path else self.message
        if self.mark == NOWHERE:
            return words
        override = self.mark.override
        if not override:
            return f"{self.mark.line}:{self.mark.column} {words}"
        # Do not repeat the path that the override itself spells out.
        if self.path == override.removeprefix("--set ").partition("=")[0].strip():
            words = self.message
        return f"{override}: {words}"


class SpecErrors(InvalidArgument):
    """The file cannot be run. Has all its problems, each with its place."""

    reason = "INVALID_FILE"

    def __init__(self, source: str, problems: Iterable[LocatedProblem]) -> None:
        self.source = source
        self.located = tuple(
            sorted(problems, key=lambda p: (p.mark.override != "", p.mark.line, p.mark.column))
        )
        super().__init__([Problem(p.path, p.message) for p in self.located])

    def __str__(self) -> str:
        if len(self.located) == 1 and self.located[0].mark == NOWHERE:
            return f"{self.source}: {self.located[0]}"
        lines = [f"{self.source}: {quantity(len(self.located), 'problem')}"]
        lines += [f"  {problem}" for problem in self.located]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PathProblem:
    path: str
    message: str
    at_key: bool = False


def at_key(path: str, message: str) -> PathProblem:
    """Return a problem whose place is the key, not its value."""
    return PathProblem(path, message, at_key=True)


class ProblemCollector:
    """Collects the problems of a file by path; `located` adds the lines."""

    def __init__(self) -> None:
        self.found: list[PathProblem] = []

    def add(self, path: str, message: str, *, at_key: bool = False) -> None:
        self.found.append(PathProblem(path, message, at_key))

    def within(self, path: str) -> bool:
        """Return whether there is a problem at or below `path`."""
        return any(_is_at(c.path, path) for c in self.found)

    def located(self, marks: Marks) -> list[LocatedProblem]:
        located = []
        for found in self.found:
            path = marks.place_of(found.path)
            mark = marks.nearest(path, at_key=found.at_key)
            located.append(LocatedProblem(mark, path, marks.words(found.message)))
        return located
