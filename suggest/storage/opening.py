"""Open the store that a URL names. Only the modules of its database are imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suggest.errors import InvalidArgument
from suggest.lazy_module import LazyModule
from suggest.storage.location import is_postgres, sqlite_path

if TYPE_CHECKING:
    from suggest.storage import postgres_store, sqlite_store
    from suggest.storage.sql_store import StudyStore
else:
    postgres_store = LazyModule("suggest.storage.postgres_store")
    sqlite_store = LazyModule("suggest.storage.sqlite_store")

SYNC = ("normal", "full")


def open_store(storage_url: str, *, sync: str = "normal") -> StudyStore:
    """Open the store, and create or upgrade its schema; `sync` is normal or full.

    Raises InvalidArgument for an unknown kind of store, Unavailable, StoreBroken.
    """
    if sync not in SYNC:
        raise InvalidArgument.at("sync", f"{sync!r} is not known; use {' or '.join(SYNC)}")
    if is_postgres(storage_url):
        return postgres_store.PostgresStore(storage_url, sync=sync)
    return sqlite_store.SqliteStore(sqlite_path(storage_url), sync=sync)
