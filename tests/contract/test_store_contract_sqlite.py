"""The store contract on SQLite files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from suggest.errors import NotOwner
from suggest.storage.sql_store import StudyStore
from suggest.storage.sqlite_store import SqliteStore
from suggest.storage.store import Lease
from tests.contract.store_contract import NAME, StoreContract, a_study


class TestSqliteStore(StoreContract):
    lock_is_enough = True

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self._path = tmp_path / "studies.db"

    @contextmanager
    def opening(self) -> Iterator[StudyStore]:
        store = SqliteStore(self._path)
        yield store
        store.close()

    def test_a_file_reached_by_two_names_is_one_store(
        self, store: StudyStore, lease: Lease
    ) -> None:
        other_name = self._path.parent / "elsewhere" / "link.db"
        other_name.parent.mkdir()
        other_name.symlink_to(self._path)
        with closing(SqliteStore(other_name)) as other, pytest.raises(NotOwner):
            other.take(NAME, uid="default-digits", address="")

    def test_files_in_a_shared_folder_are_accessible_to_their_owner_only(self) -> None:
        self._path.parent.chmod(0o755)
        with self.opening() as store:
            store.insert_study(record := a_study())
            store.take(NAME, uid=record.study.uid, address="")
            files = [self._path.with_name(self._path.name + end) for end in ("", "-wal", "-shm")]
            assert [oct(file.stat().st_mode & 0o777) for file in files] == ["0o600"] * 3
            assert oct((self._path.parent / "locks").stat().st_mode & 0o777) == "0o700"

    def test_the_permissions_of_an_existing_file_are_not_changed(self) -> None:
        self._path.touch()
        self._path.chmod(0o640)
        with self.opening():
            assert oct(self._path.stat().st_mode & 0o777) == "0o640"
