"""What operators do with a store, and which rules of the service can be asked for without a server.

Opens a store (which checks its location and upgrades its schema), tells its schema version, checks a study's spec. SQL
is imported on demand.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from suggest.errors import InvalidArgument, NotFound, Problem
from suggest.imports import MAX_ROWS, Source
from suggest.studies import check
from suggest.study import MIN_TRIALS_TO_RANK, Direction, Importance
from suggest.trial import TrialState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from suggest.server.access.protection import Protection
    from suggest.server.server_options import ServerOptions
    from suggest.server.start_check import StartFinding as StartFinding
    from suggest.space import Space
    from suggest.storage.database import Database
    from suggest.storage.sql_store import SqlStudyStore
    from suggest.trial import Trial

__all__ = [
    "MAX_ROWS",
    "Source",
    "check",
    "check_up",
    "importances",
    "is_optunas",
    "open_store",
    "optuna_source",
    "schema_versions",
    "sqlite_file",
]


def open_store(storage_url: str, *, sync: str = "normal") -> SqlStudyStore:
    """Raises InvalidArgument (no such kind of store), Unavailable, StoreBroken. `sync`: normal or full."""
    from suggest.storage.location import is_postgres, sqlite_path
    from suggest.storage.sqlite import SYNC

    if sync not in SYNC:
        raise InvalidArgument([Problem("sync", f"{sync!r} is not known; use {' or '.join(SYNC)}")])
    if is_postgres(storage_url):
        from suggest.storage.postgres_store import PostgresStore

        return PostgresStore(storage_url, sync=sync)
    from suggest.storage.sqlite_store import SqliteStore

    return SqliteStore(sqlite_path(storage_url), sync=sync)


def check_up(
    address: str, storage_url: str, *, advertise: str, protection: Protection, options: ServerOptions
) -> Iterator[StartFinding]:
    """What a server would meet if it were started like this; nothing is."""
    from suggest.server.start_check import look

    return look(address, storage_url, advertise=advertise, protection=protection, options=options)


def schema_versions(storage_url: str) -> tuple[str, str]:
    """The schema of the store that is there, and the newest. Changes nothing.

    Raises NotFound: there is no store. StoreBroken: a newer one, or another program's.
    """
    from suggest.storage import upgrades
    from suggest.url_redaction import redacted_url

    with closing(_database(storage_url)) as database:
        there = upgrades.version(database)
    if there is None:
        raise NotFound(f"{redacted_url(storage_url)}: there is no store yet; the first server that uses it makes it")
    return there, upgrades.HEAD


def sqlite_file(storage_url: str) -> Path | None:
    """The file of an SQLite store, which need not be there; None: PostgreSQL. Raises InvalidArgument."""
    from suggest.storage.location import is_postgres, sqlite_path

    return None if is_postgres(storage_url) else sqlite_path(storage_url, make_folder=False).resolve()


def _database(storage_url: str) -> Database:
    from suggest.storage.location import is_postgres, sqlite_path

    if is_postgres(storage_url):
        from suggest.storage import postgres

        return postgres.PostgresDatabase(storage_url)
    from suggest.storage import sqlite

    path = sqlite_path(storage_url, make_folder=False)
    if not path.exists():  # opening it would make it
        raise NotFound(f"{path}: there is no store yet; the first server that uses it makes it")
    return sqlite.SqliteDatabase(path)


def is_optunas(storage_url: str) -> bool:
    """Whether a database that is there has Optuna's studies in it; else it has ours. Changes nothing.

    Raises NotFound: there is none, or it has neither. Unavailable.
    """
    from suggest.optuna_storage.optuna_database import tables_of

    there = tables_of(storage_url)
    if "suggest_schema_version" in there:
        return False
    if {"version_info", "studies", "trials"} <= there:
        return True
    from suggest.url_redaction import redacted_url

    raise NotFound(f"{redacted_url(storage_url)}: has neither tuner's nor Optuna's studies in it")


def optuna_source(storage_url: str, study: str, value: str) -> Source:
    """The finished trials of a study in an Optuna database; `study`: "" if it has one only. `value`: whose objective's,
    by name or number; "" if there is only one. Raises NotFound, InvalidArgument, Unavailable."""
    from suggest.optuna_storage.optuna_database import read

    return read(storage_url, study, value)


def importances(space: Space, trials: Iterable[Trial], *, direction: Direction) -> list[Importance]:
    """How much each parameter matters, the most important first; without a value where there are too few trials.

    The same trials give the same answer. Two seconds at most, and no import of Optuna where nothing can be said.
    """
    told = [t for t in trials if t.state is TrialState.SUCCEEDED and t.value is not None]
    if len(told) < MIN_TRIALS_TO_RANK:
        names = [p.name for p in space.parameters if p.domain.count != 1]
        return [Importance(name, sum(name in t.parameters for t in told)) for name in names]
    from suggest.optuna_storage import importance

    return importance.importances(space, told, direction=direction)
