"""Write an experiment's document as a file that people can read,
and that reads back as the same document.

It is used for revisions that tuner makes itself, for which no person wrote a file. It has no
comments, unlike starter.yaml, which `tuner init` writes: that file runs unchanged on any machine,
and people learn by changing it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from controller.spec.yaml_text import plain_scalar

WIDTH = 110
_PLAIN = re.compile(r"[A-Za-z_./][\w./-]*(?: [\w./-]+)*")
# Booleans to YAML 1.1 readers, unlike ours.
_YES_AND_NO = frozenset({"y", "n", "yes", "no", "on", "off"})


def starter() -> str:
    """Return the text of the starter file."""
    return Path(__file__).with_name("starter.yaml").read_text(encoding="utf-8")


def file_text(document: Mapping[str, object]) -> str:
    """Return the file of a canonical document.

    Choices are written as lists, as people write them.
    """
    # `native.FILE` describes its structure.
    spec: Any = document["spec"]
    if "parameters" in spec:  # else trials name them
        parameters = {name: _shorter(fields) for name, fields in spec["parameters"].items()}
        spec = {**spec, "parameters": parameters}
    return "\n".join(_lines({**document, "spec": spec}, "")) + "\n"


def _shorter(fields: dict[str, Any]) -> object:
    return fields["values"] if fields.keys() == {"type", "values"} else fields


def _lines(data: Mapping[str, object], indent: str) -> Iterator[str]:
    for key, value in data.items():
        head = f"{indent}{_scalar(key)}:"
        flow = _flow(value)
        if flow is not None and len(head) + len(flow) < WIDTH:
            yield f"{head} {flow}"
        elif isinstance(value, dict):
            yield head
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list):
            yield head
            for item in value:
                yield from _item(item, indent + "  ")
        elif isinstance(value, str):
            yield from _text(head, value, indent + "  ")
        else:
            yield f"{head} {_scalar(value)}"


def _item(item: object, indent: str) -> Iterator[str]:
    flow = _flow(item)
    if isinstance(item, dict) and item and (flow is None or len(indent) + len(flow) >= WIDTH):
        first, *others = _lines(item, indent + "  ")
        yield f"{indent}- {first.lstrip()}"
        yield from others
    elif flow is None and isinstance(item, str):
        yield from _text(f"{indent}-", item, indent + "  ")
    else:
        yield f"{indent}- {flow if flow is not None else _json(item)}"


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
    if isinstance(value, str) and _PLAIN.fullmatch(value) and plain_scalar(value) == value:
        return json.dumps(value) if value.lower() in _YES_AND_NO else value
    return _json(value)


def _json(value: object) -> str:
    """Return the value as JSON that is also YAML.

    Control characters such as DEL, which JSON allows, are escaped.
    """
    text = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)
