"""No call waits forever: a call without a deadline has the server's default, and locks are not
awaited for longer.
"""

from __future__ import annotations

import contextvars
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from suggest import deadline
from suggest.errors import TimedOut, Unavailable
from suggest.grpc_status import error_of
from suggest.studies.sessions import StudySessions
from suggest.studies.trial_leases import AwakeClock
from suggest.v1.suggest_pb2_grpc import SuggestServiceStub
from tests.service.running import NAME, SPEC, a_server
from tests.service.test_authentication import creation


def test_a_call_without_a_deadline_gets_the_servers_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "DEFAULT_S", 0.2)
    path = tmp_path / "s.db"
    with (
        a_server(path) as server,
        grpc.insecure_channel(server.address) as channel,
        closing(sqlite3.connect(path, isolation_level=None)) as another,
    ):
        another.execute("BEGIN IMMEDIATE")  # held for longer than the call's deadline
        with pytest.raises(grpc.RpcError) as raised:
            SuggestServiceStub(channel).CreateStudy(creation(str(NAME)))
        another.execute("ROLLBACK")
    error = error_of(raised.value, address=server.address, timeout_s=1)
    assert isinstance(error, TimedOut)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_worker_waits_for_a_study_as_long_as_its_call_may(tmp_path: Path) -> None:
    from suggest.server.admin import open_store
    from suggest.studies import StudyService

    store = open_store(f"sqlite:///{tmp_path}/s.db")
    try:
        StudyService(store, address="").create_study(NAME, SPEC, request_id="create")
        sessions = StudySessions(store, address="", clock=AwakeClock())

        def late() -> None:
            deadline.begin(0.05)
            with (
                pytest.raises(Unavailable, match="parabola is busy with other calls; try again"),
                sessions.writing(NAME),
            ):
                pass

        with sessions.writing(NAME):
            waiting = threading.Thread(target=contextvars.Context().run, args=(late,))
            waiting.start()
            waiting.join(20)
            assert not waiting.is_alive()
        sessions.close()
    finally:
        store.close()


def test_waiting_outside_of_a_call_has_a_limit_too() -> None:
    assert contextvars.Context().run(deadline.left_s, deadline.LOCK_S) == deadline.LOCK_S


def test_a_call_has_the_deadline_that_the_client_sent() -> None:
    def call() -> float:
        deadline.begin(2.0)
        return deadline.left_s(deadline.LOCK_S)

    assert 0 < contextvars.Context().run(call) <= 2.0
