"""The contract, over SQLite files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from suggest.store.protocol import Store
from suggest.store.sql import SqlStore
from tests.contract.store_contract import StoreContract


class TestSqliteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._path = tmp_path / "studies.db"

    @contextmanager
    def opening(self) -> Iterator[Store]:
        store = SqlStore(self._path)
        yield store
        store.close()
