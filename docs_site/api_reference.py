"""The page "API reference": the service, messages and enums of the proto file
with their comments, as Markdown.

Reads the proto file as text: generated stubs have no comments. Knows the style of this file only
(one declaration a line, comments above it), and raises on any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PROTO = Path(__file__).resolve().parents[1] / "proto" / "suggest" / "v1" / "suggest.proto"
HEAD = """\
# API reference

The gRPC service `tuner.suggest.v1.SuggestService`, made from the comments of `proto/suggest/v1/suggest.proto`.
How to write a client, errors, limits and tokens: [The suggestion service](../api.md).
"""
_OPEN = re.compile(r"(service|message|enum|oneof) (\w+) \{(\})?$")
_RPC = re.compile(r"rpc (\w+)\((\w+)\) returns \(([\w.]+)\);$")
_FIELD = re.compile(r"(?:(optional|repeated) )?(map<\w+, [\w.]+>|[\w.]+) (\w+) = (\d+);$")
_CONSTANT = re.compile(r"(\w+) = (\d+);$")
_IGNORED = re.compile(r"(syntax|package|import|option) ")


@dataclass
class Declaration:
    kind: str  # service, message, enum, oneof, rpc, field, constant
    name: str
    comment: list[str]
    types: tuple[str, ...] = ()  # of an rpc: request, response; of a field: its label, its type
    number: int = 0
    members: list[Declaration] = field(default_factory=list)


def page() -> str:
    intro, declared = parse(PROTO.read_text(encoding="utf-8"))
    messages = {each.name: each for each in declared if each.kind != "service"}
    methods = [rpc for each in declared if each.kind == "service" for rpc in each.members]
    requests = {rpc.types[0] for rpc in methods}
    parts = [HEAD, "\n".join(intro), "\n## Methods\n"]
    for rpc in methods:
        parts.append(f"### {rpc.name}\n\n{_prose(rpc.comment)}\n")
        parts.append(f"Returns {_type(rpc.types[1], messages)}.\n")
        parts += _table(messages[rpc.types[0]], messages)
    parts.append("## Types\n")
    for each in messages.values():
        if each.name not in requests:
            parts.append(f"### {each.name}\n\n{_prose(each.comment)}\n")
            parts += _table(each, messages)
    return "\n".join(parts) + "\n"


def parse(text: str) -> tuple[list[str], list[Declaration]]:
    """The comment at the top, and what is declared below it."""
    root = Declaration("file", "", [])
    stack, comment = [root], []
    intro: list[str] = []
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if line.startswith("//"):
            comment.append(line.removeprefix("//").removeprefix(" "))
            continue
        if line.startswith("syntax "):
            intro = comment
        if line == "}":
            stack.pop()
        elif line and not _IGNORED.match(line):
            declared = _declaration(line, comment)
            if declared is None:
                raise ValueError(f"{PROTO.name}:{number}: not understood: {line}")
            stack[-1].members.append(declared)
            if line.endswith("{"):
                stack.append(declared)
        comment = []
    return intro, root.members


def _declaration(line: str, comment: list[str]) -> Declaration | None:
    if found := _OPEN.match(line):
        return Declaration(found[1], found[2], comment)
    if found := _RPC.match(line):
        return Declaration("rpc", found[1], comment, (found[2], found[3]))
    if found := _CONSTANT.match(line):
        return Declaration("constant", found[1], comment, number=int(found[2]))
    if found := _FIELD.match(line):
        return Declaration("field", found[3], comment, (found[1] or "", found[2]), int(found[4]))
    return None


def _table(declared: Declaration, messages: dict[str, Declaration]) -> Iterator[str]:
    rows = list(_rows(declared.members, messages))
    if rows:
        head = (
            "| value | number | meaning |"
            if declared.kind == "enum"
            else "| field | type | meaning |"
        )
        yield "\n".join([head, "| --- | --- | --- |", *rows]) + "\n"


def _rows(
    members: Sequence[Declaration], messages: dict[str, Declaration], of: str = ""
) -> Iterator[str]:
    for each in members:
        meaning = " ".join(each.comment)
        match each.kind:
            case "oneof":
                yield from _rows(each.members, messages, of=f"One of `{each.name}`.")
            case "constant":
                yield f"| `{each.name}` | {each.number} | {_cell(meaning)} |"
            case _:
                label, kind = each.types
                shown = f"{label} {_type(kind, messages)}".strip()
                yield (
                    f"| `{each.name}` = {each.number} | {shown} | "
                    f"{_cell(f'{of} {meaning}'.strip())} |"
                )


def _type(name: str, messages: dict[str, Declaration]) -> str:
    if found := re.match(r"map<(\w+), (\w+)>", name):
        return f"map of `{found[1]}` to {_type(found[2], messages)}"
    return f"[{name}](#{name.lower()})" if name in messages else f"`{name}`"


def _prose(comment: Sequence[str]) -> str:
    return " ".join(comment).replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
