"""A server and its store where the system gives no more threads."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from sqlalchemy import text

from suggest import threads
from suggest.errors import Unavailable
from suggest.storage.sqlite import WRITES, SqliteDatabase
from suggest.v1 import suggest_pb2 as pb
from suggest.v1.suggest_pb2_grpc import SuggestServiceStub
from tests.service.running import a_server


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_cannot_start_is_an_error_with_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(Unavailable, match=r"cannot start another thread; .*ulimit -u"):
        threads.started(list, "idle")


def test_a_call_that_needs_another_thread_is_answered_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = pb.ListStudiesRequest(parent="namespaces/default")
    with (
        a_server(tmp_path / "studies.db") as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        stub = SuggestServiceStub(channel)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(grpc.RpcError) as refused:
                stub.ListStudies(request, timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "cannot start another thread" in str(refused.value.details())
        assert list(stub.ListStudies(request, timeout=10).studies) == []


def test_a_database_without_a_thread_for_checkpoints_takes_writes_and_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with closing(SqliteDatabase(tmp_path / "s.db")) as database:
        with database.writing() as connection:
            connection.execute(text("CREATE TABLE words (word TEXT)"))
        for _ in range(WRITES):
            with database.writing(single=True) as connection:
                connection.execute(text("INSERT INTO words VALUES ('a word')"))
        with database.reading() as connection:
            rows = connection.execute(text("SELECT count(*) FROM words")).scalar()
    assert rows == WRITES
