"""What a request is about, read off its names without judging them: its study, its namespace.

For whoever stands before the methods. A request that names nothing, or garbage, is about nothing: the method says so.
"""

from __future__ import annotations

from typing import Any

_READING = ("Get", "List", "Validate")


def writes(method: str) -> bool:
    """Whether a method (`/package.Service/Name`) may change a study: whatever is not known to read."""
    return not method.rpartition("/")[2].startswith(_READING)


def study_of(request: Any) -> str:  # any message
    """`namespaces/{namespace}/studies/{study}`, or "" """
    segments = _name(request).split("/", 4)[:4]
    return "/".join(segments) if len(segments) == 4 and segments[::2] == ["namespaces", "studies"] else ""


def namespace_of(request: Any) -> str:
    """The bare namespace, or "" """
    segments = _name(request).split("/", 2)
    return segments[1] if len(segments) > 1 and segments[0] == "namespaces" else ""


def _name(request: Any) -> str:
    """Every request has the name of its resource in `parent` or `name`, or in the `name` of the resource that it is."""
    for holder in (request, getattr(request, "study", None), getattr(request, "trial", None)):
        for field in ("parent", "name"):
            name = getattr(holder, field, "")
            if name and isinstance(name, str):
                return name
    return ""
