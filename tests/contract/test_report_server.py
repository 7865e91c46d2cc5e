"""Katib's DBManager of this machine: whose connections it takes, what it refuses, and when it ends."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from controller.core.model import Collection, KatibReports
from controller.runtime.local.listening import SUPERVISOR_LOCK
from controller.runtime.local.report_address import (
    LOCK,
    ReportAddress,
    credentials,
    is_held,
    keep_serving,
    known_address,
    report_variables,
)
from controller.runtime.local.report_server import TrialReports, report_lines
from controller.runtime.local.runtime import LocalRuntime
from controller.runtime.testing import Script
from suggest.katib.v1beta1 import api_pb2 as pb
from tests.contract.local_testbed import LocalTestbed, local_testbed
from tests.e2e.cli import eventually
from tests.katib_stubs import DBManagerStub

CASES = json.loads((Path(__file__).parents[1] / "fixtures/collectors/reports.json").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of an experiment with a supervisor, until the test ends."""
    (tmp_path / "live").mkdir()
    lock = os.open(tmp_path / SUPERVISOR_LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield tmp_path
    finally:
        os.close(lock)
        eventually(lambda: not is_held(tmp_path / LOCK))  # without a supervisor it ends


def variables(folder: Path) -> dict[str, str]:
    return asyncio.run(report_variables(folder, {}))


def address(folder: Path) -> ReportAddress:
    variables(folder)
    found = known_address(folder)
    assert found is not None
    return found


def an_attempt(folder: Path, name: str, number: int = 1) -> Path:
    attempt = folder / f"{name}.{number}"
    (attempt / "output").mkdir(parents=True)
    (folder / "live" / name).symlink_to(attempt)
    return attempt


def report(trial: str) -> None:
    """Report a loss of 0.5 as a trial does, by the variables of this process."""
    log = pb.ObservationLog(metric_logs=[pb.MetricLog(metric=pb.Metric(name="loss", value="0.5"))])
    request = pb.ReportObservationLogRequest(trial_name=trial, observation_log=log)
    with grpc.insecure_channel("katib-db-manager.kubeflow:6789") as channel:
        DBManagerStub(channel).ReportObservationLog(request, timeout=60)


def exchange(port: int, text: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(text.encode())
        return connection.recv(1000)


def test_only_who_has_the_token_is_connected(folder: Path) -> None:
    port, token = address(folder)
    target = "CONNECT katib-db-manager.kubeflow:6789 HTTP/1.1\r\n"
    allowed = f"Proxy-Authorization: Basic {credentials(token)}\r\n\r\n"
    wrong = f"Proxy-Authorization: Basic {credentials('guessed')}\r\n\r\n"
    assert [
        exchange(port, text).split()[1]
        for text in (target + allowed, target + wrong, f"{target}\r\n")
    ] == [
        b"200",
        b"407",
        b"407",
    ]
    foreign = f"{target}Proxy-Authorization: Basic \u00e9\r\n\r\n"
    assert exchange(port, foreign).split()[1] == b"407"
    assert exchange(port, f"GET / HTTP/1.1\r\n{allowed}").split()[1] == b"407"
    assert (folder / LOCK).stat().st_mode & 0o077 == 0


def test_connections_to_other_hosts_are_passed_on(folder: Path) -> None:
    port, token = address(folder)
    with socket.create_server(("127.0.0.1", 0)) as other:
        target = f"127.0.0.1:{other.getsockname()[1]}"

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(connection.recv(100).upper())

        answering = threading.Thread(target=answer)
        answering.start()
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            head = (
                f"CONNECT {target} HTTP/1.1\r\nProxy-Authorization: Basic "
                f"{credentials(token)}\r\n\r\n"
            )
            connection.sendall(head.encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            connection.sendall(b"hello")
            assert connection.recv(100) == b"HELLO"
        answering.join()


def test_the_environments_own_proxy_gets_its_decoded_credentials(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv(
            "https_proxy", f"http://me%40work:p%25w@127.0.0.1:{proxy.getsockname()[1]}/"
        )
        port, token = address(folder)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            head = (
                f"CONNECT example.org:443 HTTP/1.1\r\nProxy-Authorization: Basic "
                f"{credentials(token)}\r\n\r\n"
            )
            connection.sendall(head.encode())
            with proxy.accept()[0] as asked:
                request = asked.recv(1000)
    assert request.startswith(b"CONNECT example.org:443 ")
    assert b64encode(b"me@work:p%w") in request


@pytest.mark.parametrize("case", CASES, ids=[case["claim"] for case in CASES])
def test_a_report_becomes_lines(case: dict[str, Any]) -> None:
    logs = [
        pb.MetricLog(time_stamp=t, metric=pb.Metric(name=name, value=value))
        for t, name, value in case["metric_logs"]
    ]
    assert [json.loads(line) for line in report_lines(pb.ObservationLog(metric_logs=logs))] == case[
        "lines"
    ]


def test_a_report_is_in_the_file_of_the_newest_attempt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables(folder).items():
        monkeypatch.setenv(name, value)
    for number, name in (
        (1, "search-x-1"),
        (10, "search-x-1-r10"),
        (2, "search-x-1-r2"),
        (1, "search-x-11"),
    ):
        an_attempt(folder, name, number)
    report("search-x-1")
    with pytest.raises(grpc.RpcError, match="is not running here"):
        report("../search-x-1")
    written = {
        path.relative_to(folder).parts[0]: path.read_text()
        for path in folder.glob("*/output/metrics.jsonl")
    }
    assert written == {"search-x-1-r10.10": '{"loss": 0.5}\n'}


def test_a_server_that_was_killed_is_followed_by_one_with_the_same_address(folder: Path) -> None:
    before = address(folder)
    os.kill(json.loads((folder / LOCK).read_text())["pid"], signal.SIGKILL)
    eventually(lambda: not is_held(folder / LOCK))
    asyncio.run(keep_serving(folder))
    assert known_address(folder) == before
    assert exchange(before.port, "GET / HTTP/1.1\r\n\r\n").split()[1] == b"407"


def test_a_server_that_is_killed_while_trials_run_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(testbed: LocalTestbed) -> None:
        reports = Collection(KatibReports(), names=("loss",))
        runtime = LocalRuntime(tmp_path, collection=reports)
        await runtime.start(testbed.launch("a", Script(lasts_s=None)))
        before = known_address(tmp_path)
        os.kill(json.loads((tmp_path / LOCK).read_text())["pid"], signal.SIGKILL)
        await asyncio.to_thread(eventually, lambda: not is_held(tmp_path / LOCK))
        await runtime.reconcile()
        assert is_held(tmp_path / LOCK)
        assert known_address(tmp_path) == before
        await runtime.remove("a")
        await runtime.close()

    with local_testbed(tmp_path, monkeypatch) as testbed:
        asyncio.run(run(testbed))
        eventually(lambda: not is_held(tmp_path / LOCK))


def test_a_trials_own_proxy_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(testbed: LocalTestbed) -> None:
        runtime = LocalRuntime(tmp_path, collection=Collection(KatibReports(), names=("loss",)))
        launch = testbed.shell("a", "echo $grpc_proxy > proxy; exec sleep 600")
        own = {**launch.env, "grpc_proxy": "http://own:1"}
        await runtime.start(replace(launch, env=own))
        written = tmp_path / "proxy"
        await asyncio.to_thread(
            eventually, lambda: written.exists() and written.read_text() == "http://own:1\n"
        )
        await runtime.remove("a")
        await runtime.close()

    with local_testbed(tmp_path, monkeypatch) as testbed:
        asyncio.run(run(testbed))
        eventually(lambda: not is_held(tmp_path / LOCK))


def test_a_server_whose_port_refuses_connections_is_not_an_address(folder: Path) -> None:
    """Another server is ending: it holds the lock, and its port is closed already."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, json.dumps({"pid": 0, "port": port, "token": "t"}).encode())
    ending = threading.Timer(0.3, os.close, (lock,))
    ending.start()
    found = variables(folder)
    ending.join()
    assert found["grpc_proxy"] == f"http://trial:t@127.0.0.1:{port}"
    assert exchange(port, "GET / HTTP/1.1\r\n\r\n").split()[1] == b"407"


def test_reports_are_stored_after_the_sockets_folder_was_emptied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Path("/tmp", f"tuner-test-{os.getpid()}")  # a short path, for sockets
    session.mkdir(mode=0o700)
    try:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
        attempt = an_attempt(folder, "search-x-1")
        for name, value in variables(folder).items():
            monkeypatch.setenv(name, value)
        assert list(session.rglob("*-reports.sock"))
    finally:
        shutil.rmtree(session)
    report("search-x-1")
    report("search-x-1")
    assert (attempt / "output" / "metrics.jsonl").read_text() == 2 * '{"loss": 0.5}\n'


def test_a_report_that_was_cut_off_does_not_spoil_the_next_one(folder: Path) -> None:
    attempt = an_attempt(folder, "search-x-1")
    stored = attempt / "output" / "metrics.jsonl"
    reports = TrialReports(folder)
    for before, expected in (
        ('{"loss": 0', '{"loss": 0\n{"loss": 1}\n'),
        ('{"loss": 0}\n', '{"loss": 0}\n{"loss": 1}\n'),
    ):
        stored.write_text(before)
        assert reports.append("search-x-1", [b'{"loss": 1}\n'])
        assert stored.read_text() == expected
