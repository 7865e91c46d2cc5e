"""Invalid requests of clients in other languages get INVALID_ARGUMENT
with every path, never a stack trace.
"""

from __future__ import annotations

import gc
import math
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from grpc_status import rpc_status

from suggest import wire
from suggest.client import Client
from suggest.errors import Problems
from suggest.server import interceptor
from suggest.v1 import suggest_pb2 as pb
from suggest.v1.suggest_pb2_grpc import SuggestServiceStub
from tests.conditions import eventually
from tests.service.running import NAME, SPEC, a_server

SERVICE = "tuner.suggest.v1.SuggestService"
STUDY, TRIAL = str(NAME), f"{NAME}/trials/0"


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[grpc.Channel]:
    with a_server(tmp_path / "studies.db") as server:
        with Client(server.address) as client:
            client.create_study(NAME, SPEC, request_id="create")
            client.suggest(NAME, 1, client_id="c", request_id="r")
        with grpc.insecure_channel(server.address) as channel:
            yield channel


def refusal(
    channel: grpc.Channel, method: str, request: Any
) -> tuple[grpc.StatusCode, str, list[str]]:
    """Return the code, the reason and the paths of the problems."""
    with pytest.raises(grpc.RpcError) as refused:
        getattr(SuggestServiceStub(channel), method)(request, timeout=10)
    status = rpc_status.from_call(refused.value)
    assert status is not None
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(info) or detail.Unpack(bad)
    assert info.domain == "tuner.dev"
    assert "Traceback" not in refused.value.details()
    return refused.value.code(), info.reason, [v.field for v in bad.field_violations]


MEASUREMENT = pb.Measurement(attempt=1, metric="score", step=0, value=1.0)
BAD_SPEC = pb.StudySpec(
    parameters=[
        pb.Parameter(),
        pb.Parameter(name="x", float_domain=pb.FloatDomain(min=0, max=1, scale=9)),  # type: ignore[arg-type]
        pb.Parameter(name="c", choice_domain=pb.ChoiceDomain(values=[pb.Value()])),
    ],
    objectives=[pb.Objective()],
    algorithm=pb.Algorithm(settings={"window": pb.Value()}),
    pruning=pb.Pruning(),
)


