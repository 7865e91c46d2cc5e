"""Administration of a store without a running server: open it,
read its schema version, check a server's settings.

Opening a store checks its location and upgrades its schema. Libraries for SQL and Optuna are
imported when first used.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from suggest.errors import NotFound
from suggest.lazy_module import LazyModule
from suggest.samplers import not_installed
from suggest.storage.location import is_postgres, sqlite_path
from suggest.storage.opening import open_store
from suggest.studies import check
from suggest.url_redaction import redacted_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from suggest.imports import Source
    from suggest.optuna_storage import optuna_studies
    from suggest.samplers import axis, grid
    from suggest.server import start_check
    from suggest.server.access.protection import Protection
    from suggest.server.server_options import ServerOptions
    from suggest.server.start_check import StartFinding as StartFinding
    from suggest.space import Space
    from suggest.storage import postgres, schema, sqlite, study_tables
    from suggest.storage.database import Database
else:
    axis, grid = LazyModule("suggest.samplers.axis"), LazyModule("suggest.samplers.grid")
    optuna_studies = LazyModule("suggest.optuna_storage.optuna_studies")
    postgres, sqlite = LazyModule("suggest.storage.postgres"), LazyModule("suggest.storage.sqlite")
    schema = LazyModule("suggest.storage.schema")
    start_check = LazyModule("suggest.server.start_check")
    study_tables = LazyModule("suggest.storage.study_tables")

__all__ = [
    "check",
    "check_up",
    "grid_points",
    "is_optunas",
    "not_installed",
    "open_store",
    "optuna_source",
    "schema_versions",
    "sqlite_file",
]


def check_up(
    address: str,
    storage_url: str,
    *,
    advertise: str,
    protection: Protection,
    options: ServerOptions,
) -> Iterator[StartFinding]:
    """Check what a server with these settings needs to start, without starting one."""
    return start_check.look(
        address, storage_url, advertise=advertise, protection=protection, options=options
    )


def schema_versions(storage_url: str) -> tuple[str, str]:
    """Return the schema version of the existing store and the newest version.

    Nothing is changed.

    Raises:
        NotFound: there is no store.
        StoreBroken: the store has a newer version, or belongs to another program.
    """
    with closing(_database(storage_url)) as database:
        current = schema.version(database, study_tables.SCHEMA)
    if current is None:
        raise NotFound(
            f"{redacted_url(storage_url)}: there is no store yet; the first server that uses it "
            f"creates it"
        )
    return current, study_tables.SCHEMA.newest


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
        return postgres.PostgresDatabase(storage_url)
    path = sqlite_path(storage_url, make_folder=False)
    if not path.exists():  # opening it would create it
        raise NotFound(f"{path}: there is no store yet; the first server that uses it creates it")
    return sqlite.SqliteDatabase(path)


def is_optunas(storage_url: str) -> bool:
    """Return whether an existing database contains Optuna's studies, not Tuner's. Changes nothing.

    Raises:
        NotFound: there is no database, or it contains studies of neither.
        Unavailable: the database does not answer.
    """
    tables = optuna_studies.tables_of(storage_url)
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
    return optuna_studies.read(place, study, value, objectives, constraints)


def grid_points(space: Space) -> int | None:
    """Return how many points a grid of the space has; None if it cannot have one."""
    has_grid = all(axis.axis_of(parameter.domain) is not None for parameter in space.parameters)
    return grid.Grid(space, {}).total if has_grid else None
