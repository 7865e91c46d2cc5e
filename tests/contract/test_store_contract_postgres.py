"""The store contract on a PostgreSQL database, whose tables are emptied for each test.

Making a database takes longer than most of these tests: three hundred files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event

from suggest.storage import postgres
from suggest.storage.opening import open_store
from suggest.storage.postgres_store import PostgresStore
from suggest.storage.sql_store import StudyStore
from suggest.storage.study_tables import SCHEMA, metadata
from tests.contract.store_contract import StoreContract, a_study, running
from tests.postgres import Postgres


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> str:
    url = postgres.new_database()
    PostgresStore(url).close()
    return url


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _place(self, database: str) -> None:
        with psycopg.connect(database.replace("+psycopg", ""), autocommit=True) as connection:
            for table in reversed(
                [table for table in metadata.sorted_tables if table is not SCHEMA.version]
            ):
                connection.execute(f"DELETE FROM {table.name}")  # TRUNCATE would make new files
        self._url = database

    def test_a_study_is_copied_while_its_view_stalls(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(postgres._SETTINGS, "idle_in_transaction_session_timeout", "200")

        def stall() -> None:
            with psycopg.connect(self._url.replace("+psycopg", "")) as connection:
                connection.execute("SELECT pg_sleep(0.5)")

        with self.opening() as store, closing(open_store(f"sqlite:///{tmp_path / 's.db'}")) as copy:
            store.insert_study(a_study())
            assert store.copy_study(a_study().study.name, copy, on_view=stall)

    def test_a_study_is_copied_while_its_copy_stalls(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(postgres._SETTINGS, "idle_in_transaction_session_timeout", "200")
        name = a_study().study.name

        def stall(*_: object) -> None:
            with psycopg.connect(self._url.replace("+psycopg", "")) as connection:
                connection.execute("SELECT pg_sleep(0.5)")

        with closing(open_store(f"sqlite:///{tmp_path / 's.db'}")) as store, self.opening() as copy:
            store.insert_study(a_study())
            lease = store.take(name, uid=a_study().study.uid, address="")
            store.hand_out(lease, [running(0)])
            # Where a large study takes its time: rows are read between two statements of the copy.
            event.listen(store._database._readers, "before_cursor_execute", stall)
            assert store.copy_study(name, copy)
            assert copy.trials(name, states=[], client_id="", after=-1, limit=9) == [running(0)]

    @contextmanager
    def opening(self) -> Iterator[StudyStore]:
        store = PostgresStore(self._url)
        yield store
        store.close()