@pytest.mark.parametrize(
    ("method", "request_", "paths"),
    [
        (
            "ValidateStudy",
            pb.ValidateStudyRequest(spec=BAD_SPEC),
            [
                "spec.parameters[0].name",
                "spec.parameters[0]",
                "spec.parameters[1].float_domain.scale",
                "spec.parameters[2].choice_domain.values[0]",
                "spec.objectives[0].metric",
                "spec.objectives[0].direction",
                "spec.algorithm.name",
                "spec.algorithm.settings.window",
                "spec.pruning.name",
            ],
        ),
        (
            "CreateStudy",
            pb.CreateStudyRequest(),
            [
                "parent",
                "study_id",
                "spec.objectives",
                "spec.algorithm.name",
                "spec.parameters",
                "request_id",
            ],
        ),
        (
            "CreateStudy",
            pb.CreateStudyRequest(
                parent="namespaces/default", study_id="Not A Name", request_id="r"
            ),
            ["study_id", "spec.objectives", "spec.algorithm.name", "spec.parameters"],
        ),
        (
            "SuggestTrials",
            pb.SuggestTrialsRequest(),
            ["parent", "count", "client_id", "request_id"],
        ),
        ("UpdateStudy", pb.UpdateStudyRequest(), ["study.name", "update_mask"]),
        ("UpdateTrial", pb.UpdateTrialRequest(), ["trial.name", "update_mask"]),
        (
            "AddTrial",
            pb.AddTrialRequest(measurements=[MEASUREMENT]),
            ["parent", "request_id", "measurements"],
        ),
        ("CompleteTrial", pb.CompleteTrialRequest(), ["name", "outcome"]),
        (
            "CompleteTrial",
            pb.CompleteTrialRequest(outcome=pb.Outcome(succeeded=pb.Succeeded(value=math.nan))),
            ["name", "outcome.succeeded.value"],
        ),
        ("ReportMeasurements", pb.ReportMeasurementsRequest(), ["name", "measurements"]),
        (
            "ListStudies",
            pb.ListStudiesRequest(page_size=-1, page_token="junk!"),
            ["parent", "page_token", "page_size"],
        ),
        (
            "ListTrials",
            pb.ListTrialsRequest(page_size=-1, page_token="junk!"),
            ["parent", "page_size", "page_token"],
        ),
        (
            "ListMeasurements",
            pb.ListMeasurementsRequest(page_size=-1, page_token="junk!"),
            ["parent", "page_size", "page_token"],
        ),
        ("GetStudy", pb.GetStudyRequest(name="parabola"), ["name"]),
        ("GetStudy", pb.GetStudyRequest(name="namespaces/default/studies/UPPER"), ["name"]),
        ("GetStudy", pb.GetStudyRequest(name="namespaces/-/studies/parabola"), ["name"]),
        ("GetTrial", pb.GetTrialRequest(name=f"{STUDY}/trials/-1"), ["name"]),
        ("GetTrial", pb.GetTrialRequest(name=f"{STUDY}/trials/-"), ["name"]),
        ("GetTrial", pb.GetTrialRequest(name=f"{STUDY}/trials/99999999999999999999"), ["name"]),
        ("ListTrials", pb.ListTrialsRequest(parent=STUDY, page_size=-1), ["page_size"]),
        ("ListTrials", pb.ListTrialsRequest(parent=STUDY, page_token="junk!"), ["page_token"]),
        (
            "ListTrials",
            pb.ListTrialsRequest(parent=STUDY, states=[0, 99]),
            ["states[0]", "states[1]"],
        ),  # type: ignore[list-item]
        ("UpdateStudy", pb.UpdateStudyRequest(study=pb.Study(name=STUDY)), ["update_mask"]),
        ("UpdateTrial", pb.UpdateTrialRequest(trial=pb.Trial(name=TRIAL)), ["update_mask"]),
        ("CompleteTrial", pb.CompleteTrialRequest(name=TRIAL), ["outcome"]),
        ("ReopenTrials", pb.ReopenTrialsRequest(), ["parent", "numbers"]),
        ("ReopenTrials", pb.ReopenTrialsRequest(parent=STUDY, numbers=[1, 2, 1]), ["numbers"]),
        ("ReportMeasurements", pb.ReportMeasurementsRequest(name=TRIAL), ["measurements"]),
        (
            "ReportMeasurements",
            pb.ReportMeasurementsRequest(name=TRIAL, measurements=[pb.Measurement(step=-1)]),
            ["measurements[0].attempt", "measurements[0].step", "measurements[0].metric"],
        ),
        (
            "AddTrial",
            pb.AddTrialRequest(
                parent=STUDY, request_id="a", parameters={"x": pb.Value()}, outcome=pb.Outcome()
            ),
            ["parameters.x", "outcome"],
        ),
        (
            "AddTrial",
            pb.AddTrialRequest(
                parent=STUDY, request_id="a", parameters={"x": pb.Value(string_value="1.5")}
            ),
            ["parameters.x"],
        ),
    ],
)
def test_every_problem_is_named_by_its_path(
    channel: grpc.Channel, method: str, request_: Any, paths: list[str]
) -> None:
    assert refusal(channel, method, request_) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_ARGUMENT",
        paths,
    )


