"""The controller's own durable record: experiments, their revisions, attempts and events. SQLAlchemy Core only.

Trials are not here: the study has them. `save` is one transaction, so that a turn's changes are all there or none.
Calls are short (no fsync under WAL) and synchronous; one writer, the experiment's controller, holds its lock file.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert as upsert

from controller.model import (
    Attempt,
    AttemptState,
    Event,
    Experiment,
    ExperimentSpec,
    ExperimentState,
    FailureClass,
    Revision,
    StopCause,
    Uid,
)
from suggest import failpoints
from suggest.errors import AlreadyExists, StoreBroken, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA_VERSION = 1
BUSY_S = 5.0

_LOCKED = f"another process has kept it locked for {BUSY_S:g} s; nothing was lost, try again or end that process"
_CURES = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_READONLY: "it is read-only; give this user the right to write the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; see that its folder exists and that this user may write there",
    sqlite3.SQLITE_FULL: "the disk is full; nothing was lost, make room and try again",
}

_metadata = sa.MetaData()
_schema = sa.Table("controller_schema", _metadata, sa.Column("version", sa.Integer, nullable=False))
_experiments = sa.Table(
    "experiments",
    _metadata,
    sa.Column("uid", sa.String, primary_key=True),
    sa.Column("namespace", sa.String, nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("directory", sa.String, nullable=False),
    sa.Column("study", sa.String, nullable=False),
    sa.Column("server", sa.String, nullable=False),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("reason", sa.String, nullable=False),
    sa.Column("stop_requested", sa.Boolean, nullable=False),
    sa.Column("running_s", sa.Float, nullable=False),
    sa.Column("start_time", sa.String),
    sa.Column("end_time", sa.String),
    sa.UniqueConstraint("namespace", "name"),
)
_revisions = sa.Table(
    "revisions",
    _metadata,
    sa.Column("uid", sa.ForeignKey("experiments.uid", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("file_text", sa.Text, nullable=False),
    sa.Column("time", sa.String, nullable=False),
)
_attempts = sa.Table(
    "attempts",
    _metadata,
    sa.Column("uid", sa.ForeignKey("experiments.uid", ondelete="CASCADE"), primary_key=True),
    sa.Column("trial", sa.Integer, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("stop_cause", sa.String),
    sa.Column("start_time", sa.String),
    sa.Column("end_time", sa.String),
    sa.Column("exit_code", sa.Integer),
    sa.Column("signal", sa.Integer),
    sa.Column("value", sa.Float),
    sa.Column("step", sa.Integer),
    sa.Column("failure_class", sa.String),
    sa.Column("reason", sa.String, nullable=False),
    sa.Column("node", sa.String, nullable=False),
)
_events = sa.Table(
    "events",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uid", sa.ForeignKey("experiments.uid", ondelete="CASCADE"), nullable=False),
    sa.Column("time", sa.String, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("trial", sa.Integer),
    sa.Column("attempt", sa.Integer),
    sa.Index("events_of", "uid", "trial"),
)

BEFORE_CREATE, AFTER_CREATE = failpoints.register("controller.store.create_experiment")
BEFORE_SAVE, AFTER_SAVE = failpoints.register("controller.store.save")


@dataclass(frozen=True, slots=True)
class Changes:
    """What one turn changed; saved as a whole."""

    experiment: Experiment | None = None
    attempts: Sequence[Attempt] = ()
    events: Sequence[Event] = ()

    def __bool__(self) -> bool:
        return self.experiment is not None or bool(self.attempts) or bool(self.events)


class Store(Protocol):
    """What the loop needs. Every method is atomic, and durable when it returns (survives the process).

    Raises Unavailable (try again) and StoreBroken (a person is needed) with sentences for people.
    """

    def save(self, uid: Uid, changes: Changes) -> None: ...

    def attempts(self, uid: Uid) -> list[Attempt]: ...

    def stop_requested(self, uid: Uid) -> bool: ...


class SqlStore:
    """`Store` on SQLite, and what the command line needs beside it. `load_spec` reads a stored document."""

    def __init__(self, path: Path, load_spec: Callable[[Mapping[str, object]], ExperimentSpec]) -> None:
        self._path = path
        self._load_spec = load_spec
        self._engine = sa.create_engine(
            sa.URL.create("sqlite", database=str(path)),  # not as text: a folder may be called `what?#`
            connect_args={"timeout": BUSY_S},
        )
        sa.event.listen(self._engine, "connect", _prepare)
        with self._errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open()

    def close(self) -> None:
        self._engine.dispose()

    def _open(self) -> None:
        with self._engine.begin() as connection:
            if not sa.inspect(connection).has_table(_schema.name):
                # Begun by hand, since sqlite3 would create each table by itself: two first starts at once, or a kill
                # in the middle, must not leave half a schema.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            if not sa.inspect(connection).has_table(_schema.name):
                _metadata.create_all(connection)
                connection.execute(sa.insert(_schema).values(version=SCHEMA_VERSION))
            version = connection.execute(sa.select(_schema.c.version)).scalar_one()
        if version > SCHEMA_VERSION:
            raise StoreBroken(
                f"{self._path} was written by a newer tuner (schema {version}, this one knows {SCHEMA_VERSION}); "
                "upgrade tuner, or use another --state-dir"
            )

    # Experiments

    def create_experiment(self, experiment: Experiment, revision: Revision) -> None:
        """Raises AlreadyExists: the namespace has an experiment of that name."""
        failpoints.reach(BEFORE_CREATE)
        try:
            with self._errors(), self._engine.begin() as connection:
                connection.execute(sa.insert(_experiments).values(_experiment_row(experiment)))
                connection.execute(sa.insert(_revisions).values(_revision_row(experiment.uid, revision)))
        except sa.exc.IntegrityError as error:
            raise AlreadyExists(f"there is an experiment {experiment.name} in {experiment.namespace}") from error
        failpoints.reach(AFTER_CREATE)

    def experiment(self, namespace: str, name: str) -> Experiment | None:
        found = self._experiments(_experiments.c.namespace == namespace, _experiments.c.name == name)
        return found[0] if found else None

    def experiments(self) -> list[Experiment]:
        return self._experiments()

    def _experiments(self, *where: sa.ColumnElement[bool]) -> list[Experiment]:
        query = (
            sa.select(_experiments, _revisions.c.document)
            .join(
                _revisions,
                (_revisions.c.uid == _experiments.c.uid) & (_revisions.c.number == _experiments.c.revision),
            )
            .where(*where)
            .order_by(_experiments.c.start_time, _experiments.c.uid)
        )
        with self._errors(), self._engine.connect() as connection:
            rows = connection.execute(query).mappings().all()
        return [_experiment(row, self._load_spec(json.loads(row["document"]))) for row in rows]

    def add_revision(self, experiment: Experiment, revision: Revision, event: Event) -> Experiment:
        """The experiment under its new revision; both are stored together."""
        revised = replace(experiment, revision=revision.number, spec=revision.spec)
        with self._errors(), self._engine.begin() as connection:
            connection.execute(sa.insert(_revisions).values(_revision_row(experiment.uid, revision)))
            _write(connection, experiment.uid, Changes(experiment=revised, events=(event,)))
        return revised

    def revisions(self, uid: Uid) -> list[Revision]:
        query = sa.select(_revisions).where(_revisions.c.uid == uid).order_by(_revisions.c.number)
        with self._errors(), self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return [
            Revision(row.number, self._load_spec(json.loads(row.document)), row.file_text, _time(row.time))
            for row in rows
        ]

    def request_stop(self, uid: Uid, *, wanted: bool = True) -> None:
        with self._errors(), self._engine.begin() as connection:
            connection.execute(sa.update(_experiments).where(_experiments.c.uid == uid).values(stop_requested=wanted))

    def stop_requested(self, uid: Uid) -> bool:
        query = sa.select(_experiments.c.stop_requested).where(_experiments.c.uid == uid)
        with self._errors(), self._engine.connect() as connection:
            return bool(connection.execute(query).scalar())

    def delete_experiment(self, uid: Uid) -> None:
        with self._errors(), self._engine.begin() as connection:
            connection.execute(sa.delete(_experiments).where(_experiments.c.uid == uid))

    # Attempts and events

    def save(self, uid: Uid, changes: Changes) -> None:
        failpoints.reach(BEFORE_SAVE)
        with self._errors(), self._engine.begin() as connection:
            _write(connection, uid, changes)
        failpoints.reach(AFTER_SAVE)

    def attempts(self, uid: Uid, trial: int | None = None) -> list[Attempt]:
        query = sa.select(_attempts).where(_attempts.c.uid == uid).order_by(_attempts.c.trial, _attempts.c.number)
        if trial is not None:
            query = query.where(_attempts.c.trial == trial)
        with self._errors(), self._engine.connect() as connection:
            return [_attempt(row) for row in connection.execute(query).mappings()]

    def events(self, uid: Uid, trial: int | None = None) -> list[Event]:
        query = sa.select(_events).where(_events.c.uid == uid).order_by(_events.c.id)
        if trial is not None:
            query = query.where(_events.c.trial == trial)
        with self._errors(), self._engine.connect() as connection:
            rows = connection.execute(query).all()
        return [Event(_time(row.time), row.kind, row.message, row.trial, row.attempt) for row in rows]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.OperationalError as error:
            code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF  # extended codes carry the primary one below
            cure = _CURES.get(code, "nothing was lost; see that its disk is healthy, then try again")
            raise Unavailable(f"{self._path}: {cure} (SQLite: {error.orig})") from error
        except sa.exc.IntegrityError:
            raise
        except sa.exc.DatabaseError as error:
            cure = "it is damaged; restore it from a backup, or move it away to begin anew"
            raise StoreBroken(f"{self._path}: {cure} (SQLite: {error.orig})") from error
        except OSError as error:
            raise Unavailable(f"{self._path}: {error.strerror}") from error


def _prepare(connection: Any, _record: Any) -> None:  # DBAPI objects: untyped in SQLAlchemy too
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _write(connection: sa.Connection, uid: Uid, changes: Changes) -> None:
    if changes.experiment is not None:
        row = _experiment_row(changes.experiment)
        # Another process asks for the stop; the controller's copy of that wish may be old.
        del row["stop_requested"]
        connection.execute(sa.update(_experiments).where(_experiments.c.uid == uid).values(row))
    if changes.attempts:
        statement = upsert(_attempts)
        keys = ("uid", "trial", "number")
        updates = {c.name: statement.excluded[c.name] for c in _attempts.c if c.name not in keys}
        rows = [_attempt_row(uid, attempt) for attempt in changes.attempts]
        connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=updates), rows)
    if changes.events:
        connection.execute(sa.insert(_events), [_event_row(uid, event) for event in changes.events])


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _experiment_row(experiment: Experiment) -> dict[str, object]:
    return {
        "uid": experiment.uid,
        "namespace": experiment.namespace,
        "name": experiment.name,
        "revision": experiment.revision,
        "directory": experiment.directory,
        "study": experiment.study,
        "server": experiment.server,
        "state": experiment.state.value,
        "reason": experiment.reason,
        "stop_requested": experiment.stop_requested,
        "running_s": experiment.running_s,
        "start_time": experiment.start_time and experiment.start_time.isoformat(),
        "end_time": experiment.end_time and experiment.end_time.isoformat(),
    }


def _experiment(row: sa.RowMapping, spec: ExperimentSpec) -> Experiment:
    return Experiment(
        uid=row["uid"],
        spec=spec,
        revision=row["revision"],
        directory=row["directory"],
        study=row["study"],
        server=row["server"],
        state=ExperimentState(row["state"]),
        reason=row["reason"],
        stop_requested=row["stop_requested"],
        running_s=row["running_s"],
        start_time=row["start_time"] and _time(row["start_time"]),
        end_time=row["end_time"] and _time(row["end_time"]),
    )


def _revision_row(uid: Uid, revision: Revision) -> dict[str, object]:
    return {
        "uid": uid,
        "number": revision.number,
        "document": json.dumps(revision.spec.document),
        "file_text": revision.file_text,
        "time": revision.time.isoformat(),
    }


def _attempt_row(uid: Uid, attempt: Attempt) -> dict[str, object]:
    return {
        "uid": uid,
        "trial": attempt.trial,
        "number": attempt.number,
        "state": attempt.state.value,
        "stop_cause": attempt.stop_cause and attempt.stop_cause.value,
        "start_time": attempt.start_time and attempt.start_time.isoformat(),
        "end_time": attempt.end_time and attempt.end_time.isoformat(),
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "value": attempt.value,
        "step": attempt.step,
        "failure_class": attempt.failure_class and attempt.failure_class.value,
        "reason": attempt.reason,
        "node": attempt.node,
    }


def _attempt(row: sa.RowMapping) -> Attempt:
    return Attempt(
        trial=row["trial"],
        number=row["number"],
        state=AttemptState(row["state"]),
        stop_cause=row["stop_cause"] and StopCause(row["stop_cause"]),
        start_time=row["start_time"] and _time(row["start_time"]),
        end_time=row["end_time"] and _time(row["end_time"]),
        exit_code=row["exit_code"],
        signal=row["signal"],
        value=row["value"],
        step=row["step"],
        failure_class=row["failure_class"] and FailureClass(row["failure_class"]),
        reason=row["reason"],
        node=row["node"],
    )


def _event_row(uid: Uid, event: Event) -> dict[str, object]:
    return {
        "uid": uid,
        "time": event.time.isoformat(),
        "kind": event.kind,
        "message": event.message,
        "trial": event.trial,
        "attempt": event.attempt,
    }
