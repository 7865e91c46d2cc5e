"""The store contract on PostgreSQL databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from suggest.storage.postgres_store import PostgresStore
from suggest.storage.sql_store import StudyStore
from tests.contract.store_contract import StoreContract


class TestPostgresStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _place(self, postgres_url: str) -> None:
        self._url = postgres_url

    @contextmanager
    def opening(self) -> Iterator[StudyStore]:
        store = PostgresStore(self._url)
        yield store
        store.close()
