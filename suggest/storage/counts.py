"""How much of the store a namespace takes: counted, not remembered. Slow where there is much (a second for some ten
million rows), so nobody waits for it in earnest."""

from __future__ import annotations

from sqlalchemy import func, select

from suggest.storage.database import Connections
from suggest.storage.store import Counts
from suggest.storage.study_tables import measurements, studies, trials


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
