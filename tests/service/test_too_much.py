"""Requests that are too large are refused at once with the field, without delaying others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from suggest.client import Client
from suggest.domain import MAX_CHOICES
from suggest.server import request_sizes
from suggest.v1 import suggest_pb2 as pb
from suggest.v1.suggest_pb2_grpc import SuggestServiceStub
from tests.service.running import NAME, SPEC, a_server

STUDY = str(NAME)
# An import takes five seconds of processor time, and a busy machine gives a tenth of that. No test
# has more than three calls that take long, and they end before pytest's timeout of 300 s, which
# would not say which call is late.
PATIENCE_S = 90.0
# a hundred times the usual processor time; reading the whole request took minutes
AT_ONCE_CPU_S = 5.0


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuggestServiceStub]:
    with a_server(tmp_path_factory.mktemp("store") / "studies.db") as server:
        with Client(server.address) as client:
            client.create_study(NAME, SPEC, request_id="create")
            client.suggest(NAME, 1, client_id="c", request_id="r")
        with grpc.insecure_channel(
            server.address, options=[("grpc.max_send_message_length", -1)]
        ) as channel:
            yield SuggestServiceStub(channel)


def a_choice(values: range) -> pb.Parameter:
    return pb.Parameter(
        name="k", choice_domain=pb.ChoiceDomain(values=[pb.Value(int_value=v) for v in values])
    )


def many_parameters(count: int) -> list[pb.Parameter]:
    return [pb.Parameter(name=f"p{n}", float_domain=pb.FloatDomain(max=1)) for n in range(count)]


def hanging_on_everything() -> list[pb.Parameter]:
    condition = pb.Condition(parameter="k", values=[pb.Value(int_value=v) for v in range(800)])
    hanging = [
        pb.Parameter(name=f"p{n}", float_domain=pb.FloatDomain(max=1), conditions=[condition])
        for n in range(999)
    ]
    return [a_choice(range(1000)), *hanging]


def full_of_nothing(parameters: int) -> list[pb.Parameter]:
    """Return parameters with 9,900 unset values each, of two bytes."""
    empty = pb.ChoiceDomain(values=[pb.Value()] * 9_900)
    return [pb.Parameter(name=f"p{n}", choice_domain=empty) for n in range(parameters)]


def hanging_on_nothing() -> list[pb.Parameter]:
    conditions = [
        pb.Condition(parameter=f"qqqqqqqqqqqqqqqqqqqq{n}")
        for n in range(request_sizes.MAX_CONDITIONS)
    ]
    return [
        pb.Parameter(
            name=f"pppppppppppppppppppp{n}",
            float_domain=pb.FloatDomain(max=1),
            conditions=conditions,
        )
        for n in range(999)
    ]


def spec(parameters: list[pb.Parameter], **settings: int) -> pb.StudySpec:
    objective = pb.Objective(metric="score", direction=pb.DIRECTION_MAXIMIZE)
    algorithm = pb.Algorithm(
        name="random", settings={k: pb.Value(int_value=v) for k, v in settings.items()}
    )
    return pb.StudySpec(parameters=parameters, objectives=[objective], algorithm=algorithm)


def reports(count: int) -> list[pb.Measurement]:
    return [
        pb.Measurement(attempt=1, metric="score", step=step, value=0.5) for step in range(count)
    ]


TOO_MUCH: list[tuple[str, Callable[[], Any], str]] = [
    (
        "SuggestTrials",
        lambda: pb.SuggestTrialsRequest(parent=STUDY, count=10**6, client_id="c", request_id="r6"),
        "count",
    ),
    (
        "ValidateStudy",
        lambda: pb.ValidateStudyRequest(spec=spec(many_parameters(100_000))),
        "spec.parameters",
    ),
    (
        "CreateStudy",
        lambda: pb.CreateStudyRequest(
            parent="namespaces/default",
            study_id="wide",
            study=pb.Study(spec=spec(many_parameters(request_sizes.MAX_PARAMETERS + 1))),
            request_id="r",
        ),
        "spec.parameters",
    ),
    (
        "ValidateStudy",
        lambda: pb.ValidateStudyRequest(spec=spec(hanging_on_everything())),
        "spec.parameters",
    ),
    (
        "ValidateStudy",
        lambda: pb.ValidateStudyRequest(spec=spec(full_of_nothing(100))),
        "spec.parameters",
    ),
    (
        "ImportTrials",
        lambda: pb.ImportTrialsRequest(
            parent=STUDY,
            request_id="r",
            source="s",
            trials=[pb.FinishedTrial(measurements=[pb.Measurement()] * 9_000)] * 100,
        ),
        "trials",
    ),
    (
        "ValidateStudy",
        lambda: pb.ValidateStudyRequest(spec=spec([a_choice(range(MAX_CHOICES + 1))])),
        "spec.parameters[0].choice_domain.values",
    ),
    (
        "ValidateStudy",
        lambda: pb.ValidateStudyRequest(
            spec=spec(
                many_parameters(1), **{f"s{n}": n for n in range(request_sizes.MAX_SETTINGS + 1)}
            )
        ),
        "spec.algorithm.settings",
    ),
    (
        "AddTrial",
        lambda: pb.AddTrialRequest(
            parent=STUDY,
            request_id="r",
            parameters={f"p{n}": pb.Value(double_value=1) for n in range(50_000)},
        ),
        "parameters",
    ),
    (
        "ReportMeasurements",
        lambda: pb.ReportMeasurementsRequest(
            name=f"{STUDY}/trials/0", measurements=reports(150_000)
        ),
        "measurements",
    ),
    (
        "CompleteTrial",
        lambda: pb.CompleteTrialRequest(
            name=f"{STUDY}/trials/0", outcome=pb.Outcome(failed=pb.Failed(reason="x" * 50_000))
        ),
        "outcome.failed.reason",
    ),
    (
        "ListStudies",
        lambda: pb.ListStudiesRequest(
            parent="namespaces/-", labels={f"l{n}": "x" for n in range(2000)}
        ),
        "labels",
    ),
    ("ListTrials", lambda: pb.ListTrialsRequest(parent=STUDY, states=[2] * 1_000_000), "states"),  # type: ignore[list-item]
    ("GetStudy", lambda: pb.GetStudyRequest(name="n" * 100_000), "name"),
]


@pytest.mark.parametrize(
    ("method", "request_", "path"),
    TOO_MUCH,
    ids=[f"{method}-{path}" for method, _, path in TOO_MUCH],
)
def test_too_large_a_request_is_refused_at_once_with_the_field(
    stub: SuggestServiceStub, method: str, request_: Callable[[], Any], path: str
) -> None:
    sent = request_()
    began = time.process_time()  # the server's too: it runs in this process
    with pytest.raises(grpc.RpcError) as refused:
        getattr(stub, method)(sent, timeout=PATIENCE_S)
    assert time.process_time() - began < AT_ONCE_CPU_S
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, refused.value.details()
    status = rpc_status.from_call(refused.value)
    bad = error_details_pb2.BadRequest()
    assert status is not None
    assert any(detail.Unpack(bad) for detail in status.details)
    assert [violation.field for violation in bad.field_violations] == [path]


def test_a_request_that_decodes_to_too_much_is_refused_before_it_is_parsed(
    stub: SuggestServiceStub,
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        stub.ValidateStudy(
            pb.ValidateStudyRequest(spec=spec(full_of_nothing(200))), timeout=PATIENCE_S
        )
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "MiB once decoded; at most 128 MiB" in (refused.value.details() or "")


def test_a_thousand_problems_are_reported_at_once_too(stub: SuggestServiceStub) -> None:
    began = time.process_time()
    with pytest.raises(grpc.RpcError, match="is not a parameter") as refused:
        stub.ValidateStudy(
            pb.ValidateStudyRequest(spec=spec(hanging_on_nothing())), timeout=PATIENCE_S
        )
    assert time.process_time() - began < AT_ONCE_CPU_S
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_hundred_megabytes_are_refused_by_grpc_and_the_server_lives(
    stub: SuggestServiceStub,
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        stub.GetStudy(pb.GetStudyRequest(name="x" * (100 << 20)), timeout=PATIENCE_S)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stub.GetStudy(pb.GetStudyRequest(name=STUDY), timeout=PATIENCE_S).name == STUDY


def test_requests_up_to_the_limits_are_accepted(stub: SuggestServiceStub) -> None:
    stub.ValidateStudy(
        pb.ValidateStudyRequest(spec=spec(many_parameters(request_sizes.MAX_PARAMETERS))),
        timeout=PATIENCE_S,
    )
    stub.ValidateStudy(
        pb.ValidateStudyRequest(spec=spec([a_choice(range(MAX_CHOICES))])), timeout=PATIENCE_S
    )
    request = pb.ReportMeasurementsRequest(
        name=f"{STUDY}/trials/0", measurements=reports(request_sizes.MAX_MEASUREMENTS)
    )
    stub.ReportMeasurements(request, timeout=PATIENCE_S)


def test_names_are_ascii_and_texts_of_any_script_are_kept(stub: SuggestServiceStub) -> None:
    for study in ("studié", "研究", "a b", "ａ", "𝓼"):
        with pytest.raises(grpc.RpcError) as refused:
            stub.GetStudy(
                pb.GetStudyRequest(name=f"namespaces/default/studies/{study}"), timeout=PATIENCE_S
            )
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    labels = {"équipe": "研究 🂡", "a.b\"c'd": "\\"}
    request = pb.UpdateTrialRequest(
        trial=pb.Trial(name=f"{STUDY}/trials/0", labels=labels), update_mask={"paths": ["labels"]}
    )
    assert dict(stub.UpdateTrial(request, timeout=PATIENCE_S).labels) == labels


def test_steps_are_stored_once_in_any_order(stub: SuggestServiceStub) -> None:
    name = stub.SuggestTrials(
        pb.SuggestTrialsRequest(parent=STUDY, count=1, client_id="c", request_id="steps"),
        timeout=PATIENCE_S,
    ).trials[0]
    steps = [(5, 0.5), (1, 0.1), (5, 0.9), (1, 0.7), (3, 0.3)]
    measured = [
        pb.Measurement(attempt=1, metric="score", step=step, value=value) for step, value in steps
    ]
    stub.ReportMeasurements(
        pb.ReportMeasurementsRequest(name=name.name, measurements=measured), timeout=PATIENCE_S
    )
    kept = stub.ListMeasurements(
        pb.ListMeasurementsRequest(parent=name.name), timeout=PATIENCE_S
    ).measurements
    assert [(m.measurement.step, m.measurement.value) for m in kept] == [
        (5, 0.9),
        (1, 0.7),
        (3, 0.3),
    ]
    ended = stub.CompleteTrial(
        pb.CompleteTrialRequest(name=name.name, outcome=pb.Outcome(succeeded=pb.Succeeded())),
        timeout=PATIENCE_S,
    )
    assert (ended.value, ended.step) == (0.9, 5), "the last is that of the highest step"


# Replies. Clients in other languages accept 4 MiB.


@pytest.fixture
def other_language(tmp_path: Path) -> Iterator[SuggestServiceStub]:
    """A stub with gRPC's default limits."""
    with (
        a_server(tmp_path / "studies.db") as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        yield SuggestServiceStub(channel)


def long_choices(parameters: int, characters: int) -> list[pb.Parameter]:
    """Return choices with one value each."""
    return [
        pb.Parameter(
            name=f"p{n}",
            choice_domain=pb.ChoiceDomain(values=[pb.Value(string_value=str(n % 10) * characters)]),
        )
        for n in range(parameters)
    ]


def create(stub: SuggestServiceStub, parameters: list[pb.Parameter]) -> None:
    study = pb.Study(spec=spec(parameters))
    stub.CreateStudy(
        pb.CreateStudyRequest(
            parent="namespaces/default", study_id=NAME.study, study=study, request_id="create"
        )
    )


def suggested(stub: SuggestServiceStub, count: int, request_id: str) -> pb.SuggestTrialsResponse:
    return stub.SuggestTrials(
        pb.SuggestTrialsRequest(parent=STUDY, count=count, client_id="c", request_id=request_id),
        timeout=PATIENCE_S,
    )


def test_only_trials_that_fit_into_a_reply_are_handed_out(
    other_language: SuggestServiceStub,
) -> None:
    create(other_language, long_choices(200, 2000))  # 400 kB per trial
    first = suggested(other_language, 1000, "r")
    assert (len(first.trials), first.exhausted) == (7, False)
    assert suggested(other_language, 1000, "r") == first
    second = suggested(other_language, 3, "s")
    assert [t.number for t in second.trials] == [7, 8, 9]


def test_a_repeated_request_returns_running_trials_first(
    other_language: SuggestServiceStub,
) -> None:
    create(other_language, many_parameters(1))
    trials = suggested(other_language, 500, "r").trials
    for trial in trials[:400]:
        failed = pb.Outcome(failed=pb.Failed(reason="x" * 10_000))
        other_language.CompleteTrial(pb.CompleteTrialRequest(name=trial.name, outcome=failed))
    again = suggested(other_language, 500, "r").trials
    assert 300 < len(again) < 500
    assert [t.number for t in again[-100:]] == list(range(400, 500))


def test_a_study_whose_trials_do_not_fit_into_a_reply_is_refused(
    other_language: SuggestServiceStub,
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        create(other_language, long_choices(350, 8000))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "spec.parameters: the study takes " in str(refused.value.details())


def test_a_study_does_not_grow_beyond_a_reply(other_language: SuggestServiceStub) -> None:
    create(other_language, long_choices(200, 8))
    parameters = long_choices(200, 8)
    for parameter in parameters:
        parameter.choice_domain.values.append(pb.Value(string_value="x" * 9000))
    update = pb.UpdateStudyRequest(
        study=pb.Study(name=STUDY, spec=pb.StudySpec(parameters=parameters[:100]))
    )
    update.study.spec.parameters.extend(long_choices(200, 8)[100:])
    update.update_mask.paths.append("spec.parameters")
    assert len(other_language.UpdateStudy(update).past) == 1
    del update.study.spec.parameters[:]
    update.study.spec.parameters.extend(parameters)
    with pytest.raises(grpc.RpcError) as refused:
        other_language.UpdateStudy(update)
    assert "spec.parameters: the study with its earlier parameters takes " in str(
        refused.value.details()
    )
    assert len(other_language.GetStudy(pb.GetStudyRequest(name=STUDY)).past) == 1


def test_a_reply_about_an_import_keeps_each_result_and_drops_remarks(
    other_language: SuggestServiceStub,
) -> None:
    create(other_language, many_parameters(1))
    trials = [
        pb.FinishedTrial(
            parameters={f"{'q' * 60}{n}": pb.Value(bool_value=True) for n in range(40)}
            | {"p0": pb.Value(double_value=0.5)},
            outcome=pb.Outcome(succeeded=pb.Succeeded(value=1.0)),
        )
        for _ in range(1000)
    ]
    request = pb.ImportTrialsRequest(parent=STUDY, trials=trials, source="s", request_id="i")
    results = other_language.ImportTrials(request, timeout=PATIENCE_S).results
    assert [result.number for result in results] == list(range(1000))
    assert all(0 < len(result.remarks) < 40 for result in results)


def test_a_compressed_request_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    with (
        a_server(tmp_path / "studies.db") as server,
        grpc.insecure_channel(server.address, compression=grpc.Compression.Gzip) as channel,
    ):
        with pytest.raises(grpc.RpcError) as refused:
            SuggestServiceStub(channel).GetStudy(
                pb.GetStudyRequest(name="n" * 10_000), timeout=PATIENCE_S
            )
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
