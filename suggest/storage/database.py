"""The database protocol of a store: transactions, a place to name in messages, bulk writes.

Definitions only. Implementations: `sqlite`, `postgres`.
They raise the types of `suggest.errors`, with a cure.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from suggest.errors import StoreBroken

if TYPE_CHECKING:
    from sqlalchemy import Connection


class DamagedRow(Exception):
    """A row of the store has what nobody wrote there, or a table or column is missing."""

    def broken(self, place: str) -> StoreBroken:
        """Return the error for people."""
        return StoreBroken(
            f"{place} is damaged ({self}); restore a backup (tuner db restore DIR), or see with "
            "tuner db check what else is damaged"
        )


class Readable(Protocol):
    """A database that can be read."""

    @property
    def place(self) -> str:
        """The name of this database in messages; never contains a password."""

    def reading(self, *, single: bool = False) -> AbstractContextManager[Connection]:
        """Open a connection with a consistent view of the database until the block ends."""


class Database(Readable, Protocol):
    """A database that can be read and written. Thread-safe.

    `single`: the caller executes only one statement, which may then be its own transaction.
    """

    @property
    def restarts(self) -> int:
        """How often a connection led to another server instance than the one before.

        It has restarted, failed over or was restored, so the last commits may be lost.
        """

    def writing(self, *, single: bool = False) -> AbstractContextManager[Connection]:
        """Open a transaction: committed at the end of the block, rolled back on an exception."""

    def lock_schema(self, connection: Connection) -> None:
        """Keep other processes from changing the schema until the transaction ends."""

    def check_pages(self, connection: Connection) -> None:
        """Read every page of the database. Raises StoreBroken."""

    def refuse_emptied(self) -> None:
        """Check a database without tables. Raises StoreBroken if it contained a store before."""

    def remember_store(self) -> None:
        """Note that there is a store, for `refuse_emptied`."""

    def close(self) -> None: ...
