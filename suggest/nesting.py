"""How deep a document from outside may be nested, checked before it is parsed.

Parsers recurse: a megabyte of `[` overflows the stack of libyaml's composer, which ends the
process, and raises RecursionError in Python's json. Each use of an alias counts, because a few
lines of aliases can expand to billions of values. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 64
MAX_NODES = 50_000  # with aliases expanded

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


class TooNested(ValueError):
    """`line` counts from 1; 0 if it is unknown."""

    def __init__(self, message: str, *, line: int = 0) -> None:
        self.line = line
        super().__init__(message)


def check_yaml(content: str | bytes) -> None:
    """Check a YAML document by its events, which takes no recursion.

    Raises TooNested, yaml.YAMLError.
    """
    import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

    sizes: dict[str, int] = {}  # by anchor
    # collections: their anchors, and how many nodes came before them
    open_: list[tuple[str | None, int]] = []
    nodes = 0
    for event in _events(content):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            if anchor:
                sizes[anchor] = nodes - before
        elif isinstance(event, yaml.NodeEvent):
            before = nodes
            nodes += sizes.get(event.anchor, 1) if isinstance(event, yaml.AliasEvent) else 1
            if isinstance(event, yaml.CollectionStartEvent):
                open_.append((event.anchor, before))
            elif event.anchor and not isinstance(event, yaml.AliasEvent):
                sizes[event.anchor] = 1
            line = event.start_mark.line + 1
            if len(open_) > MAX_DEPTH:
                raise TooNested(f"nested more than {MAX_DEPTH} levels deep", line=line)
            if nodes > MAX_NODES:
                raise TooNested(
                    f"more than {MAX_NODES:,} values once every alias is written out", line=line
                )


def _events(content: str | bytes) -> Iterator[Any]:
    import yaml

    try:
        yield from yaml.parse(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        if is_too_deep(error):
            line = error.problem_mark.line + 1
            raise TooNested(f"nested more than {MAX_DEPTH} levels deep", line=line) from error
        raise


def is_too_deep(error: Exception) -> bool:
    """Return whether an error is the limit of PyYAML itself: 1,000 levels, since 6.0.4.

    Its scanner meets it before it yields the events by which ours is counted.
    """
    return getattr(error, "problem", None) == "exceeded maximum nesting depth"


def load_json(text: str | bytes) -> Any:
    """Parse JSON as json.loads does.

    Raises ValueError: it is not JSON, or nested too deep (TooNested).
    """
    if isinstance(text, bytes):
        text = text.decode(errors="surrogateescape")
    if text.count("[") + text.count("{") > MAX_DEPTH and is_nested_deeper(text, MAX_DEPTH):
        raise TooNested(f"nested more than {MAX_DEPTH} levels deep")
    return json.loads(text)


def is_nested_deeper(text: str, levels: int) -> bool:
    """Return whether brackets outside of strings are nested deeper than this.

    Reads no further than necessary.
    """
    depth = 0
    for token in _JSON_TOKEN.finditer(text):
        first = text[token.start()]
        if first in "[{":
            depth += 1
            if depth > levels:
                return True
        elif first in "]}":
            depth -= 1
    return False
