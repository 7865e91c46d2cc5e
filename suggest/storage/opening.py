"""Open the store that a URL names. Only the modules of its database are imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suggest.errors import InvalidArgument
from suggest.storage.location import is_postgres, sqlite_path

if TYPE_CHECKING:
    from suggest.storage.ownership import Claim
    from suggest.storage.sql_store import StudyStore

SYNC = ("normal", "full")


def open_store(storage_url: str, *, sync: str = "normal", claim: Claim | None = None) -> StudyStore:
    """Open the store, and create or upgrade its schema; `sync` is normal or full.

    claim: see `ownership.Claim`. The lock of a study in SQLite cannot be taken away.

    Raises InvalidArgument for an unknown kind of store, Unavailable, StoreBroken.
    """
    if sync not in SYNC:
        raise InvalidArgument.at("sync", f"{sync!r} is not known; use {' or '.join(SYNC)}")
    if is_postgres(storage_url):
        # which a process with the other database does not need
        from suggest.storage.postgres_store import PostgresStore

        return PostgresStore(storage_url, sync=sync, claim=claim)
    from suggest.storage.sqlite_store import SqliteStore

    return SqliteStore(sqlite_path(storage_url), sync=sync)
