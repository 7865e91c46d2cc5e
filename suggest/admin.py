"""What operators do to a store, and what may be asked of the service's rules without one.

Today: open a store, which checks its place and schema, and upgrades it; check a study's spec. SQL is imported by need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from suggest.errors import InvalidArgument, Problem
from suggest.studies import check

if TYPE_CHECKING:
    from suggest.store.sql import SqlStore

__all__ = ["check", "open_store"]


def open_store(storage_url: str, *, sync: str = "normal") -> SqlStore:
    """Raises InvalidArgument (no such kind of store), Unavailable, StoreBroken. `sync`: normal or full."""
    from suggest.store.location import is_postgres, sqlite_path
    from suggest.store.sqlite import SYNC

    if sync not in SYNC:
        raise InvalidArgument([Problem("sync", f"{sync!r} is not known; use {' or '.join(SYNC)}")])
    if is_postgres(storage_url):
        from suggest.store.postgres_store import PostgresStore

        return PostgresStore(storage_url, sync=sync)
    from suggest.store.sqlite_store import SqliteStore

    return SqliteStore(sqlite_path(storage_url), sync=sync)
