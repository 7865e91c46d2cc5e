"""Limits of a running server per client and namespace, changed while it runs,
and the behavior of clients.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from suggest.client import Client
from suggest.errors import LimitReached, NotFound, RateLimited
from suggest.server import ServerOptions
from suggest.study import StudyName
from suggest.trial import Outcome, TrialState
from suggest.v1 import suggest_pb2 as pb
from suggest.v1.suggest_pb2_grpc import SuggestServiceStub
from tests.conditions import eventually
from tests.service.running import NAME, SPEC, a_server, score

SUCCEEDED = Outcome(TrialState.SUCCEEDED, 1.0)
FULL = (
    "the namespace default has 3 of the 3 trials allowed, and 1 more were requested; delete studies"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "limits.yaml"


def limited(file: Path, text: str) -> ServerOptions:
    file.write_text(text)
    return ServerOptions(limits=str(file))


def suggest(client: Client, request_id: str, count: int = 1) -> int:
    return len(client.suggest(NAME, count, client_id="c", request_id=request_id).trials)


def refused(client: Client, request_id: str) -> bool:
    try:
        suggest(client, request_id)
    except LimitReached:
        return True
    return False


def test_a_rate_limited_client_waits_and_continues(tmp_path: Path, file: Path) -> None:
    options = limited(file, "defaults: {rate: 40, burst: 5}")
    with (
        a_server(tmp_path / "studies.db", options=options) as server,
        Client(server.address) as client,
    ):
        client.create_study(NAME, SPEC, request_id="create")
        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(lambda n: suggest(client, f"r{n}"), range(25))) == 25
        with grpc.insecure_channel(server.address) as channel:
            stub = SuggestServiceStub(channel)

            def send_until_refused() -> None:
                for _ in range(1000):
                    stub.GetStudy(pb.GetStudyRequest(name=str(NAME)), timeout=10)

            with pytest.raises(grpc.RpcError) as told:
                send_until_refused()
        assert told.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        status = rpc_status.from_call(told.value)
        assert status is not None
        for detail in status.details:
            detail.Unpack(info) or detail.Unpack(retry)
        assert info.reason == "RATE_LIMITED"
        assert 0 < retry.retry_delay.ToMilliseconds() <= 25


def test_a_rate_limited_client_without_time_to_wait_gets_the_error(
    tmp_path: Path, file: Path
) -> None:
    options = limited(file, "defaults: {rate: 0.01, burst: 1}")
    with (
        a_server(tmp_path / "studies.db", options=options) as server,
        Client(server.address) as client,
    ):
        with pytest.raises(NotFound):
            client.get_study(NAME)
        with pytest.raises(RateLimited, match=r"sends more than 0\.01 calls a second"):
            client.get_study(NAME)


def test_a_full_namespace_refuses_new_trials_but_completes_existing_ones(
    tmp_path: Path, file: Path
) -> None:
    options = limited(file, "namespaces: {default: {trials: 3, measurements: 4}}")
    with (
        a_server(tmp_path / "studies.db", options=options) as server,
        Client(server.address) as client,
    ):
        client.create_study(NAME, SPEC, request_id="create")
        client.add_trial(NAME, {"x": 1.0, "kind": "a"}, request_id="queued")
        assert suggest(client, "r0") == 1, "the queued one"
        assert suggest(client, "r1", 2) == 2
        with pytest.raises(LimitReached, match=FULL) as full:
            suggest(client, "r2")
        assert full.value.limit == "trials"
        with pytest.raises(LimitReached):
            client.add_trial(NAME, {"x": 1.0, "kind": "a"}, request_id="added")
        assert suggest(client, "r1", 2) == 2, "a repetition is answered"
        client.report(NAME, 0, [score(step, 0.5) for step in range(3)])
        with pytest.raises(LimitReached, match="has 3 of the 4 measurements allowed, and 2 more"):
            client.report(NAME, 0, [score(step, 0.5) for step in range(5)])
        last = [score(step, 0.5) for step in range(9)]
        assert client.complete(NAME, 0, SUCCEEDED, measurements=last).state is TrialState.SUCCEEDED
        other = StudyName("other", "parabola")
        client.create_study(other, SPEC, request_id="create")
        assert len(client.suggest(other, 10, client_id="c", request_id="r").trials) == 10, (
            "others have their own"
        )
        client.delete_study(NAME)
        client.create_study(NAME, SPEC, request_id="again")
        eventually(lambda: not refused(client, "after"))


def test_queued_trials_are_handed_out_even_if_the_namespace_is_full(
    tmp_path: Path, file: Path
) -> None:
    options = limited(file, "defaults: {trials: 2}")
    with (
        a_server(tmp_path / "studies.db", options=options) as server,
        Client(server.address) as client,
    ):
        client.create_study(NAME, SPEC, request_id="create")
        for number in range(2):
            client.add_trial(NAME, {"x": 1.0, "kind": "a"}, request_id=f"q{number}")
        assert suggest(client, "r", 2) == 2


def test_existing_studies_count_and_repeated_requests_succeed(tmp_path: Path, file: Path) -> None:
    names = [StudyName("default", f"s{number}") for number in range(3)]
    with a_server(tmp_path / "studies.db") as server, Client(server.address) as client:
        client.create_study(names[0], SPEC, request_id="create")
    options = limited(file, "defaults: {studies: 2}")
    with (
        a_server(tmp_path / "studies.db", options=options) as server,
        Client(server.address) as client,
    ):
        for name in (names[0], names[1], names[0], names[1]):
            client.create_study(name, SPEC, request_id="create")
        with pytest.raises(LimitReached, match="has 2 of the 2 studies"):
            client.create_study(names[2], SPEC, request_id="create")
        client.create_study(names[0], SPEC, request_id="create")


def test_a_changed_file_of_limits_applies_and_a_bad_one_changes_nothing(
    tmp_path: Path, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = limited(file, "defaults: {trials: 1}")
    with (
        a_server(tmp_path / "studies.db", options=options) as server,
        Client(server.address) as client,
    ):
        client.create_study(NAME, SPEC, request_id="create")
        assert suggest(client, "r0") == 1
        assert refused(client, "r1")
        file.write_text("defaults: {trials: many}")
        eventually(lambda: "many is not a limit" in caplog.text)
        assert refused(client, "r1")
        file.write_text("defaults: {trials: 2}")
        eventually(lambda: not refused(client, "r1"))


def test_two_servers_on_one_store_share_a_limit_after_their_next_count(
    tmp_path: Path, file: Path
) -> None:
    options = limited(file, "defaults: {trials: 4}")
    second = StudyName("default", "second")
    with (
        a_server(tmp_path / "studies.db", options=options) as one,
        a_server(tmp_path / "studies.db", options=options) as two,
        Client(one.address) as a,
        Client(two.address) as b,
    ):
        a.create_study(NAME, SPEC, request_id="create")
        b.create_study(second, SPEC, request_id="create")
        assert suggest(a, "r", 2) == 2
        assert len(b.suggest(second, 2, client_id="c", request_id="r").trials) == 2

        def told() -> str:
            with pytest.raises(LimitReached) as full:
                b.suggest(second, 3, client_id="c", request_id="more")
            return str(full.value)

        eventually(lambda: "has 4 of the 4 trials" in told())
