"""SQL statements are compiled once in a process, for all its SQLite databases."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, select
from sqlalchemy.engine.interfaces import CacheStats
from sqlalchemy.schema import CreateTable

from suggest.storage.sqlite import SqliteDatabase
from suggest.storage.study_tables import studies


def found_compiled(connection: Connection) -> bool:
    result = connection.execute(select(studies.c.study))
    return result.context.cache_hit is CacheStats.CACHE_HIT


def test_databases_and_their_connections_share_what_is_compiled(tmp_path: Path) -> None:
    for name in ("first.db", "second.db"):
        with closing(SqliteDatabase(tmp_path / name)) as database:
            with database.writing() as connection:
                connection.execute(CreateTable(studies))
                found = [found_compiled(connection)]
            with database.writing(single=True) as connection:
                found.append(found_compiled(connection))
            with database.reading() as connection:
                found.append(found_compiled(connection))
        assert found[1:] == [True, True]
    assert found == [True, True, True]
