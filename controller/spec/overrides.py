"""Apply `--set PATH=VALUE`, which replaces a value of the file before the file is checked.

VALUE is YAML. null removes the key, except in an initial point, a condition or a belief, where null
is a value. This module works on plain data; the reader finds out whether the path is a key of the
file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from controller.phrases import quantity
from controller.spec.problems import LocatedProblem, Mark, Marks, SpecErrors
from controller.spec.yaml_text import Data, parse, plain_scalar

_INDEX = re.compile(r"\[([0-9]{1,6})\]")
_YAML = re.compile(r"[\n\[\]{}\"'#&*!|>%@`:]|^\s*[-?]\s")  # text that is more than a plain scalar
# Here null is a value of a parameter; elsewhere it removes the key.
_NULLABLE = re.compile(
    r"spec\.initial\[[0-9]+\]\.|spec\.parameters\..+\.when\.|spec\.prior\..+\.around$"
)
_PATH = re.compile(r'(?:"[^"]*"|[^=])*')  # up to the first = that is not in quotes
_QUOTED = re.compile(r'"([^"]+)"')


class _OverrideError(Exception):
    """The override cannot be applied; the message says why and what to write."""


def apply(data: Data, marks: Marks, override: str, *, position: int) -> None:
    """Apply `override` to `data` and `marks`. Problems with overrides are sorted by `position`.

    Raises:
        SpecErrors: The override is not PATH=VALUE, VALUE is not YAML, or PATH leads through a value
            that is neither a mapping nor a list.
    """
    mark = Mark(position, 0, f"--set {override}")
    until_equals = _PATH.match(override)
    # It matches every text.
    assert until_equals is not None
    path = until_equals[0].strip()
    equals, text = override[until_equals.end() :][:1], override[until_equals.end() + 1 :]
    if not equals or not path:
        raise _error(mark, path, "write PATH=VALUE, such as spec.budget.trials=10")
    value, under = _value(text, mark)
    try:
        _put(data, path, value, under, marks, mark)
    except _OverrideError as wrong:
        raise _error(mark, path, str(wrong)) from None


def _error(mark: Mark, path: str, message: str) -> SpecErrors:
    return SpecErrors("command line", [LocatedProblem(mark, path, message)])


def _value(text: str, mark: Mark) -> tuple[Data, Marks]:
    if not _YAML.search(text):
        # Avoids importing YAML in the common case.
        return plain_scalar(text.strip()), Marks({}, {})
    try:
        return parse(text, "")
    except SpecErrors as error:
        raise _error(mark, "", error.located[0].message) from None


def _put(data: Data, path: str, value: Data, under: Marks, marks: Marks, mark: Mark) -> None:
    """Set the value at the path, and create the mappings and lists on the way to it."""
    # Any: `_check_step` checks its type before each use.
    node: Any = data
    walked = ""
    steps = list(_steps(path, data))
    last = steps.pop()
    for step, following in pairwise([*steps, last]):
        _check_step(node, step, walked, more=False)
        below = _below(walked, step)
        if isinstance(node, dict) and node.get(step) is None:
            node[step] = [] if isinstance(following, int) else {}
            marks.keys[below] = marks.values[below] = mark
        node = node[step]
        walked = below
    _check_step(node, last, walked, more=True)
    walked = _below(walked, last)
    if isinstance(last, int):
        node[last : last + 1] = [value]
    elif value is None and not _NULLABLE.match(walked):
        node.pop(last, None)
    else:
        node[last] = value
    _mark_override(walked, under, marks, mark)


def _below(walked: str, step: str | int) -> str:
    if isinstance(step, int):
        return f"{walked}[{step}]"
    return f"{walked}.{step}" if walked else step


def _check_step(node: Data, step: str | int, walked: str, *, more: bool) -> None:
    """Raise _OverrideError if the node cannot have this key or index.

    more: the index may be that of one more element.
    """
    place = walked or "the file"
    if isinstance(step, str):
        if not isinstance(node, dict):
            raise _OverrideError(f"{place} is not a mapping, so it has no {step}")
        return
    if not isinstance(node, list):
        raise _OverrideError(f"{place} is not a list, so [{step}] is not a place in it")
    if step >= len(node) + more:
        hint = f"so the last one is [{len(node) - 1}]" if node else "so set the whole list"
        raise _OverrideError(f"{walked} has {quantity(len(node), 'element')}, {hint}")


def _mark_override(path: str, under: Marks, marks: Marks, mark: Mark) -> None:
    """Give the value at a path, and what is below it, the mark of the override."""
    below_path = (f"{path}.", f"{path}[")
    for table, new in ((marks.keys, under.keys), (marks.values, under.values)):
        for key in list(table):
            if key == path or key.startswith(below_path):
                del table[key]
        for below in new:
            dot = "" if not below or below.startswith("[") else "."
            table[f"{path}{dot}{below}"] = mark
        table[path] = mark


def _steps(path: str, data: Data) -> Iterator[str | int]:
    """Yield the keys and indices of a path.

    A key with a dot is recognized if it exists or is in double quotes.
    """
    remaining, node = path, data
    while remaining:
        if index := _INDEX.match(remaining):
            step: str | int = int(index[1])
            remaining = remaining[index.end() :]
        elif quoted := _QUOTED.match(remaining):
            step, remaining = quoted[1], remaining[quoted.end() :]
        else:
            step = _key(remaining, node)
            remaining = remaining[len(step) :]
        if step == "" or remaining == "." or (remaining and remaining[0] not in ".["):
            raise _OverrideError("write a path such as spec.trial.command[2]")
        yield step
        remaining = remaining[1:] if remaining.startswith(".") else remaining
        if isinstance(node, dict) and isinstance(step, str):
            node = node.get(step)
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            node = node[step]
        else:
            node = None


def _key(remaining: str, node: Data) -> str:
    if isinstance(node, dict):
        candidates = [
            key
            for key in node
            if key
            and remaining.startswith(key)
            and remaining[len(key) : len(key) + 1] in ("", ".", "[")
        ]
        if candidates:
            return max(candidates, key=len)
    return re.split(r"[.\[]", remaining, maxsplit=1)[0]
