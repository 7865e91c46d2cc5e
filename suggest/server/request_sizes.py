"""Limits on the size of requests, checked first, because even validating
an oversized request takes long.

Only lengths are checked, those of lists before those of their items. Limits on the items of one RPC
are in `suggest.server.rpcs`, those that depend on a namespace in `suggest.server.limits_file`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from suggest.domain import MAX_CHOICES
from suggest.errors import Problem, Problems, raise_if

MAX_PARAMETERS = 1000  # of a study, and of a point
MAX_CONDITIONS = 32  # of a parameter
MAX_VALUES = 50_000  # of all choices and conditions of a study together
MAX_SETTINGS = 100
MAX_LABELS = 64
MAX_MEASUREMENTS = 10_000
MAX_LEASES = 1000
MAX_TEXT = 10_000  # characters of a text without a specific limit
_MAX_OTHERS = 10_000

_MOST = {
    "parameters": MAX_PARAMETERS,
    "conditions": MAX_CONDITIONS,
    "objectives": 100,
    "values": MAX_CHOICES,
    "settings": MAX_SETTINGS,
    "labels": MAX_LABELS,
    "measurements": MAX_MEASUREMENTS,
    "leases": MAX_LEASES,
    "states": 100,
    "paths": 100,
    "metric_logs": 100_000,
}
# Messages whose only fields of variable size are texts, which the code that reads them checks.
_PLAIN = ("Measurement", "Timestamp", "Duration", "TrialLease", "MetricLog")
# Katib's; the code that parses their contents checks the sizes
_FRAMES = ("SuggestionsFrame", "StoppingFrame")


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of a choice or a condition.

    Millions fit into one request, so count them before checking each.
    """

    path: str
    held: Any


def check(request: Any) -> None:
    """Check the sizes in `request`, which may be any message.

    Raises InvalidArgument with the fields.
    """
    if request.DESCRIPTOR.name in _FRAMES:
        return
    problems = Problems()
    values: list[_Values] = []
    measured = _look(request, "", problems, values)
    if measured > MAX_MEASUREMENTS:
        problems.add("trials", f"{measured} measurements at once; at most {MAX_MEASUREMENTS:,}")
    for sized in values if not problems else ():
        for index, value in enumerate(sized.held):
            _look(value, f"{sized.path}[{index}].", problems, [])
    if request.DESCRIPTOR.name == "CreateStudyRequest":
        # Paths are relative to the study, as in all other messages.
        raise_if([Problem(p.path.removeprefix("study."), p.message) for p in problems])
    raise_if(problems)


def _look(message: Any, path: str, problems: Problems, values: list[_Values]) -> int:
    """Check a message and return the number of measurements in lists of allowed length.

    Append to `values`.
    """
    measured, before = 0, len(values)
    for name, limit, inside in _plan(message.DESCRIPTOR):
        content = getattr(message, name)
        if limit:
            count = len(content)
            if not count:
                continue
            if count > limit:
                problems.add(path + name, f"{count:,} at once; at most {limit:,}")
                continue
            if name == "measurements":
                measured += count
            if name == "values" and inside:
                values.append(_Values(path + name, content))
            elif inside:
                if hasattr(content, "items"):
                    places = [(f".{key[:80]}", item) for key, item in content.items()]
                else:
                    places = [(f"[{index}]", item) for index, item in enumerate(content)]
                for place, item in places:
                    measured += _look(item, f"{path}{name}{place}.", problems, values)
        elif isinstance(content, str):
            if len(content) > MAX_TEXT:
                problems.add(path + name, f"{len(content):,} characters; at most {MAX_TEXT:,}")
        elif message.HasField(name):
            measured += _look(content, f"{path}{name}.", problems, values)
    if "parameters" in message.DESCRIPTOR.fields_by_name:
        together = sum(len(value.held) for value in values[before:])
        if together > MAX_VALUES:
            problems.add(
                f"{path}parameters",
                f"{together:,} values of choices and conditions together; at most {MAX_VALUES:,}",
            )
            del values[before:]
    return measured


@functools.cache
def _plan(descriptor: Descriptor) -> list[tuple[str, int, bool]]:
    """Return what to check of a message.

    An entry is (field, most items or 0 for a single value, whether to check inside).
    """
    return [step for field in descriptor.fields if (step := _step(field))]


def _step(field: FieldDescriptor) -> tuple[str, int, bool] | None:
    of: Descriptor | None = field.message_type
    if of is not None and of.GetOptions().map_entry:
        of = of.fields_by_name["value"].message_type
    inside = of is not None and of.name not in _PLAIN
    if field.is_repeated:
        return field.name, _MOST.get(field.name, _MAX_OTHERS), inside
    if inside or field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return field.name, 0, inside
    return None
