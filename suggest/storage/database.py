"""What a store needs of a database: transactions, a place to name in messages, bulk writes.

Definitions only. Implementations: `sqlite`, `postgres`. They raise our errors, with a cure.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection

from suggest.storage.statements import Statements


class Readable(Protocol):
    """Enough to look."""

    @property
    def place(self) -> str:
        """How people name this database; never with a password."""

    def reading(self, *, single: bool = False) -> AbstractContextManager[Connection]:
        """A consistent view for as long as it lasts."""


class Database(Readable, Protocol):
    """Thread-safe. `single`: the caller executes one statement only, which may then be its own transaction."""

    @property
    def statements(self) -> Statements: ...

    def writing(self, *, single: bool = False) -> AbstractContextManager[Connection]:
        """One transaction: committed at the end, or undone."""

    def lock_schema(self, connection: Connection) -> None:
        """Until the transaction's end, no other process changes the schema."""

    def refuse_emptied(self) -> None:
        """For a database without tables. Raises StoreBroken: a store was there before."""

    def close(self) -> None: ...
