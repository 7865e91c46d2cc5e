"""Plain data as text: the JSON and YAML of `-o`, and manifests for `kubectl create -f -`. Pure.

Readers of YAML 1.1 and 1.2 get the same data: every string that one of them could take for another
type is quoted, and every number is one for both.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain

from controller.report.formatting import json_number

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*")
_WORDS = re.compile(r"y|n|yes|no|on|off|true|false|null|nan|inf", re.IGNORECASE)


def data_text(data: object, form: str) -> str:
    """Return plain data in the format of `-o json` or `-o yaml`.

    It has no bare NaN, because `json_number` has replaced it by a word.
    """
    if form == "yaml":
        return "".join(f"{line}\n" for line in _lines(data))
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def yaml_documents(objects: Sequence[Mapping[str, object]]) -> str:
    lines: list[str] = []
    for obj in objects:
        lines += ["---", *_lines(obj)]
    return "".join(f"{line}\n" for line in lines)


def _lines(data: object) -> list[str]:
    match data:
        case dict() if data:
            entries = (_entry(f"{_text(str(key))}:", value, "  ") for key, value in data.items())
            return list(chain.from_iterable(entries))
        case list() if data:
            return list(chain.from_iterable(map(_item, data)))
    return [_scalar(data)]


def _entry(key: str, value: object, indent: str) -> list[str]:
    match value:
        case dict() if value:
            return [key, *(indent + line for line in _lines(value))]
        case list() if value:
            return [key, *_lines(value)]
        case str() if body := _block(value):
            sign = "|" if value.endswith("\n") else "|-"
            return [f"{key} {sign}", *(f"{indent}{line}" for line in body)]
    return [f"{key} {_scalar(value)}"]


def _item(value: object) -> list[str]:
    match value:
        case str() if _block(value):
            return _entry("-", value, "  ")
    first, *rest = _lines(value)
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _block(text: str) -> list[str]:
    """Return the text's lines if it has several and a block keeps them unchanged.

    Otherwise an empty list.
    """
    body = text.removesuffix("\n").split("\n")
    is_literal = all(
        line and line[:1].strip() and line[-1:].strip() and line.isprintable() for line in body
    )
    return body if is_literal and len(body) > 1 else []


def _scalar(value: object) -> str:
    match value:
        case str():
            return _text(value)
        case float() if math.isfinite(value):
            # YAML 1.1 takes 1e-05 for a string.
            return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))
        case float():
            value = json_number(value)
    return json.dumps(value, ensure_ascii=False)


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and not _WORDS.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
