"""Hypothesis strategies for invalid requests, derived from the service's descriptor, so that all
methods are covered.

There are three kinds: any message of the right type, a valid one with a corrupted field, and bytes.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from suggest import wire
from suggest.v1 import suggest_pb2 as pb
from tests.service.running import SPEC

SERVICE = pb.DESCRIPTOR.services_by_name["SuggestService"]
METHODS = sorted(SERVICE.methods_by_name)
STUDIES = [f"namespaces/default/studies/{name}" for name in ("random", "grid", "tpe", "fresh")]
_DEEPEST = 6

_SENSIBLE = [
    *STUDIES,
    *(f"{study}/trials/{number}" for study in STUDIES[:3] for number in (0, 1, 2, 7)),
    f"{STUDIES[0]}/trials/-",
    "namespaces/default",
    "namespaces/-",
    "fresh",
    "random",
    "grid",
    "tpe",
    "median",
    "score",
    "x",
    "layers",
    "kind",
    "a",
    "b",
    "request",
    "client",
    "labels",
    "spec.pruning",
    "warmupSteps",
    "startupTrials",
]
_STRINGS = st.one_of(
    st.sampled_from(_SENSIBLE),
    st.sampled_from(
        [
            "",
            "\0",
            "a\0b",
            "-",
            "…",
            "é" * 300,
            "x" * 5000,
            "🂡",
            "'; DROP TABLE trials; --",
            "1.5",
            "../..",
        ]
    ),
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(
        [base64.urlsafe_b64encode(t.encode()).decode() for t in ("3", "-1", STUDIES[0], "9" * 40)]
    ),
)
_WHOLE = st.one_of(st.integers(-2, 12), st.sampled_from([1000, 1001, 10**6, 2**31 - 1, -(2**31)]))
_LONG = st.one_of(_WHOLE, st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, -(2**63)]))
_REAL = st.one_of(
    st.sampled_from(
        [0.0, -0.0, 1.0, -1.5, math.nan, math.inf, -math.inf, 5e-324, 1.7e308, -1.7e308, 1e-9]
    ),
    st.floats(),
)
_SCALARS = {
    FieldDescriptor.CPPTYPE_STRING: _STRINGS,
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_INT32: _WHOLE,
    FieldDescriptor.CPPTYPE_ENUM: st.one_of(
        st.integers(0, 8), st.sampled_from([-1, 99, 2**31 - 1])
    ),
    FieldDescriptor.CPPTYPE_INT64: _LONG,
    FieldDescriptor.CPPTYPE_DOUBLE: _REAL,
}


_NAMES = [
    *STUDIES[:3],
    *(f"{study}/trials/{number}" for study in STUDIES[:3] for number in range(4)),
]
# Values by field name. Most of them are valid, because otherwise only the first check of each
# method would be reached.
_LIKELY = {
    name: st.one_of(st.sampled_from(right), st.sampled_from(right), _STRINGS)
    for name, right in {
        "parent": [*_NAMES, "namespaces/default"],
        "name": [*_NAMES, "random", "tpe", "median", "x", "kind"],
        "request_id": [f"request-{number}" for number in range(40)],
        "client_id": ["client", "other"],
        "metric": ["score"],
        "paths": ["labels", "spec.pruning"],
        "page_token": [""],
    }.items()
}


def requests() -> st.SearchStrategy[tuple[str, bytes]]:
    """Draw (method, bytes of the request)."""
    return st.sampled_from(METHODS).flatmap(
        lambda method: st.tuples(st.just(method), _sent(method))
    )


def valid_requests(method: str) -> list[Message]:
    """Return requests that a client would send in some state of the study."""
    study = STUDIES[0]
    measurements = [
        pb.Measurement(attempt=1, metric="score", step=step, value=0.5) for step in range(3)
    ]
    spec = wire.write_spec(SPEC)
    made: dict[str, list[Message]] = {
        "CreateStudy": [
            pb.CreateStudyRequest(
                parent="namespaces/default",
                study_id="fresh",
                study=pb.Study(spec=spec),
                request_id="request",
            )
        ],
        "UpdateStudy": [
            pb.UpdateStudyRequest(study=pb.Study(name=study), update_mask={"paths": ["labels"]})
        ],
        "ValidateStudy": [pb.ValidateStudyRequest(spec=spec)],
        "AddTrial": [
            pb.AddTrialRequest(
                parent=study, parameters={"x": pb.Value(double_value=1.5)}, request_id="request"
            ),
            pb.AddTrialRequest(
                parent=study,
                parameters={"x": pb.Value(double_value=1.5), "kind": pb.Value(string_value="a")},
                outcome=pb.Outcome(succeeded=pb.Succeeded(value=1.0)),
                measurements=measurements,
                request_id="request",
            ),
        ],
        "ImportTrials": [
            pb.ImportTrialsRequest(
                parent=study,
                trials=[
                    pb.FinishedTrial(
                        parameters={
                            "x": pb.Value(double_value=x),
                            "kind": pb.Value(string_value="b"),
                        },
                        outcome=pb.Outcome(succeeded=pb.Succeeded(value=x)),
                        measurements=measurements,
                    )
                    for x in (0.5, 99.0)
                ],
                source="elsewhere",
                request_id="import",
            )
        ],
        "UpdateTrial": [
            pb.UpdateTrialRequest(
                trial=pb.Trial(name=f"{study}/trials/0"), update_mask={"paths": ["labels"]}
            )
        ],
        "SuggestTrials": [
            pb.SuggestTrialsRequest(
                parent=parent, count=2, client_id="client", request_id="request"
            )
            for parent in STUDIES[:3]
        ],
        "ReportMeasurements": [
            pb.ReportMeasurementsRequest(name=f"{study}/trials/1", measurements=measurements)
        ],
        "CompleteTrial": [
            pb.CompleteTrialRequest(
                name=f"{study}/trials/2", outcome=pb.Outcome(succeeded=pb.Succeeded(value=1.0))
            ),
            pb.CompleteTrialRequest(
                name=f"{study}/trials/2", outcome=pb.Outcome(failed=pb.Failed(reason="why"))
            ),
        ],
        "ReopenTrials": [
            pb.ReopenTrialsRequest(parent=study, numbers=numbers) for numbers in ([2], [0, 1])
        ],
    }
    if method in made:
        return made[method]
    descriptor = SERVICE.methods_by_name[method].input_type
    names = STUDIES[3:] if method == "DeleteStudy" else (*STUDIES[:3], f"{study}/trials/0")
    return [_named(descriptor, name) for name in names]


def _named(descriptor: Descriptor, name: str) -> Message:
    """Return a request with a name, which suffices for reading methods."""
    message = message_factory.GetMessageClass(descriptor)()
    for field in ("parent", "name"):
        if field in descriptor.fields_by_name:
            setattr(message, field, name)
    return message


def _sent(method: str) -> st.SearchStrategy[bytes]:
    descriptor = SERVICE.methods_by_name[method].input_type
    sensible = st.sampled_from(valid_requests(method))
    likely = st.one_of(
        _spoilt(sensible), _spoilt(sensible), _spoilt(sensible), _messages(descriptor)
    )
    return st.one_of(
        *[likely.map(lambda message: message.SerializeToString())] * 8,
        _cut(sensible),
        st.binary(max_size=64),
    )


@st.composite
def _messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 0) -> Message:
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if draw(st.integers(0, 3)):
            _fill(draw, message, field, depth)
    return message


@st.composite
def _spoilt(draw: st.DrawFn, sensible: st.SearchStrategy[Message]) -> Message:
    """Draw a valid request and replace one field, at any depth, by a drawn value."""
    spoilt = type(chosen := draw(sensible))()
    spoilt.CopyFrom(chosen)
    places = list(_places(spoilt))
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2])) if places else 0):
        holder, field = draw(st.sampled_from(places))
        holder.ClearField(field.name)
        _fill(draw, holder, field, 1)
    return spoilt


@st.composite
def _cut(draw: st.DrawFn, sensible: st.SearchStrategy[Message]) -> bytes:
    """Draw a valid request as bytes, with bytes changed or truncated."""
    sent = bytearray(draw(sensible).SerializeToString())
    for _ in range(draw(st.integers(0, 3))):
        if sent:
            sent[draw(st.integers(0, len(sent) - 1))] = draw(st.integers(0, 255))
    return bytes(sent[: draw(st.integers(0, len(sent)))])


def _places(message: Message, depth: int = 0) -> Iterator[tuple[Message, FieldDescriptor]]:
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.message_type is None or field.is_repeated or depth > _DEEPEST:
            continue
        if message.HasField(field.name):
            yield from _places(getattr(message, field.name), depth + 1)


def _fill(draw: st.DrawFn, message: Any, field: FieldDescriptor, depth: int) -> None:
    of = field.message_type
    if of is not None and of.GetOptions().map_entry:
        _fill_map(draw, getattr(message, field.name), of, depth)
    elif field.is_repeated:
        into = getattr(message, field.name)
        for _ in range(draw(st.integers(0, 3))):
            into.append(_drawn(draw, field, depth))
    elif of is not None:
        getattr(message, field.name).CopyFrom(_drawn(draw, field, depth))
    else:
        setattr(message, field.name, _drawn(draw, field, depth))


def _fill_map(draw: st.DrawFn, into: Any, entry: Descriptor, depth: int) -> None:
    value = entry.fields_by_name["value"]
    for _ in range(draw(st.integers(0, 3))):
        key = draw(_STRINGS)
        if value.message_type is not None:
            into[key].CopyFrom(_drawn(draw, value, depth))
        else:
            into[key] = _drawn(draw, value, depth)


def _drawn(draw: st.DrawFn, field: FieldDescriptor, depth: int) -> Any:
    if field.message_type is None:
        any_value = _SCALARS[field.cpp_type]
        is_text = field.cpp_type == FieldDescriptor.CPPTYPE_STRING
        return draw(_LIKELY.get(field.name, any_value) if is_text else any_value)
    if depth > _DEEPEST:
        return message_factory.GetMessageClass(field.message_type)()
    return draw(_messages(field.message_type, depth + 1))
