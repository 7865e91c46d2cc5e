"""A server without free file descriptors reports this and continues;
answering an error needs no import.
"""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import grpc
import pytest

from suggest.client import Client
from suggest.errors import InvalidArgument, NotFound
from suggest.study import StudyName
from suggest.v1 import suggest_pb2 as pb
from suggest.v1.suggest_pb2_grpc import SuggestServiceStub
from tests.conditions import eventually
from tests.service.granted import secret, tokens_file
from tests.service.running import NAME, SPEC, ServerProcess
from tests.service.test_too_much import a_choice, hanging_on_nothing, many_parameters, spec

STUDY = str(NAME)


def descriptors_of(pid: int) -> tuple[int, int]:
    """Return the soft and the hard limit of a process."""
    for line in Path(f"/proc/{pid}/limits").read_text(encoding="ascii").splitlines():
        if line.startswith("Max open files"):
            soft, hard = line.split()[3:5]
            return int(soft), int(hard)
    raise AssertionError("no such line")


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="limits are read from /proc")
def test_a_server_raises_its_limit_of_descriptors_as_far_as_it_may(tmp_path: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(2000, most)
    server = ServerProcess(tmp_path / "s.db", "127.0.0.1:0", descriptors=(256, wanted))
    try:
        assert descriptors_of(server.pid) == (wanted, wanted)
    finally:
        server.stop()


def errors_of_all_kinds(address: str, token: str) -> None:
    metadata = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address) as channel:
        stub = SuggestServiceStub(channel)
        for method, request, given in (
            ("GetStudy", pb.GetStudyRequest(name=STUDY), ()),
            ("GetStudy", pb.GetStudyRequest(name="namespaces/foreign/studies/s"), metadata),
            ("GetStudy", pb.GetStudyRequest(name="garbage"), metadata),
            ("GetStudy", pb.GetStudyRequest(name="namespaces/default/studies/none"), metadata),
            ("ListTrials", pb.ListTrialsRequest(parent=STUDY, page_token="%"), metadata),
            ("ValidateStudy", pb.ValidateStudyRequest(spec=spec(hanging_on_nothing())), metadata),
            ("ValidateStudy", pb.ValidateStudyRequest(spec=spec(many_parameters(2000))), metadata),
            (
                "ValidateStudy",
                pb.ValidateStudyRequest(spec=spec([a_choice(range(0))], startupTrails=1)),
                metadata,
            ),
            (
                "AddTrial",
                pb.AddTrialRequest(
                    parent=STUDY, request_id="r", parameters={"xx": pb.Value(double_value=1)}
                ),
                metadata,
            ),
            (
                "CompleteTrial",
                pb.CompleteTrialRequest(
                    name=f"{STUDY}/trials/77", outcome=pb.Outcome(succeeded=pb.Succeeded())
                ),
                metadata,
            ),
        ):
            with pytest.raises(grpc.RpcError):
                getattr(stub, method)(request, timeout=30, metadata=given)
        with pytest.raises(grpc.RpcError):
            channel.unary_unary("/tuner.suggest.v1.SuggestService/GetStudy")(
                b"\xff", timeout=30, metadata=metadata
            )


def test_answering_an_error_imports_nothing(tmp_path: Path) -> None:
    tokens = tokens_file(tmp_path / "tokens.yaml", me=("all", ["default"]))
    server = ServerProcess(
        tmp_path / "s.db",
        "127.0.0.1:0",
        tokens=tokens,
        python=("-X", "importtime"),
        descriptors=(1000, 1000),
    )
    try:
        with Client(server.address, token=secret("me")) as client:
            client.create_study(NAME, SPEC, request_id="create")
            client.suggest(NAME, 1, client_id="c", request_id="r")
        errors_of_all_kinds(server.address, secret("me"))
    finally:
        server.kill()
        server.stop()
    imported = [
        line.rpartition("|")[2].strip()
        for line in server.said[-1].splitlines()
        if "import time:" in line
    ]
    assert imported == []


def test_a_server_without_descriptors_serves_connected_clients_and_recovers(tmp_path: Path) -> None:
    """The limit is so low that unknown connections reach it; they are closed,
    and then new clients can connect.
    """
    server = ServerProcess(tmp_path / "s.db", "127.0.0.1:0", descriptors=(100, 100))
    connections: list[socket.socket] = []
    try:
        host, _, port = server.address.rpartition(":")
        with Client(server.address, timeout_s=30) as client:
            client.create_study(NAME, SPEC, request_id="create")
            for _ in range(200):
                connections.append(socket.create_connection((host, int(port)), timeout=20))
            assert client.get_study(NAME).name == NAME
            with pytest.raises(NotFound):
                client.get_study(StudyName("default", "none"))
            with pytest.raises(InvalidArgument, match="did you mean"):
                client.add_trial(NAME, {"kin": "a"}, request_id="r")

            def another_is_let_in() -> bool:
                with Client(server.address, timeout_s=5) as newcomer:
                    return newcomer.get_study(NAME).name == NAME

            eventually(another_is_let_in)
    finally:
        for each in connections:
            each.close()
        server.stop()
