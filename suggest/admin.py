"""What operators do to a store. Today: open it, which checks its place and schema, and upgrades it."""

from __future__ import annotations

from suggest.errors import InvalidArgument, Problem
from suggest.store.location import sqlite_path
from suggest.store.sql import SqlStore
from suggest.store.sqlite import SYNC


def open_store(storage_url: str, *, sync: str = "normal") -> SqlStore:
    """Raises InvalidArgument (no such kind of store), Unavailable, StoreBroken. `sync`: normal or full."""
    if sync not in SYNC:
        raise InvalidArgument([Problem("sync", f"{sync!r} is not known; use {' or '.join(SYNC)}")])
    return SqlStore(sqlite_path(storage_url), sync=sync)
