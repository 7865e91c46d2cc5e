"""Write plain data as YAML that people can read, and an experiment's document as a file that
reads back as the same document.

The file is used for revisions that tuner makes itself, for which no person wrote one. It has no
comments, unlike starter.yaml, which `tuner init` writes: that file runs unchanged on any machine,
and people learn by changing it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

WIDTH = 110
_PLAIN = re.compile(r"(?:[A-Za-z_]|\.{0,2}/)[\w./-]*(?: [\w./-]+)*")
_WORDS = re.compile(r"y|n|yes|no|on|off|true|false|null|nan|inf", re.IGNORECASE)


def starter() -> str:
    """Return the text of the starter file."""
    return Path(__file__).with_name("starter.yaml").read_text(encoding="utf-8")


def file_text(document: Mapping[str, object]) -> str:
    """Return the file of a canonical document, with choices as lists, as people write them."""
    # `native.FILE` describes its structure.
    spec: Any = document["spec"]
    if "parameters" in spec:  # else trials name them
        parameters = {name: _shorter(fields) for name, fields in spec["parameters"].items()}
        spec = {**spec, "parameters": parameters}
    return as_yaml({**document, "spec": spec})


def _shorter(fields: dict[str, Any]) -> object:
    return fields["values"] if fields.keys() == {"type", "values"} else fields


def as_yaml(data: object) -> str:
    """Return plain data as YAML, with what is short on one line.

    Readers of YAML 1.1 and 1.2 get the same data: every string that one of them could take for
    another type is quoted, and every number is one for both.
    """
    return "".join(f"{line}\n" for line in _lines(data, ""))


def _lines(data: object, indent: str) -> Iterator[str]:
    match data:
        case dict() if data:
            for key, value in data.items():
                yield from _entry(f"{indent}{_scalar(key)}:", value, indent + "  ")
        case list() if data:
            for item in data:
                yield from _item(item, indent)
        case _:
            yield f"{indent}{_scalar(data)}"


def _entry(head: str, value: object, indent: str) -> Iterator[str]:
    if (flow := _short_flow(value, head)) is not None:
        yield f"{head} {flow}"
    elif isinstance(value, dict | list) and value:
        yield head
        yield from _lines(value, indent)
    elif isinstance(value, str):
        yield from _text(head, value, indent)
    else:
        yield f"{head} {_scalar(value)}"


def _item(item: object, indent: str) -> Iterator[str]:
    if isinstance(item, dict | list) and item and _short_flow(item, f"{indent}-") is None:
        first, *others = _lines(item, indent + "  ")
        yield f"{indent}- {first.lstrip()}"
        yield from others
    else:
        yield from _entry(f"{indent}-", item, indent + "  ")


def _text(head: str, text: str, indent: str) -> Iterator[str]:
    """Write a text of several lines, as a block where YAML allows that."""
    body = text.removesuffix("\n")
    lines = body.split("\n")
    is_block = body.strip() and all(line == line.rstrip() and line.isprintable() for line in lines)
    if not is_block or body.startswith((" ", "\n")) or body.endswith("\n"):
        yield f"{head} {_json(text)}"
        return
    sign = "|" if text.endswith("\n") else "|-"
    yield f"{head} {sign}"
    for line in lines:
        yield f"{indent}{line}" if line else ""


def _short_flow(value: object, before: str) -> str | None:
    """Return the value on one line; None if it does not fit behind the text before it."""
    flow = _flow(value)
    fits = flow is not None and len(before) + len(flow) < WIDTH
    return flow if fits else None


def _flow(value: object) -> str | None:
    """Return the value on one line; None if it needs several."""
    match value:
        case dict():
            items = {_scalar(key): _flow(item) for key, item in value.items()}
            nested = any(isinstance(item, dict) and item for item in value.values())
            if nested or None in items.values():
                return None
            pairs = ", ".join(f"{key}: {item}" for key, item in items.items())
            return f"{{{pairs}}}"
        case list():
            texts = [_flow(item) for item in value]
            if None in texts:
                return None
            return f"[{', '.join(map(str, texts))}]"
        case str() if "\n" in value:
            return None
    return _scalar(value)


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not _WORDS.fullmatch(value):
        return value
    # YAML 1.1 takes 1e-05 for a string.
    is_float = isinstance(value, float)
    return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value)) if is_float else _json(value)


def _json(value: object) -> str:
    """Return the value as JSON that is also YAML.

    Control characters such as DEL, which JSON allows, are escaped.
    """
    text = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)
