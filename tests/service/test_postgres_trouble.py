"""PostgreSQL that is down, lacks the database, or has a foreign, newer or older schema: a clear
error, and no loss.
"""

from __future__ import annotations

import os
from contextlib import closing

import psycopg
import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import OperationalError

from suggest.errors import InvalidArgument, StoreBroken, Unavailable
from suggest.server.admin import open_store
from suggest.storage.postgres import translated
from suggest.storage.postgres_store import PostgresStore
from tests import forked
from tests.contract.store_contract import NAME, a_study, measured, running


def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(
        Unavailable, match=r"postgresql\+psycopg://me:\*\*\*@localhost:1/db: no connection"
    ):
        open_store("postgresql+psycopg://me:secret@localhost:1/db")


def test_a_session_that_the_server_has_ended_is_a_broken_connection_without_a_code_too() -> None:
    cause = psycopg.OperationalError("consuming input failed: terminating connection due to …")
    error = OperationalError("INSERT …", {}, cause, connection_invalidated=True)
    with (
        pytest.raises(Unavailable, match=r"the connection broke; .*\(PostgreSQL: consuming input"),
        translated("postgresql+psycopg://db"),
    ):
        raise error


def test_hosts_and_ports_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="multihost"):
        open_store("postgresql+psycopg://me@/db?host=one:1&host=two:2&port=3")


def test_a_database_that_is_missing_is_named(postgres_url: str) -> None:
    missing = make_url(postgres_url).set(database="missing").render_as_string()
    with pytest.raises(Unavailable, match='database "missing" does not exist'):
        open_store(missing)


def test_an_optuna_storage_in_postgres_is_not_mistaken_for_a_tuner_store(postgres_url: str) -> None:
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
        connection.execute("CREATE TABLE studies (study_id INTEGER)")
    with pytest.raises(StoreBroken, match="'studies' that is not tuner's"):
        open_store(postgres_url)


def test_a_text_that_postgres_cannot_store_is_refused(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store:
        store.insert_study(a_study())
        lease = store.take(NAME, uid="default-digits", address="")
        with pytest.raises(InvalidArgument, match="a zero byte"):
            store.hand_out(lease, [running(0, client_id="a\0b")])
        store.hand_out(lease, [running(0)])


def test_a_database_that_was_emptied_while_it_was_in_use_is_named_with_the_cure(
    postgres_url: str,
) -> None:
    with closing(PostgresStore(postgres_url)) as store:
        store.insert_study(a_study())
        lease = store.take(NAME, uid="default-digits", address="")
        with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        cure = (
            "it was emptied or replaced; restore a backup, or restart the server to begin with "
            "an empty store"
        )
        with pytest.raises(Unavailable, match=cure):
            store.study(NAME)
        with pytest.raises(Unavailable, match=cure):
            store.hand_out(lease, [running(0)])


def test_four_concurrent_first_starts_create_one_database(postgres_url: str) -> None:
    program = (
        "import sys; from suggest.server.admin import open_store; open_store(sys.argv[1]).close()"
    )
    starts = [forked.python(program, postgres_url, env=os.environ) for _ in range(4)]
    assert [(start.communicate()[1], start.returncode) for start in starts] == [("", 0)] * 4


def test_frequent_operations_are_one_statement_without_a_transaction(postgres_url: str) -> None:
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement.split()[0])

    with closing(PostgresStore(postgres_url)) as store:
        store.insert_study(a_study())
        lease = store.take(NAME, uid="default-digits", address="")
        event.listen(Engine, "before_cursor_execute", note)
        try:
            store.hand_out(lease, [running(n) for n in range(64)])
            store.add_measurements(lease, 0, [measured(step, 0.5) for step in range(100)])
        finally:
            event.remove(Engine, "before_cursor_execute", note)
    assert [s for s in seen if s == "INSERT"][:2] == ["INSERT", "INSERT"]
    assert len(seen) <= 3, "a heartbeat may have come between"
