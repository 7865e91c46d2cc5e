"""Parse YAML text into plain data and the places of its keys and values.

Knows nothing about experiments.

Only the parser of PyYAML is used (libyaml's if the wheel has it), because it
imports and parses several times faster than a pure Python reader, which matters
in every `tuner run`. This module interprets scalars by YAML 1.2's core schema:
`no` is a string, `1e-4` a number, `1_000` a string. The text is not trusted:
the limits below bound the recursion, the expansion of aliases and the time.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from controller.phrases import command
from controller.spec.problems import LocatedProblem, Mark, Marks, SpecErrors
from suggest.nesting import MAX_DEPTH, MAX_NODES, is_too_deep

MAX_BYTES = 1_000_000
MAX_NUMBER_LENGTH = 300
MAX_DOCUMENTS = 100

Data: TypeAlias = "str | int | float | bool | list[Data] | dict[str, Data] | None"

_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# JSON escapes a character beyond U+FFFF as a surrogate pair, which YAML does not know.
_SURROGATES = re.compile(
    r"(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_WORDS: dict[str, Data] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
}


@dataclass(slots=True)
class _Node:
    mark: Mark
    value: Data = None  # if it is a scalar
    text: str = ""
    items: list[_Node] | None = None
    entries: list[tuple[_Node, _Node]] | None = None
    size: int = 1
    depth: int = 1
    open: bool = False
    # The key of a mapping whose value is read next.
    key: _Node | None = field(default=None, repr=False)


class _Refused(Exception):
    def __init__(self, mark: Mark, message: str) -> None:
        self.located = LocatedProblem(mark, "", message)


def plain_scalar(text: str) -> Data:
    """Return the value of an unquoted scalar in YAML 1.2's core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > MAX_NUMBER_LENGTH:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _OCTAL.fullmatch(text):
        return int(text, 8)
    return int(text, 16) if _HEX.fullmatch(text) else text


def parse(text: str, source: str) -> tuple[Data, Marks]:
    """Return the data of the single document in `text`, and the place of each path.

    Raises:
        SpecErrors: The text is not one well-formed document within the limits, repeats a key, or
            has a tag.
    """
    (data, marks), *others = parse_documents(text, source)
    if others:
        raise SpecErrors(source, [second_document(others[0][1])])
    return data, marks


def second_document(marks: Marks) -> LocatedProblem:
    return LocatedProblem(
        marks.values[""], "", "a second document begins here; one file holds one experiment"
    )


def parse_documents(text: str, source: str) -> list[tuple[Data, Marks]]:
    """Return the data of each document in `text`, at least one, and the place of each path in it.

    Raises:
        SpecErrors: The text is not well-formed or beyond the limits, repeats a key, or has a tag.
    """
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_BYTES:
        raise SpecErrors(source, [LocatedProblem(Mark(1, 1), "", too_large(len(text)))])
    try:
        roots = _compose(_without_surrogates(text))
    except _Refused as refused:
        raise SpecErrors(source, [_as_template(refused.located, text)]) from None
    if not roots:
        cure = f"{command('init', '-')} prints one to start from"
        raise SpecErrors(source, [LocatedProblem(Mark(1, 1), "", f"the file is empty; {cure}")])
    twice: list[LocatedProblem] = []
    documents: list[tuple[Data, Marks]] = []
    for begin, root in roots:
        marks = Marks({}, {})
        data = _flatten(root, "", marks, twice)
        marks.values[""] = begin
        documents.append((data, marks))
    if twice:
        raise SpecErrors(source, twice)
    return documents


def too_large(size: int) -> str:
    return (
        f"{size / 1e6:.1f} MB is too large for an experiment; at most {MAX_BYTES / 1e6:.0f} MB "
        "is read"
    )


def _without_surrogates(text: str) -> str:
    """Return a text in JSON with characters instead of surrogate pairs; others unchanged."""
    if not _SURROGATES.search(text):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _SURROGATES.sub(lambda found: found[1] + json.loads(f'"{found[2]}"'), text)


def _mark(event: Any) -> Mark:  # PyYAML has no types
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


def _compose(text: str) -> list[tuple[Mark, _Node]]:
    """Build a tree of nodes and its start mark for each non-empty document, without recursion.

    An alias is the same node object as its anchor.
    """
    import yaml  # type: ignore[import-untyped]  # lazy: a spec from the database needs no YAML

    roots: list[tuple[Mark, _Node]] = []
    begin = Mark(1, 1)
    stack: list[_Node] = []
    anchors: dict[str, _Node] = {}
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            match event:
                case yaml.DocumentStartEvent():
                    begin = _mark(event) if roots else Mark(1, 1)
                    anchors = {}
                    if len(roots) == MAX_DOCUMENTS:
                        raise _Refused(
                            begin, f"more than {MAX_DOCUMENTS} documents; write fewer into one file"
                        )
                    continue
                case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                    done = stack.pop()
                    done.open = False
                    if stack:
                        _grow(stack[-1], done)
                    continue
                case yaml.AliasEvent():
                    node = _aliased(event, anchors)
                    if stack:
                        _grow(stack[-1], node)
                case yaml.ScalarEvent():
                    node = _scalar(event)
                    if stack:
                        _grow(stack[-1], node)
                case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                    if event.tag not in (None, "!"):
                        raise _Refused(_mark(event), f"unsupported tag {event.tag}; remove it")
                    if len(stack) >= MAX_DEPTH:
                        raise _Refused(_mark(event), f"nested more than {MAX_DEPTH} levels deep")
                    node = _Node(_mark(event), open=True)
                    if isinstance(event, yaml.MappingStartEvent):
                        node.entries = []
                    else:
                        node.items = []
                case _:
                    continue
            if getattr(event, "anchor", None) and not isinstance(event, yaml.AliasEvent):
                anchors[event.anchor] = node
            if stack:
                _attach(stack[-1], node, event)
            elif node.items is not None or node.entries is not None or node.value is not None:
                roots.append((begin, node))
            if isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
                stack.append(node)
    except yaml.MarkedYAMLError as error:
        if is_too_deep(error):
            # What precedes it is beyond our limit, and is refused at its place.
            return _compose(text[: error.problem_mark.index])
        raise _syntax(error, text) from error
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        # UnicodeEncodeError: a character that YAML forbids.
        raise _unprintable(text, error) from error
    return roots


