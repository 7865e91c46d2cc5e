"""The contract, over SQLite files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from suggest.errors import NotOwner
from suggest.store.protocol import Lease, Store
from suggest.store.sql import SqlStore
from tests.contract.store_contract import NAME, StoreContract


class TestSqliteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._path = tmp_path / "studies.db"

    @contextmanager
    def opening(self) -> Iterator[Store]:
        store = SqlStore(self._path)
        yield store
        store.close()

    def test_a_file_reached_by_two_names_is_one_store(self, store: Store, lease: Lease) -> None:
        other_name = self._path.parent / "elsewhere" / "link.db"
        other_name.parent.mkdir()
        other_name.symlink_to(self._path)
        with closing(SqlStore(other_name)) as other, pytest.raises(NotOwner):
            other.take(NAME, uid="default-digits", address="")
