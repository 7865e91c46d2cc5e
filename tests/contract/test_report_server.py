"""Katib's DBManager of this machine: whose connections it takes, what it refuses, and when it ends."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from controller.runtime.report_address import LOCK, ReportAddress, credentials, is_held, known_address, report_variables
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.katib.v1beta1.api_pb2_grpc import DBManagerStub
from tests.e2e.cli import eventually


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of an experiment with a supervisor, until the test ends."""
    (tmp_path / "live").mkdir()
    lock = os.open(tmp_path / "supervisor.lock", os.O_RDWR | os.O_CREAT)
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


def said(port: int, text: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(text.encode())
        return connection.recv(1000)


def test_only_who_has_the_token_is_connected(folder: Path) -> None:
    port, token = address(folder)
    target = "CONNECT katib-db-manager.kubeflow:6789 HTTP/1.1\r\n"
    allowed = f"Proxy-Authorization: Basic {credentials(token)}\r\n\r\n"
    wrong = f"Proxy-Authorization: Basic {credentials('guessed')}\r\n\r\n"
    assert [said(port, text).split()[1] for text in (target + allowed, target + wrong, f"{target}\r\n")] == [
        b"200",
        b"407",
        b"407",
    ]
    assert said(port, f"GET / HTTP/1.1\r\n{allowed}").split()[1] == b"407"
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
            head = f"CONNECT {target} HTTP/1.1\r\nProxy-Authorization: Basic {credentials(token)}\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
            connection.sendall(b"hello")
            assert connection.recv(100) == b"HELLO"
        answering.join()


def test_a_report_is_in_the_file_of_the_newest_attempt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables(folder).items():
        monkeypatch.setenv(name, value)
    for number, name in ((1, "search-x-1"), (10, "search-x-1-r10"), (2, "search-x-1-r2"), (1, "search-x-11")):
        attempt = folder / f"{name}.{number}"
        (attempt / "output").mkdir(parents=True)
        (folder / "live" / name).symlink_to(attempt)
    log = pb.ObservationLog(metric_logs=[pb.MetricLog(metric=pb.Metric(name="loss", value="0.5"))])
    with grpc.insecure_channel("katib-db-manager.kubeflow:6789") as channel:
        stub = DBManagerStub(channel)
        stub.ReportObservationLog(
            pb.ReportObservationLogRequest(trial_name="search-x-1", observation_log=log), timeout=60
        )
        with pytest.raises(grpc.RpcError, match="is not running here"):
            stub.ReportObservationLog(
                pb.ReportObservationLogRequest(trial_name="../search-x-1", observation_log=log), timeout=60
            )
    written = {path.relative_to(folder).parts[0]: path.read_text() for path in folder.glob("*/output/metrics.jsonl")}
    assert written == {"search-x-1-r10.10": '{"loss": 0.5}\n'}


def test_a_server_that_was_killed_is_followed_by_one_with_the_same_address(folder: Path) -> None:
    before = address(folder)
    os.kill(json.loads((folder / LOCK).read_text())["pid"], signal.SIGKILL)
    eventually(lambda: not is_held(folder / LOCK))
    assert address(folder) == before
