"""Back up the SQLite databases of a state directory while they are in use,
and restore them while they are not.

All databases are copied as of the same moment, in the state in which a crash would have left them,
and every copy is verified. A restore keeps the databases that it replaces. If a restore is killed,
the next process that opens the database notices. This module knows nothing about studies and
experiments except which table identifies each database.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from suggest import failpoints
from suggest.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    StoreBroken,
    Unavailable,
)
from suggest.storage.sqlite_file import BUSY_TIMEOUT_S, SIDE_FILES, restoring, trouble_of

MANIFEST = "backup.json"
STUDIES, CONTROLLER = "studies.db", "controller.db"
_NAMED_BY_TIME = "%Y-%m-%dT%H-%M-%S.%fZ"

_LONGEST = timedelta(days=1)  # that a backup takes

_SWAP = failpoints.register("controller.backup.swap")

_VERSION_TABLES = {
    "study_schema_version": STUDIES,
    "controller_schema_version": CONTROLLER,
}
_HIDDEN = frozenset(_VERSION_TABLES)  # not shown to people
_PAGES = 4096  # copied at a time, so that Ctrl-C takes effect between two portions
# The bytes of a database file that SQLite locks: PENDING, RESERVED and the range of SHARED.
_LOCKS_AT, _LOCKS_LENGTH = 0x40000000, 512


@dataclass(frozen=True, slots=True)
class Copy:
    """A verified copy of one database; `rows` has the number of rows by table."""

    path: Path
    rows: Mapping[str, int]
    sha256: str


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored database. kept: the new path of the one that it replaced; None: there was none."""

    path: Path
    rows: Mapping[str, int]
    kept: Path | None


def back_up(databases: Mapping[str, Path], folder: Path, *, made_by: str) -> list[Copy]:
    """Copy databases, given by their names in the backup, into a new folder.

    The folder appears once it is complete. Other processes keep reading and writing; writers wait
    for a few milliseconds at the beginning.

    Raises:
        AlreadyExists: The folder exists and is not empty.
        NotFound: A database does not exist yet.
        Unavailable: A file cannot be read or written now.
        StoreBroken: A database is damaged, or a restore of it was interrupted.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise AlreadyExists(f"{folder}: already exists; name a new folder")
    with _folder_beside(folder, "partial", shown=folder) as partial:
        with _snapshots(databases) as readers:
            copies = [
                _copy(reader, databases[name], partial / name) for name, reader in readers.items()
            ]
        with _translated(partial):
            _write_manifest(partial / MANIFEST, copies, made_by)
            _sync(partial)
            if folder.exists():
                folder.rmdir()
            partial.rename(folder)
            _sync(folder.parent)
    return [Copy(folder / copy.path.name, copy.rows, copy.sha256) for copy in copies]


def back_up_next(
    databases: Mapping[str, Path], folder: Path, *, keep: int, now: datetime, made_by: str
) -> list[Copy]:
    """Copy databases as `back_up` does, into a folder of `folder` that is named by the time.

    Then remove all but the newest `keep` of these, and incomplete ones of the days before. Nothing
    else in `folder` is touched.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    copies = back_up(databases, folder / now.strftime(_NAMED_BY_TIME), made_by=made_by)
    complete = (path for path in folder.iterdir() if (path / MANIFEST).is_file())
    old = sorted(path for path in complete if _begun(path.name))[:-keep]
    for path in (*old, *_left_by_killed(folder, now)):
        with _translated(path):
            shutil.rmtree(path)
    return copies


