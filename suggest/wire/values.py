"""Parts of messages: typed values, enums, labels and times; and the collection of problems."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from suggest.domain import MAX_JSON_DEPTH, MAX_JSON_LENGTH, compact_json, json_problem
from suggest.errors import InvalidArgument, Problem
from suggest.space import Assignment, Value
from suggest.v1 import suggest_pb2 as pb

Problems = list[Problem]
E = TypeVar("E")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS = re.compile(r"[\[\]{}]")


def raise_if(problems: Problems) -> None:
    if problems:
        raise InvalidArgument(problems)


def read_value(message: pb.Value, path: str, problems: Problems) -> Value:
    match message.WhichOneof("kind"):
        case "string_value":
            return message.string_value
        case "int_value":
            return message.int_value
        case "double_value":
            return message.double_value
        case "bool_value":
            return message.bool_value
        case "json_value":
            return _read_json(message.json_value, path, problems)
    kinds = "string_value, int_value, double_value, bool_value, json_value"
    problems.append(Problem(path, f"holds no value; set one of {kinds}"))
    return ""


def _read_json(text: str, path: str, problems: Problems) -> Value:
    """Parse null, a list or an object. The text is untrusted, so its depth is checked before it is parsed."""
    if len(text) > MAX_JSON_LENGTH:
        problem = f"it has {len(text)} characters; use at most {MAX_JSON_LENGTH}"
    elif _depth(text) > MAX_JSON_DEPTH:
        problem = f"it is nested more than {MAX_JSON_DEPTH} levels deep; use a flatter value"
    else:
        try:
            value: Value = json.loads(text, object_pairs_hook=_object)
        except ValueError as error:
            problem = str(error)
        else:
            if value is not None and not isinstance(value, list | dict):
                problem = "expected null, a list or an object; the other kinds have fields of their own"
            else:
                problem = json_problem(value)
    if not problem:
        return value
    problems.append(Problem(path, f"json_value is not taken: {problem}"))
    return ""


def _depth(text: str) -> int:
    """Return the depth of brackets outside of quotes, an upper bound of the depth of the parser."""
    deepest = depth = 0
    for bracket in _BRACKETS.findall(_QUOTED.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _object(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has a key twice; keep one of the two")
    return members


def write_value(value: Value, path: str = "") -> pb.Value:
    """Write a value. Raises InvalidArgument, and TypeError for a value that is not JSON."""
    match value:
        case bool():
            return pb.Value(bool_value=value)
        case int():
            if not -(2**63) <= value < 2**63:
                raise InvalidArgument([Problem(path, f"{value} does not fit into 64 bits")])
            return pb.Value(int_value=value)
        case float():
            return pb.Value(double_value=value)
        case str():
            return pb.Value(string_value=value)
    if value is not None and not isinstance(value, list | dict):
        expected = "text, a number, a boolean, None, or a list or dict of these"
        raise TypeError(f"{path or 'value'}: expected {expected}, got {value!r} ({type(value).__name__})")
    if problem := json_problem(value):
        raise InvalidArgument([Problem(path, problem)])
    return pb.Value(json_value=compact_json(value))


def read_values(messages: Mapping[str, pb.Value], path: str, problems: Problems) -> dict[str, Value]:
    return {key: read_value(messages[key], f"{path}.{key}", problems) for key in sorted(messages)}


def write_values(values: Assignment, into: MutableMapping[str, pb.Value]) -> None:
    """Fill `into` in place, because a protobuf map of messages cannot be assigned."""
    for key, value in values.items():
        into[key].CopyFrom(write_value(value, key))


def read_enum(number: int, members: Mapping[int, E], path: str, problems: Problems, *, default: E | None = None) -> E:
    if number in members:
        return members[number]
    fallback = next(iter(members.values())) if default is None else default
    if number != 0:
        problems.append(Problem(path, f"{number} is not a value of this enum that the server knows"))
    elif default is None:
        problems.append(Problem(path, "is not set"))
    return fallback


def read_labels(labels: Mapping[str, str], path: str, problems: Problems) -> dict[str, str]:
    if len(labels) > 64:
        problems.append(Problem(path, f"{len(labels)} labels; at most 64"))
    for key, value in labels.items():
        if not 0 < len(key) <= 128 or len(value) > 1024:
            problems.append(
                Problem(f"{path}.{key[:40]}", "a label's key has 1 to 128 characters, its value at most 1024")
            )
    return dict(labels)


def write_time(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    # A long list has many times, and Timestamp's own conversions take twice as long.
    seconds, microseconds = divmod((moment - _EPOCH) // _MICROSECOND, 1_000_000)
    return Timestamp(seconds=seconds, nanos=microseconds * 1000)


def read_time(stamp: Timestamp) -> datetime:
    return _EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)


def write_duration(seconds: float | None) -> Duration | None:
    if seconds is None:
        return None
    whole, nanoseconds = divmod(round(seconds * 1e9), 10**9)
    return Duration(seconds=whole, nanos=nanoseconds)


def read_duration(duration: Duration) -> float | None:
    """Return the seconds, None if the duration is absent or 0."""
    return duration.seconds + duration.nanos / 1e9 or None
