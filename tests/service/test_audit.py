"""The audit log has a line for each change, refused or not, and callers cannot inject lines."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from suggest.server import Protection
from suggest.server.access import audit
from suggest.v1 import suggest_pb2 as pb
from tests.conditions import eventually
from tests.service.granted import Refusal, call, secret, tokens_file
from tests.service.running import a_server
from tests.service.test_authentication import creation

STUDY = "namespaces/default/studies/s"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The lines of the audit log as they are written, without their times."""
    with caplog.at_level(logging.INFO, audit.log.name):
        written: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: written.append(_without_time(record.getMessage()))  # type: ignore[method-assign]
        audit.log.addHandler(handler)
        yield written
        audit.log.removeHandler(handler)


def _without_time(line: str) -> str:
    event, time, rest = line.split(" ", 2)
    assert time.startswith("time=20")
    return f"{event} {rest}"


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[grpc.Channel]:
    file = tokens_file(tmp_path / "t.yaml", me=("all", ["default"]), reader=(["read"], "all"))
    with (
        a_server(
            tmp_path / "s.db", "127.0.0.1:0", protection=Protection(tokens=str(file))
        ) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        yield channel


def test_each_change_is_logged_and_reads_are_not(channel: grpc.Channel, lines: list[str]) -> None:
    call(channel, "CreateStudy", creation(STUDY), secret("me"))
    call(channel, "CreateStudy", creation(STUDY), secret("reader"))
    call(channel, "CreateStudy", creation("namespaces/foreign/studies/s"), secret("me"))
    call(channel, "GetStudy", pb.GetStudyRequest(name=STUDY), secret("me"))
    call(channel, "GetStudy", pb.GetStudyRequest(name="namespaces/foreign/studies/s"), secret("me"))
    call(channel, "DeleteTrial", pb.DeleteTrialRequest(name=f"{STUDY}/trials/0"), None)
    call(channel, "DeleteTrial", pb.DeleteTrialRequest(name=f"{STUDY}/trials/0"), secret("me"))
    assert lines == [
        f"event=change who=me method=CreateStudy resource={STUDY} request=r decision=allowed "
        f"peer=127.0.0.1",
        f"event=change who=reader method=CreateStudy resource={STUDY} request=r decision=denied "
        "reason=PERMISSION_DENIED peer=127.0.0.1",
        "event=change who=me method=CreateStudy resource=namespaces/foreign/studies/s request=r "
        "decision=denied "
        "reason=PERMISSION_DENIED peer=127.0.0.1",
        "event=change who=127.0.0.1 method=DeleteTrial decision=denied reason=UNAUTHENTICATED "
        "peer=127.0.0.1",
        f"event=change who=me method=DeleteTrial resource={STUDY}/trials/0 decision=failed "
        f"reason=NOT_FOUND "
        "peer=127.0.0.1",
    ]


def test_a_line_break_in_a_name_starts_no_line_in_the_audit_log(
    channel: grpc.Channel, lines: list[str]
) -> None:
    forged = "x\nevent=change who=root decision=allowed"
    call(
        channel,
        "DeleteStudy",
        pb.DeleteStudyRequest(name=f"namespaces/default/studies/{forged}\u2028é"),
        secret("me"),
    )
    asking = pb.SuggestTrialsRequest(
        parent=STUDY, count=1, client_id="c", request_id=f"{forged}\r\x1b[2J"
    )
    call(channel, "SuggestTrials", asking, secret("me"))
    assert len(lines) == 2
    for line in lines:
        assert line.isascii()
        assert line.isprintable()
        assert "\\nevent=change who=root decision=allowed" in line
        assert (
            line.endswith("decision=failed reason=INVALID_ARGUMENT peer=127.0.0.1")
            or "reason=NOT_FOUND" in line
        )


def test_a_change_is_recorded_even_if_its_caller_disconnects(
    tmp_path: Path, lines: list[str]
) -> None:
    path = tmp_path / "s.db"
    with a_server(path) as server, closing(sqlite3.connect(path, isolation_level=None)) as another:
        another.execute("BEGIN IMMEDIATE")
        with grpc.insecure_channel(server.address) as channel:
            gone = call(channel, "CreateStudy", creation(STUDY), None, timeout_s=0.3)
        assert isinstance(gone, Refusal)
        assert lines == []
        another.execute("ROLLBACK")
        eventually(lambda: lines)
    (line,) = lines
    assert f"method=CreateStudy resource={STUDY} request=r decision=allowed peer=" in line


def test_no_secret_is_written(
    channel: grpc.Channel, lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    call(channel, "CreateStudy", creation(STUDY), secret("me"))
    call(channel, "CreateStudy", creation(STUDY), secret("nobody"))
    assert len(lines) == 2
    assert secret("me") not in caplog.text
    assert secret("nobody") not in caplog.text
