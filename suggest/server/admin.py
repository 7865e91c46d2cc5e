"""Administration of a store without a running server: open it, read its schema version.

Opening a store checks its location and upgrades its schema. Each function imports what it needs:
the libraries for SQL, and Optuna, take a while.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from suggest.errors import NotFound
from suggest.samplers import not_installed
from suggest.storage.location import is_postgres, sqlite_path
from suggest.storage.opening import open_store
from suggest.studies import check
from suggest.url_redaction import redacted_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from suggest.imports import Source
    from suggest.storage.database import Database

__all__ = [
    "check",
    "is_optunas",
    "is_postgres",
    "not_installed",
    "open_store",
    "optuna_source",
    "schema_versions",
    "sqlite_file",
]


def schema_versions(storage_url: str) -> tuple[str, str]:
    """Return the schema version of the existing store and the newest version.

    Nothing is changed.

    Raises:
        NotFound: there is no store.
        StoreBroken: the store has a newer version, or belongs to another program.
    """
    from suggest.storage import schema
    from suggest.storage.study_tables import SCHEMA

    with closing(_database(storage_url)) as database:
        current = schema.version(database, SCHEMA)
    if current is None:
        raise NotFound(
            f"{redacted_url(storage_url)}: there is no store yet; the first server that uses it "
            f"creates it"
        )
    return current, SCHEMA.newest


def check_rows(storage_url: str) -> Mapping[str, int]:
    """Read every row of a store with the newest schema.

    Return their numbers by table. Raises StoreBroken.
    """
    with closing(open_store(storage_url)) as store:
        return store.check()


def sqlite_file(storage_url: str) -> Path | None:
    """Return the file of a SQLite store, which need not exist, or None for PostgreSQL.

    Raises InvalidArgument.
    """
    if is_postgres(storage_url):
        return None
    return sqlite_path(storage_url, make_folder=False).resolve()


def _database(storage_url: str) -> Database:
    if is_postgres(storage_url):
        from suggest.storage.postgres import PostgresDatabase

        return PostgresDatabase(storage_url)
    path = sqlite_path(storage_url, make_folder=False)
    if not path.exists():  # opening it would create it
        raise NotFound(f"{path}: there is no store yet; the first server that uses it creates it")
    from suggest.storage.sqlite import SqliteDatabase

    return SqliteDatabase(path)


def is_optunas(storage_url: str) -> bool:
    """Return whether an existing database contains Optuna's studies, not Tuner's. Changes nothing.

    Raises:
        NotFound: there is no database, or it contains studies of neither.
        Unavailable: the database does not answer.
    """
    from suggest.optuna_storage.optuna_studies import tables_of

    tables = tables_of(storage_url)
    if {"version_info", "studies", "trials"} <= tables:
        return True
    if "studies" in tables:
        return False
    raise NotFound(f"{redacted_url(storage_url)}: contains neither tuner's nor Optuna's studies")


def optuna_source(
    place: str,
    study: str,
    value: str,
    objectives: Sequence[str] = (),
    constraints: Sequence[str] = (),
) -> Source:
    """Return the finished trials of a study of Optuna, in a database or a journal file.

    `study` may be "" if there is only one. `value` selects the first objective by name or number,
    and may be "" if it is clear. `objectives` and `constraints` are the metrics to read. Raises
    NotFound, InvalidArgument, Unavailable.
    """
    from suggest.optuna_storage.optuna_studies import read

    return read(place, study, value, objectives, constraints)
