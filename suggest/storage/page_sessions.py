"""The sessions of the page of a server in SQL: they outlive the server, and each server of a
database has them.

No token is stored: what is sealed cannot be read without the id of the session,
which only the browser has.
"""

from __future__ import annotations

from sqlalchemy import delete, insert, select, update

from suggest.storage.database import Database
from suggest.storage.study_tables import page_sessions

_MICROSECONDS = 1_000_000


class PageSessions:
    """Sessions of people who are signed in to a server's page, by the hash of their ids.

    They belong to no study.

    What is sealed in a session is opaque to the store, and so is its owner.
    Times are in seconds since the epoch.

    The caller closes the database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, key: str) -> tuple[bytes, float] | None:
        """Return what is sealed in the session, and when it was used last."""
        query = select(page_sessions.c.sealed, page_sessions.c.used_us).where(
            page_sessions.c.key == key
        )
        with self._database.reading(single=True) as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else (row.sealed, row.used_us / _MICROSECONDS)

    def begin(
        self,
        key: str,
        sealed: bytes,
        owner: str,
        used_s: float,
        *,
        oldest_s: float,
        most: int,
        most_of_owner: int,
    ) -> None:
        """Add a session.

        Delete those last used before `oldest_s`, and the longest unused, first of the owner, then
        of all, so that at most `most_of_owner` and `most` are left.
        """
        it = page_sessions.c
        by_use = select(it.key).order_by(it.used_us.desc(), it.key)
        kept_of_owner = by_use.where(it.owner == owner).limit(most_of_owner)
        row = {"key": key, "sealed": sealed, "owner": owner, "used_us": _us(used_s)}
        with self._database.writing() as connection:
            connection.execute(delete(page_sessions).where(it.used_us < _us(oldest_s)))
            connection.execute(insert(page_sessions).values(row))
            connection.execute(
                delete(page_sessions).where(it.owner == owner, it.key.not_in(kept_of_owner))
            )
            connection.execute(delete(page_sessions).where(it.key.not_in(by_use.limit(most))))

    def use(self, key: str, used_s: float) -> None:
        """Store the time of the last use, unless a later one is stored.

        A session that has ended is not an error.
        """
        it, used_us = page_sessions.c, _us(used_s)
        with self._database.writing(single=True) as connection:
            connection.execute(
                update(page_sessions)
                .where(it.key == key, it.used_us < used_us)
                .values(used_us=used_us)
            )

    def end(self, key: str) -> None:
        """Delete a session. One that has ended is not an error."""
        with self._database.writing(single=True) as connection:
            connection.execute(delete(page_sessions).where(page_sessions.c.key == key))


def _us(seconds: float) -> int:
    return round(seconds * _MICROSECONDS)