def test_malformed_bytes_are_an_error_of_the_client(channel: grpc.Channel) -> None:
    call = channel.unary_unary(f"/{SERVICE}/SuggestTrials")
    with pytest.raises(grpc.RpcError) as refused:
        call(b"\xff\xff\xff garbage", timeout=10)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not a request of that method" in refused.value.details()


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(f"/{SERVICE}/Nothing")(b"", timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_more_measurements_than_the_limit_are_refused(channel: grpc.Channel) -> None:
    reports = [pb.Measurement(attempt=1, metric="score", step=step) for step in range(10_001)]
    request = pb.ReportMeasurementsRequest(name=TRIAL, measurements=reports)
    assert refusal(channel, "ReportMeasurements", request)[2] == ["measurements"]


def test_large_trials_come_in_smaller_pages(channel: grpc.Channel) -> None:
    stub = SuggestServiceStub(channel)
    labels = {f"label{i}": "x" * 1000 for i in range(60)}
    for request_id in ("a", "b"):
        request = pb.SuggestTrialsRequest(
            parent=STUDY, count=50, client_id="c", request_id=request_id, labels=labels
        )
        stub.SuggestTrials(request, timeout=10)
    reply = stub.ListTrials(pb.ListTrialsRequest(parent=STUDY, page_size=1000), timeout=10)
    assert 40 < len(reply.trials) < 60
    assert reply.next_page_token


def test_a_page_token_belongs_to_its_list(channel: grpc.Channel) -> None:
    stub = SuggestServiceStub(channel)
    stub.SuggestTrials(
        pb.SuggestTrialsRequest(parent=STUDY, count=3, client_id="c", request_id="a"), timeout=10
    )
    first = pb.ListTrialsRequest(parent=STUDY, page_size=1, states=[pb.TRIAL_STATE_RUNNING])
    token = stub.ListTrials(first, timeout=10).next_page_token
    rest = pb.ListTrialsRequest(parent=STUDY, page_token=token, states=[pb.TRIAL_STATE_RUNNING])
    numbers = [trial.number for trial in stub.ListTrials(rest, timeout=10).trials]
    assert numbers[:2] == [1, 2]
    for method, request in (
        ("ListTrials", pb.ListTrialsRequest(parent=STUDY)),
        ("ListTrials", pb.ListTrialsRequest(parent=f"{STUDY}-2", states=rest.states)),
        ("ListTrials", pb.ListTrialsRequest(parent=STUDY, states=rest.states, client_id="d")),
        ("ListMeasurements", pb.ListMeasurementsRequest(parent=f"{STUDY}/trials/-")),
        ("ListStudies", pb.ListStudiesRequest(parent="namespaces/-")),
    ):
        request.page_token = token
        assert refusal(channel, method, request)[2] == ["page_token"]


def test_a_bug_of_the_server_gives_the_client_an_id_and_the_log_a_traceback(
    tmp_path: Path, channel: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(tmp_path / "studies.db")) as connection, connection:
        connection.execute("ALTER TABLE measurements RENAME TO renamed")
        connection.execute("CREATE VIEW measurements AS SELECT * FROM renamed WHERE unknown()")
    with pytest.raises(grpc.RpcError) as refused:
        SuggestServiceStub(channel).ListMeasurements(
            pb.ListMeasurementsRequest(parent=f"{STUDY}/trials/-"), timeout=10
        )
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    assert "no such function" not in refused.value.details()
    [bug] = re.findall(r"its log has the details under (\w+)", refused.value.details())
    assert f"bug={bug}" in caplog.text
    assert "no such function" in caplog.text


def test_health_and_reflection_answer(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", SERVICE):
        reply = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
    reflected = ProtoReflectionDescriptorDatabase(channel)
    assert SERVICE in reflected.get_services()
    described = reflected.FindFileContainingSymbol(SERVICE)
    assert {m.name for m in described.service[0].method} >= {"SuggestTrials", "CompleteTrial"}


def test_a_spec_survives_the_wire() -> None:
    problems = Problems()
    assert wire.read_spec(wire.write_spec(SPEC), problems) == SPEC
    assert problems == []


def requests_kept() -> list[str]:
    """Return the functions of the server whose frames still hold a large request."""
    return [
        frame.f_code.co_qualname
        for frame in gc.get_objects()
        # isinstance would ask objects of torch for their class, and they warn
        if type(frame) is FrameType
        and frame.f_code.co_filename == interceptor.__file__
        and any(
            isinstance(value, bytes) and len(value) > 1_000_000 for value in frame.f_locals.values()
        )
    ]


@pytest.mark.parametrize(
    "method", [f"/{SERVICE}/SuggestTrials", "/api.v1.beta1.Suggestion/GetSuggestions"]
)
def test_a_large_request_that_is_refused_is_freed_without_garbage_collection(
    channel: grpc.Channel, method: str
) -> None:
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(method)(b"\xff" * 3_000_000, timeout=30)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        eventually(lambda: not requests_kept())
    finally:
        gc.enable()