def _begun(name: str) -> datetime | None:
    """Return when `back_up_next` began the backup of this name; None for another name."""
    try:
        return datetime.strptime(name, _NAMED_BY_TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def _left_by_killed(folder: Path, now: datetime) -> Iterator[Path]:
    """Yield what killed calls of `back_up_next` have left, as large as the databases."""
    for path in folder.glob(".*.partial-*"):
        begun = _begun(path.name[1:].rpartition(".partial-")[0])
        # A network file system may have no locks that tell.
        if begun is not None and now - begun > _LONGEST:
            yield path


def back_up_one(database: Path, target: Path) -> Copy:
    """Copy one database into a new file. Raises the same errors as `back_up`."""
    if target.exists():
        raise AlreadyExists(f"{target}: already exists; name a new file")
    with _folder_beside(target, "partial", shown=target.parent) as folder:
        with _snapshots({target.name: database}) as readers:
            copy = _copy(readers[target.name], database, folder / target.name)
        with _translated(target):
            copy.path.rename(target)
            _sync(target.parent)
    return Copy(target, copy.rows, copy.sha256)


def contents(source: Path) -> dict[str, Path]:
    """Return the databases of a backup by their names; `source` is its folder or a single database.

    Raises:
        NotFound: There is no such backup, or the folder has no database.
        InvalidArgument: A file is not the database that its name says, or not a tuner store.
    """
    if source.is_dir():
        files = {name: source / name for name in (STUDIES, CONTROLLER) if (source / name).exists()}
        if not files:
            raise NotFound(
                f"{source}: contains neither {STUDIES} nor {CONTROLLER}; name a folder of tuner "
                f"db backup"
            )
        for name, path in files.items():
            if (kind := _kind(path)) != name:
                raise InvalidArgument.at("", f"{path}: is a {kind}, not a {name}")
        return files
    if not source.exists():
        raise NotFound(f"{source}: there is no such backup")
    return {_kind(source): source}


def restore(
    sources: Mapping[str, Path],
    targets: Mapping[str, Path],
    *,
    force: bool,
    check: Callable[[str, Path], None],
) -> list[Restored]:
    """Restore databases, given by name, to the target paths, and keep existing ones beside them.

    No target is changed unless every source is whole and no process has any target open. A killed
    restore can be repeated; until then no process opens the databases.

    Args:
        force: Replace existing databases.
        check: Opens a copy in the way its owner would, and raises if that fails.

    Raises:
        AlreadyExists: A target exists and `force` is not set.
        FailedPrecondition: A process has a target open.
        StoreBroken: The backup is damaged.
        Unavailable: A file cannot be read or written now.
    """
    existing = [
        targets[name] for name in sources if targets[name].exists() and targets[name].stat().st_size
    ]
    if existing and not force:
        raise AlreadyExists(
            f"{existing[0]}: a store exists; replace it with --force (it is kept under another "
            f"name)"
        )
    with ExitStack() as undo:
        prepared: list[tuple[Path, Copy]] = []
        for name, source in sources.items():
            target = targets[name]
            folder = undo.enter_context(
                _folder_beside(target, "restore", shown=target.parent, mode=0o700)
            )
            _check_sum(source)
            with closing(_connect(source, "mode=ro")) as connection, _translated(source):
                copy = _copy(connection, source, folder / target.name)
            try:
                check(name, copy.path)
            except StoreBroken as error:
                why = str(error).replace(str(copy.path), str(source))
                raise StoreBroken(why) from error
            prepared.append((target, copy))
        for target, _ in prepared:
            undo.enter_context(_locked_alone(target))
        with _translated(prepared[0][0]):
            for target, _ in prepared:
                restoring(target).touch(0o600)
            swapped = []
            for target, copy in prepared:
                with _SWAP:
                    swapped.append(_swap(copy, target))
            for target, _ in prepared:
                restoring(target).unlink()
                # of this and of killed restores
                for leftover in target.parent.glob(f".{target.name}.restore-*"):
                    shutil.rmtree(leftover, ignore_errors=True)
                _sync(target.parent)
        return swapped


def _swap(copy: Copy, target: Path) -> Restored:
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    kept = target.with_name(f"{target.name}.before-{now}")
    like = target if target.exists() else target.parent
    owner = like.stat()
    copy.path.chmod(owner.st_mode & 0o777 if like == target else 0o600)
    if os.geteuid() == 0:
        os.chown(copy.path, owner.st_uid, owner.st_gid)  # the server's user, not root
    for suffix in ("", *SIDE_FILES):  # SQLite would replay an old log into the new database
        file = Path(f"{target}{suffix}")
        if file.exists():
            file.rename(f"{kept}{suffix}")
    copy.path.rename(target)
    return Restored(target, copy.rows, kept if kept.exists() else None)


@contextmanager
def _folder_beside(target: Path, purpose: str, *, shown: Path, mode: int = 0o777) -> Iterator[Path]:
    """Create a temporary folder beside the target.

    `mode` is for the folders above it that do not exist yet. `shown` stands for the temporary
    folder in the messages of errors.
    """
    with _translated(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True, mode=mode)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.{purpose}-", dir=target.parent))
    except OSError as e:
        raise Unavailable(f"{target}: {e.strerror}") from e
    try:
        yield folder
    except Unavailable as e:
        raise Unavailable(str(e).replace(str(folder), str(shown))) from e
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _snapshots(databases: Mapping[str, Path]) -> Iterator[dict[str, sqlite3.Connection]]:
    """Open connections that see all databases as of one moment, while others keep writing."""
    with ExitStack() as stack, ExitStack() as writers:
        for path in databases.values():
            if not path.exists():
                raise NotFound(f"{path}: there is no store yet")
            if restoring(path).exists():
                raise StoreBroken(f"{path}: a restore was interrupted here; run that again first")
            writer = writers.enter_context(closing(_connect(path, "mode=rw")))
            with _translated(path):
                writer.execute("BEGIN IMMEDIATE")  # from here on no other process can write to it
        readers: dict[str, sqlite3.Connection] = {}
        for name, path in databases.items():
            reader = stack.enter_context(closing(_connect(path, "mode=rw")))
            with _translated(path):
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
            readers[name] = reader
        writers.close()
        yield readers


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    with _translated(path):
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?{mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
        )


def _copy(reader: sqlite3.Connection, source: Path, target: Path) -> Copy:
    """Copy and verify one database. Raises StoreBroken if the copy is damaged or differs."""
    with _translated(source):
        rows = _rows(reader)
    with _translated(target):
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(_connect(target, "mode=rw")) as copy, _translated(target):
        reader.backup(copy, pages=_PAGES, progress=lambda *_: None)
        # makes it a single file without a log
        copy.execute("PRAGMA journal_mode = DELETE").fetchone()
        problems = [row[0] for row in copy.execute("PRAGMA integrity_check(3)") if row[0] != "ok"]
        row_count = _rows(copy)
    if problems:
        raise StoreBroken(f"{source}: it is damaged ({problems[0]}); restore an earlier backup")
    if row_count != rows:
        raise StoreBroken(
            f"{source}: the copy has other rows ({row_count} instead of {rows}); this is a bug"
        )
    _sync(target)
    return Copy(target, rows, _sha256(target))


def _rows(connection: sqlite3.Connection) -> dict[str, int]:
    names = _tables(connection)
    shown = [name for name in names if name not in _HIDDEN and not name.startswith("sqlite_")]
    counts = ((name, connection.execute(f'SELECT count(*) FROM "{name}"')) for name in shown)
    return {name: count.fetchone()[0] for name, count in counts}


def _tables(connection: sqlite3.Connection) -> list[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
    return [name for (name,) in connection.execute(query)]


def _kind(path: Path) -> str:
    with closing(_connect(path, "mode=ro")) as connection, _translated(path):
        names = _tables(connection)
    for table, kind in _VERSION_TABLES.items():
        if table in names:
            return kind
    raise InvalidArgument.at("", f"{path}: is not a tuner store")


@contextmanager
def _locked_alone(path: Path) -> Iterator[None]:
    """Keep other processes from opening the database.

    Raises FailedPrecondition if one has it open already. Every connection holds SHARED as long as
    it is open. This process must have no connection to the database, because closing the file drops
    all locks of the process on it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    except OSError as e:
        raise Unavailable(f"{path}: {e.strerror}; give this user write permission") from e
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKS_LENGTH, _LOCKS_AT)
        except OSError as e:
            raise FailedPrecondition(
                f"{path}: a process has it open; stop the server or the run that uses it (SIGTERM, "
                "Ctrl-C), then try again"
            ) from e
        yield
    finally:
        os.close(descriptor)


def _write_manifest(path: Path, copies: list[Copy], made_by: str) -> None:
    document = {
        "createdBy": made_by,
        "createTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "databases": {
            copy.path.name: {"sha256": copy.sha256, "rows": dict(copy.rows)} for copy in copies
        },
    }
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    path.chmod(0o600)
    _sync(path)


def _check_sum(source: Path) -> None:
    """Compare a file with its manifest, if any. Raises StoreBroken if it has changed."""
    manifest = source.with_name(MANIFEST)
    if not manifest.exists():
        return
    try:
        expected = json.loads(manifest.read_text(encoding="utf-8"))["databases"][source.name][
            "sha256"
        ]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise StoreBroken(
            f"{manifest}: cannot be read; restore another backup, or remove this file to trust "
            f"{source}"
        ) from e
    if _sha256(source) != expected:
        raise StoreBroken(
            f"{source}: has changed since it was backed up (sha256); restore another backup"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as e:
        error = trouble_of(path, e)
        raise error or Unavailable(f"{path}: it cannot be read or written (SQLite: {e})") from e
    except OSError as e:
        raise Unavailable(f"{e.filename or path}: {e.strerror}") from e