def _grow(parent: _Node, child: _Node) -> None:
    """Add the size of a complete child to its parent, once for every reference to it."""
    parent.size += child.size
    parent.depth = max(parent.depth, child.depth + 1)
    if parent.size > MAX_NODES:
        raise _Refused(
            parent.mark, f"more than {MAX_NODES} values once every alias is written out; write less"
        )
    if parent.depth > MAX_DEPTH:
        raise _Refused(parent.mark, f"nested more than {MAX_DEPTH} levels deep")


def _aliased(event: Any, anchors: dict[str, _Node]) -> _Node:
    node = anchors.get(event.anchor)
    if node is None:
        raise _Refused(
            _mark(event),
            f"unknown alias *{event.anchor}; no anchor &{event.anchor} comes before it",
        )
    if node.open:
        raise _Refused(
            _mark(event), f"alias *{event.anchor} is inside its own anchor &{event.anchor}"
        )
    return node


def _scalar(event: Any) -> _Node:
    if event.tag not in (None, "!", "tag:yaml.org,2002:str"):
        raise _Refused(_mark(event), f"unsupported tag {event.tag}; remove it")
    # Possible in double quotes, but no argument of a program can contain it.
    if "\0" in event.value:
        raise _Refused(_mark(event), "the character '\\x00' is not allowed in a value")
    plain = event.style in (None, "") and event.tag is None
    return _Node(
        _mark(event), value=plain_scalar(event.value) if plain else event.value, text=event.value
    )


def _attach(parent: _Node, node: _Node, event: object) -> None:
    if parent.items is not None:
        parent.items.append(node)
    elif parent.key is None:
        if node.items is not None or node.entries is not None:
            raise _Refused(
                _mark(event),
                "a key must be a plain word; put quotes around text that has { or [ in it",
            )
        parent.key = node
    else:
        assert parent.entries is not None
        parent.entries.append((parent.key, node))
        parent.key = None


def _syntax(error: Any, text: str) -> _Refused:
    at = error.problem_mark or error.context_mark
    mark = Mark(at.line + 1, at.column + 1) if at else Mark(1, 1)
    lines = text.splitlines()
    line = lines[mark.line - 1] if mark.line <= len(lines) else ""
    message = f"not YAML: {error.problem or error}"
    if error.context:
        message += f" {error.context}"
    if "\t" in line[: mark.column + 1]:
        message += "; indent with spaces, YAML takes no tabs there"
    elif "${" in line:
        message += '; put quotes around what contains ${…}: "--lr=${lr}"'
    return _Refused(mark, message)


def _as_template(refused: LocatedProblem, text: str) -> LocatedProblem:
    """Return what to do where the text is no YAML because a program has yet to fill it in."""
    line = text.splitlines()[refused.mark.line - 1 : refused.mark.line]
    if not any("{{" in each for each in line):
        return refused
    cure = "let Helm, or the program that it is for, write the file first: helm template CHART"
    return replace(refused, message=f"{{{{ … }}}} is of a template; {cure}")


def _unprintable(text: str, error: Exception) -> _Refused:
    bad = next(
        (
            i
            for i, c in enumerate(text)
            if (c < " " and c not in "\t\n\r") or "\ud800" <= c <= "\udfff"
        ),
        None,
    )
    if bad is None:
        return _Refused(Mark(1, 1), f"not YAML: {error}")
    line = text.count("\n", 0, bad) + 1
    return _Refused(
        Mark(line, bad - text.rfind("\n", 0, bad)),
        f"the character {text[bad]!r} is not allowed in YAML",
    )


def _flatten(node: _Node, path: str, marks: Marks, twice: list[LocatedProblem]) -> Data:
    """Expand aliases into plain data. `_grow` has bounded the depth and the size."""
    marks.values.setdefault(path, node.mark)
    if node.items is not None:
        return [_flatten(item, f"{path}[{i}]", marks, twice) for i, item in enumerate(node.items)]
    if node.entries is None:
        return node.value
    result: dict[str, Data] = {}
    for key, value in node.entries:
        below = f"{path}.{key.text}" if path else key.text
        if key.text in result:
            first = marks.keys[below]
            message = f"this key is already in line {first.line}; keep one of the two"
            twice.append(LocatedProblem(key.mark, below, message))
            continue
        marks.keys[below] = key.mark
        result[key.text] = _flatten(value, below, marks, twice)
    return result
