"""Calls are rejected without a token, with a wrong one,
and with one that has too few rights, for each method.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from suggest.server import Protection
from suggest.server.rpcs import RPCS
from suggest.space import Float, Parameter, Space
from suggest.study import Algorithm, Direction, Objective, StudySpec
from suggest.v1 import suggest_pb2 as pb
from suggest.wire import write_spec
from tests.service.granted import (
    SERVICE,
    Refusal,
    call,
    refusal,
    request_about,
    secret,
    tokens_file,
)
from tests.service.running import a_server

METHODS = tuple(SERVICE.methods_by_name)
IN_NAMESPACE = tuple(m for m in METHODS if RPCS[m].field)
THERE, NOT_THERE = "namespaces/team-a/studies/there", "namespaces/team-a/studies/not-there"
SPEC = StudySpec(
    Space((Parameter("x", Float(0, 1)),)),
    (Objective("score", Direction.MAXIMIZE),),
    Algorithm("random"),
)
UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """A channel to one server for all tests; team-a has a study with a trial."""
    folder: Path = tmp_path_factory.mktemp("closed")
    file = tokens_file(
        folder / "tokens.yaml",
        everything=("all", "all"),
        a=("all", ["team-a"]),
        b=("all", ["team-b"]),
        reader=(["read"], "all"),
        worker=(["run"], "all"),
        manager=(["manage"], "all"),
    )
    with (
        a_server(folder / "s.db", protection=Protection(tokens=str(file))) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        assert isinstance(call(channel, "CreateStudy", creation(THERE), secret("a")), pb.Study)
        adding = pb.AddTrialRequest(parent=THERE, request_id="r")
        assert isinstance(call(channel, "AddTrial", adding, secret("a")), pb.Trial)
        yield channel


def creation(study: str) -> pb.CreateStudyRequest:
    namespace, _, name = study.rpartition("/studies/")
    return pb.CreateStudyRequest(
        parent=namespace, study_id=name, request_id="r", study=pb.Study(spec=write_spec(SPEC))
    )


def denied(channel: grpc.Channel, method: str, study: str, token: str) -> Refusal:
    answer = call(channel, method, request_about(method, study), token)
    assert isinstance(answer, Refusal), answer
    return answer


@pytest.mark.parametrize("method", METHODS)
def test_every_method_requires_a_token(channel: grpc.Channel, method: str) -> None:
    answer = call(channel, method, request_about(method, THERE), None)
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.reason) == (UNAUTHENTICATED, "UNAUTHENTICATED")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_refuses_an_unknown_token(channel: grpc.Channel, method: str) -> None:
    digest = hashlib.sha256(secret("a").encode()).hexdigest()
    for wrong in (secret("nobody"), secret("a")[:-1], digest, ""):
        answer = denied(channel, method, THERE, wrong)
        assert (answer.code, answer.reason) == (UNAUTHENTICATED, "UNAUTHENTICATED")


@pytest.mark.parametrize("method", IN_NAMESPACE)
def test_another_namespace_is_closed_and_reveals_nothing_about_its_contents(
    channel: grpc.Channel, method: str
) -> None:
    there, not_there = (denied(channel, method, study, secret("b")) for study in (THERE, NOT_THERE))
    assert (there.code, there.reason) == (DENIED, "PERMISSION_DENIED")
    assert there == not_there
    assert (
        there.message
        == "the token b is not valid in the namespace team-a; ask the server's operator"
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_token_has_its_verbs_and_no_others(channel: grpc.Channel, method: str) -> None:
    for name, verb in (("reader", "read"), ("worker", "run"), ("manager", "manage")):
        answer = call(channel, method, request_about(method, NOT_THERE), secret(name))
        refused = isinstance(answer, Refusal) and answer.reason == "PERMISSION_DENIED"
        assert refused == (verb != RPCS[method].verb.value), answer


@pytest.mark.parametrize("method", METHODS)
def test_the_request_of_an_unauthenticated_client_is_not_deserialized(
    channel: grpc.Channel, method: str
) -> None:
    send = channel.unary_unary(f"/{SERVICE.full_name}/{method}")
    with pytest.raises(grpc.RpcError) as raised:
        send(b"\xff\xff", timeout=20)
    assert refusal(raised.value).code is UNAUTHENTICATED


def test_all_namespaces_means_those_that_the_token_may_read(channel: grpc.Channel) -> None:
    def listed(name: str) -> list[str]:
        answer = call(
            channel, "ListStudies", pb.ListStudiesRequest(parent="namespaces/-"), secret(name)
        )
        assert isinstance(answer, pb.ListStudiesResponse)
        return [study.name for study in answer.studies]

    assert [listed(name) for name in ("everything", "reader", "a", "b")] == [
        [THERE],
        [THERE],
        [THERE],
        [],
    ]


def test_a_wildcard_namespace_is_refused_by_other_methods(channel: grpc.Channel) -> None:
    answer = denied(channel, "GetStudy", "namespaces/-/studies/there", secret("b"))
    assert answer.reason == "PERMISSION_DENIED"


def test_health_needs_no_token_and_reflection_does(channel: grpc.Channel) -> None:
    health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
    ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
    listing = reflection_pb2.ServerReflectionRequest(list_services="")
    with pytest.raises(grpc.RpcError) as raised:
        next(ask(iter([listing]), timeout=20))
    assert refusal(raised.value).reason == "UNAUTHENTICATED"
    known = ask(
        iter([listing]), timeout=20, metadata=(("authorization", f"bearer {secret('reader')}"),)
    )
    assert SERVICE.full_name in [s.name for s in next(known).list_services_response.service]


@pytest.mark.parametrize(
    "sent", [("Basic {}",), ("{}",), ("Bearer",), ("Bearer {}", "Bearer {}")], ids=str
)
def test_a_token_must_be_sent_once_and_as_a_bearer_token(
    channel: grpc.Channel, sent: tuple[str, ...]
) -> None:
    send = channel.unary_unary(f"/{SERVICE.full_name}/ListAlgorithms")
    metadata = tuple(("authorization", value.format(secret("everything"))) for value in sent)
    with pytest.raises(grpc.RpcError) as raised:
        send(b"", timeout=20, metadata=metadata)
    assert refusal(raised.value).reason == "UNAUTHENTICATED"


def test_a_token_can_request_trials_in_its_namespace(channel: grpc.Channel) -> None:
    asking = pb.SuggestTrialsRequest(parent=THERE, count=1, client_id="c", request_id="mine")
    answer = call(channel, "SuggestTrials", asking, secret("a"))
    assert isinstance(answer, pb.SuggestTrialsResponse), answer


def test_every_method_says_which_verb_it_needs_and_where() -> None:
    assert set(RPCS) == set(METHODS), "a method of the service belongs into suggest/server/rpcs.py"
    for method, rpc in RPCS.items():
        message = SERVICE.methods_by_name[method].input_type
        assert rpc.items is None or rpc.items.field in message.fields_by_name
        if rpc.field:
            *path, last = rpc.field.split(".")
            for part in path:
                message = message.fields_by_name[part].message_type
            assert message.fields_by_name[last].type == 9, "a string"
        else:
            named = {"parent", "name", "study", "trial"} & set(message.fields_by_name)
            assert not named, f"{method} has a name in it that decides who may"
