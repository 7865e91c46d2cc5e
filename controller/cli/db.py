"""`tuner db`: the schema of the databases, backups, restores."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from controller import backup
from controller.app.state_directory import StateDirectory
from controller.cli.exits import ExitCode
from controller.cli.invocation import rendered
from controller.cli.options import state_of, storage_of
from controller.experiment_store import SqlExperimentStore, schema_version, sqlite_database
from controller.experiment_tables import SCHEMA
from controller.phrases import command
from controller.spec import from_document
from suggest import paths, server
from suggest.distribution import VERSION
from suggest.errors import InvalidArgument, NotFound


def check(arguments: argparse.Namespace) -> ExitCode:
    stores = _stores(arguments)
    old = [each for each in stores if each.is_old]
    for each in stores:
        state = f"; the newest is {each.newest}" if each.is_old else ", the newest"
        print(f"{each.label}schema {each.current}{state}")
        if not old:
            with closing(each.open()) as store:
                print(f"{_row_counts(store.check())}; every row can be read")
    if not old:
        return ExitCode.OK
    which = " and ".join(each.name for each in old)
    has = "has an older schema; upgrade it" if len(old) == 1 else "have older schemas; upgrade them"
    cure = rendered(command("db", "upgrade"), arguments)
    print(f"tuner: {which} {has} with: {cure}", file=sys.stderr)
    return ExitCode.UNAVAILABLE


def upgrade(arguments: argparse.Namespace) -> ExitCode:
    for each in _stores(arguments):
        done = ", the newest: nothing to do"
        if each.is_old:
            each.open().close()
            done = f" -> {each.newest}"
        print(f"{each.label}schema {each.current}{done}")
    return ExitCode.OK


class _OpenStore(Protocol):
    def check(self) -> Mapping[str, int]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Store:
    """A database, its schema, and the newest one of its kind.

    label: the beginning of its lines. open: upgrades it.
    """

    name: str
    label: str
    current: str
    newest: str
    open: Callable[[], _OpenStore]

    @property
    def is_old(self) -> bool:
        return self.current != self.newest


def _stores(arguments: argparse.Namespace) -> list[_Store]:
    """Return the study store and, without --storage, controller.db if it exists.

    Changes nothing. Raises NotFound if there is no study store, and StoreBroken.
    """
    storage = storage_of(arguments)
    current, newest = server.admin.schema_versions(storage)
    open_studies = partial(server.admin.open_store, storage)
    if arguments.storage is not None:
        return [_Store("the store", "", current, newest, open_studies)]
    studies = _Store(backup.STUDIES, f"{backup.STUDIES}: ", current, newest, open_studies)
    state = state_of(arguments)
    path = state.controller_db
    found = schema_version(path) if state.has_experiments else None
    if found is None:
        return [studies]
    open_experiments = partial(_experiments, path)
    name, newest = backup.CONTROLLER, SCHEMA.newest
    return [studies, _Store(name, f"{name}: ", found, newest, open_experiments)]


def back_up(arguments: argparse.Namespace) -> ExitCode:
    databases = {name: path for name, path in _databases(arguments).items() if path.exists()}
    target = paths.absolute(arguments.target)
    if not databases:
        raise NotFound(f"{_place(arguments)}: there is nothing to back up yet")
    made_by = f"tuner {VERSION}"
    if arguments.keep is not None:
        if arguments.keep < 1:
            raise InvalidArgument.at("--keep", f"{arguments.keep} would keep none; use 1 or more")
        copies = backup.back_up_next(
            databases, target, keep=arguments.keep, now=datetime.now(UTC), made_by=made_by
        )
    elif target.suffix == ".db":
        studies = databases.get(backup.STUDIES)
        if studies is None:
            raise NotFound(
                f"{_place(arguments)}: there is no study store yet; name a folder to back up the "
                f"rest"
            )
        copies = [backup.back_up_one(studies, target)]
    else:
        copies = backup.back_up(databases, target, made_by=made_by)
    for copy in copies:
        print(f"{copy.path}: {_row_counts(copy.rows)}; verified")
    if arguments.keep is None and target.suffix == ".db" and backup.CONTROLLER in databases:
        print(
            f"tuner: {backup.CONTROLLER} is not in it; name a folder to back up both",
            file=sys.stderr,
        )
    return ExitCode.OK


def restore(arguments: argparse.Namespace) -> ExitCode:
    targets = _databases(arguments)
    databases = backup.contents(paths.absolute(arguments.source))
    sources = {name: path for name, path in databases.items() if name in targets}
    if not sources:
        raise InvalidArgument.at(
            "", f"{arguments.source}: has no {backup.STUDIES}, which is what --storage names"
        )
    for database in backup.restore(sources, targets, force=arguments.force, check=_check_copy):
        previous = (
            "" if database.kept is None else f"; the one that was there is now {database.kept.name}"
        )
        print(f"{database.path}: {_row_counts(database.rows)}{previous}")
    for name, path in targets.items():
        if name not in sources and path.exists():
            print(f"tuner: {path} stays as it is: the backup has none", file=sys.stderr)
    return ExitCode.OK


def _check_copy(name: str, copy: Path) -> None:
    """Open a copy as its owner would. Raises StoreBroken if a newer tuner wrote it."""
    if name == backup.STUDIES:
        server.admin.schema_versions(StateDirectory(copy.parent).storage_url)
    else:
        _experiments(copy).close()


def _experiments(path: Path) -> SqlExperimentStore:
    return SqlExperimentStore(sqlite_database(path), from_document)


def _databases(arguments: argparse.Namespace) -> dict[str, Path]:
    """Return the databases by their names in a backup.

    Raises InvalidArgument for PostgreSQL, which has its own programs for backups.
    """
    if arguments.storage is None:
        state = state_of(arguments)
        return {backup.STUDIES: state.studies_db, backup.CONTROLLER: state.controller_db}
    path = server.admin.sqlite_file(storage_of(arguments))
    if path is None:
        raise InvalidArgument.at(
            "storage",
            "PostgreSQL is backed up by its own programs: pg_dump --format=custom --file=FILE "
            "DATABASE while servers run, pg_restore --clean --if-exists --single-transaction "
            "--dbname=DATABASE FILE while none does",
        )
    return {backup.STUDIES: path}


def _place(arguments: argparse.Namespace) -> str:
    return str(next(iter(_databases(arguments).values())).parent)


def _row_counts(rows: Mapping[str, int]) -> str:
    counted = [
        f"{count} {table if count != 1 else _ONE.get(table, table)}"
        for table, count in rows.items()
        if table in _ONE
    ]
    return ", ".join(counted) or "no rows"


_ONE = {
    "studies": "study",
    "trials": "trial",
    "measurements": "measurement",
    "experiments": "experiment",
    "attempts": "attempt",
    "events": "event",
}
