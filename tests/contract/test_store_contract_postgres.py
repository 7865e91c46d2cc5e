"""The store contract on a PostgreSQL database, whose tables are emptied for each test.

Making a database takes longer than most of these tests: three hundred files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from suggest.storage.postgres_store import PostgresStore
from suggest.storage.sql_store import StudyStore
from suggest.storage.study_tables import SCHEMA, metadata
from tests.contract.store_contract import StoreContract
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

    @contextmanager
    def opening(self) -> Iterator[StudyStore]:
        store = PostgresStore(self._url)
        yield store
        store.close()
