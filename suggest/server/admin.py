"""Administration of a store without a running server: open it, read its schema version.

Opening a store checks its location and upgrades its schema. Each function imports what it needs:
the libraries for SQL take a while.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from suggest.errors import NotFound
from suggest.samplers import not_installed
from suggest.storage.location import is_postgres, sqlite_path
from suggest.storage.opening import open_store
from suggest.studies import check
from suggest.url_redaction import redacted_url

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from suggest.storage.database import Database

__all__ = [
    "check",
    "is_postgres",
    "not_installed",
    "open_store",
    "schema_versions",
    "sqlite_file",
]


def schema_versions(storage_url: str) -> tuple[str, str]:
    """Return the schema version of the existing store and the newest version.

    Nothing is changed.

    Raises:
        NotFound: there is no store.
        StoreBroken: the store has a newer version, or belongs to another program.
    """
    from suggest.storage import schema
    from suggest.storage.study_tables import SCHEMA

    with closing(_database(storage_url)) as database:
        current = schema.version(database, SCHEMA)
    if current is None:
        raise NotFound(
            f"{redacted_url(storage_url)}: there is no store yet; the first server that uses it "
            f"creates it"
        )
    return current, SCHEMA.newest


def check_rows(storage_url: str) -> Mapping[str, int]:
    """Read every row of a store with the newest schema.

    Return their numbers by table. Raises StoreBroken.
    """
    with closing(open_store(storage_url)) as store:
        return store.check()


def sqlite_file(storage_url: str) -> Path | None:
    """Return the file of a SQLite store, which need not exist, or None for PostgreSQL.

    Raises InvalidArgument.
    """
    if is_postgres(storage_url):
        return None
    return sqlite_path(storage_url, make_folder=False).resolve()


def _database(storage_url: str) -> Database:
    if is_postgres(storage_url):
        from suggest.storage.postgres import PostgresDatabase

        return PostgresDatabase(storage_url)
    path = sqlite_path(storage_url, make_folder=False)
    if not path.exists():  # opening it would create it
        raise NotFound(f"{path}: there is no store yet; the first server that uses it creates it")
    from suggest.storage.sqlite import SqliteDatabase

    return SqliteDatabase(path)
