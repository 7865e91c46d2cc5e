"""The store in a PostgreSQL database, shared by several servers: a study is owned by the one whose heart beats."""

from __future__ import annotations

from suggest.storage import upgrades
from suggest.storage.heartbeats import OwnedByHeartbeat
from suggest.storage.postgres import Database
from suggest.storage.sql_store import SqlStore


class PostgresStore(SqlStore):
    """`url`: postgresql+psycopg://USER@HOST:PORT/DATABASE, with libpq's options behind a question mark."""

    def __init__(self, url: str, *, sync: str = "normal") -> None:
        database = Database(url, sync=sync)
        try:
            upgrades.prepare(database)
        except BaseException:
            database.close()
            raise
        super().__init__(database, OwnedByHeartbeat(database))
