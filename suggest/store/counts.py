"""How much of the store a namespace takes: counted, not remembered. Slow where there is much (a second for some ten
million rows), so nobody waits for it in earnest."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import func, select

from suggest.store.connections import Connections
from suggest.store.tables import measurements, studies, trials


class Counts(NamedTuple):
    studies: int = 0
    trials: int = 0
    measurements: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def minus(self, other: Counts) -> Counts:
        return Counts(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


def count(database: Connections, namespace: str) -> Counts:
    """A deleted trial counts: its row keeps its number."""
    with database.reading() as connection:
        found = [
            connection.execute(
                select(func.count()).select_from(table).where(table.c.namespace == namespace)
            ).scalar_one()
            for table in (studies, trials, measurements)
        ]
    return Counts(*found)
