"""The controller's store of experiments, their revisions, attempts and events.
Uses SQLAlchemy Core only.

Trials are kept in the study, not in this store. `save` is one transaction, so that a turn's changes
are stored together or not at all. Calls are short (no fsync under WAL) and synchronous. An
experiment has one writer: on a person's machine, the controller that holds its lock file; in a
cluster, the holder of the installation's Lease, whose epoch each transaction checks (`Fence`).
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from controller import experiment_rows as table_rows
from controller import experiment_tables as tables
from controller import usage_ledger
from controller.core.attempt import ObjectRecord
from controller.core.model import (
    Attempt,
    AttemptKey,
    AttemptState,
    Event,
    Experiment,
    ExperimentSpec,
    ExperimentState,
    Revision,
    TrialOrFinal,
    Uid,
)
from controller.core.spending import Spent
from suggest import failpoints
from suggest.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotOwner,
    StoreUnavailable,
    Unavailable,
)
from suggest.failpoints import Failpoints
from suggest.storage.database import DamagedRow, Database
from suggest.storage.schema import Schema, prepare, version
from suggest.storage.sqlite import SqliteDatabase

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")
# Raised by the conversion of a damaged row.
_OF_DAMAGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, InvalidArgument)
_CREATE = failpoints.register("controller.experiment_store.create_experiment")
_REVISE = failpoints.register("controller.experiment_store.add_revision")
_REQUEST = failpoints.register("controller.experiment_store.request_stop")
_DELETE = failpoints.register("controller.experiment_store.delete_experiment")
_COPY = failpoints.register("controller.experiment_store.copy_experiment")
_LIMITS = failpoints.register("controller.experiment_store.note_limits_that_stop")
_SAVE = failpoints.register("controller.store.save")
_OBJECT = failpoints.register("controller.experiment_store.object_records")


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one turn, which are saved together.

    final: the experiment's record of the final stage is saved, too. Other changes leave it alone,
    because their writer may not know of one that was stored although its write seemed to fail.
    """

    experiment: Experiment | None = None
    attempts: Sequence[Attempt] = ()
    events: Sequence[Event] = ()
    final: bool = False

    def __bool__(self) -> bool:
        return self.experiment is not None or bool(self.attempts) or bool(self.events)


@dataclass(frozen=True, slots=True)
class ControllerRequests:
    """What other processes ask of a controller: to stop, and to apply the newest revision."""

    stop: bool = False
    revision: int = 0


class NewerRevision(FailedPrecondition):
    """An experiment cannot end under a revision that is not the newest."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Which controller may write, compared in SQL within each transaction of a writer.

    A controller in a cluster has the epoch of its Lease, and a `holder` of its own. The store keeps
    the last one that `raise_to` was called for, and refuses the others: also one that was frozen
    between a look at its Lease and a write. Without an epoch, as a command has none, only stores
    that no controller in a cluster has can be written.
    """

    epoch: int = 0
    holder: str = ""

    def raise_to(self, connection: sa.Connection) -> None:
        """Let nobody with a lower epoch write from now on.

        Raises NotOwner if the store has a higher one, or the same one of another controller.
        """
        if not connection.execute(_raising(connection.dialect.name), self._values).rowcount:
            raise self._refused(connection)

    def check(self, connection: sa.Connection) -> None:
        """Raise NotOwner if another controller has the store, which none gets before the commit.

        A lower epoch than this one is from a database that was set back.
        """
        stored = connection.execute(_EPOCH).first()
        if stored is None and not self.epoch:
            return
        if stored is None or stored.epoch < self.epoch:
            self.raise_to(connection)
        elif (stored.epoch, stored.holder) != (self.epoch, self.holder):
            raise self._refused(connection)

    @property
    def _values(self) -> dict[str, object]:
        return {"id": 1, "epoch": self.epoch, "holder": self.holder}

    def _refused(self, connection: sa.Connection) -> NotOwner:
        stored = connection.execute(_EPOCH).one()
        if not self.epoch:
            return NotOwner(
                "the experiments belong to the controller in the cluster; change their resources "
                "with kubectl instead"
            )
        return StaleEpoch(
            f"the controller {stored.holder} with epoch {stored.epoch} has taken over from "
            f"{self.holder} with epoch {self.epoch}; nothing was written",
            stored.epoch,
        )


NO_FENCE = Fence()


class StaleEpoch(NotOwner):
    """Another controller has written to the store. epoch: the one that it has."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


def sqlite_database(path: Path) -> SqliteDatabase:
    """Open the file and create its folder. Raises Unavailable, StoreBroken."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}") from error
    return SqliteDatabase(path)


def schema_version(path: Path) -> str | None:
    """Return the schema version of an existing file; None if it is empty. Changes nothing.

    Raises StoreBroken if it has a newer version, is of another program, or was emptied.
    """
    with closing(sqlite_database(path)) as database:
        found = version(database, tables.SCHEMA)
        if found is None:
            database.refuse_emptied()
        return found


class SqlExperimentStore:
    """The store, on SQLite or PostgreSQL, which it closes.

    Every write is atomic, and when it returns, its changes survive the process. Methods raise
    Unavailable (try again), StoreBroken (a person is needed) and NotOwner (another controller has
    the store), with messages for people.
    """

    def __init__(
        self,
        database: Database,
        load_spec: Callable[[Mapping[str, object]], ExperimentSpec],
        *,
        schema: Schema = tables.SCHEMA,
        fence: Fence = NO_FENCE,
    ) -> None:
        """Open the store, and create or upgrade its tables.

        Args:
            load_spec: Turns a stored document into an `ExperimentSpec`.
            fence: With an epoch, the writers with lower ones are refused from now on.

        Attributes:
            now: The clock that the times of attempts are of.
        """
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)
        self._load_spec = load_spec
        self._database = database
        self._fence = fence
        try:
            prepare(database, schema)
            if fence.epoch:
                with database.writing() as connection:
                    fence.raise_to(connection)
        except BaseException:
            self.close()
            raise

    @property
    def restarts(self) -> int:
        """How often the database was seen to have restarted: its last commits may be lost."""
        return self._database.restarts

    def close(self) -> None:
        self._database.close()

    # Experiments

    def check(self) -> Mapping[str, int]:
        """Read every page and row. Return the numbers of rows by table. Raises StoreBroken."""
        with self._database.reading() as connection:
            self._database.check_pages(connection)
            for table in tables.SCHEMA.metadata.sorted_tables:
                connection.execute(sa.select(table).limit(1)).first()
        numbers = Counter[str]()
        for experiment in self.experiments():
            numbers["experiments"] += 1
            self.revisions(experiment.uid)
            numbers["attempts"] += len(self.attempts(experiment.uid))
            numbers["events"] += len(self.events(experiment.uid))
        return numbers

    def create_experiment(self, experiment: Experiment, revision: Revision) -> None:
        """Store a new experiment. Raises AlreadyExists if the namespace has one of that name."""
        try:
            with self._writing(_CREATE) as connection:
                row = tables.experiment_row(experiment)
                connection.execute(sa.insert(tables.experiments).values(row))
                _add_revision(connection, experiment.uid, revision)
        except sa.exc.IntegrityError as error:
            raise AlreadyExists(
                f"there is an experiment {experiment.name} in {experiment.namespace}"
            ) from error

    def copy_experiment(
        self, uid: Uid, target: SqlExperimentStore, *, while_newest: int | None = None
    ) -> bool:
        """Copy all rows of an experiment into another store.

        Raises AlreadyExists if its namespace there has an experiment of that name.

        while_newest: Return False, having written nothing, if the experiment has another newest
        event by now.
        """
        of_attempts = (tables.attempts, tables.events, tables.attempt_objects)
        copied = (tables.experiments, tables.revisions, *of_attempts)
        rows: dict[sa.Table, list[dict[str, Any]]] = {}
        with self._database.reading() as here:
            if while_newest not in (None, here.execute(_NEWEST_EVENT, {"of_uid": uid}).scalar()):
                return False
            for table in copied:
                # The database numbers events; all other rows keep their keys.
                columns = [column for column in table.c if column.name != "id"]
                order = list(table.primary_key)
                query = sa.select(*columns).where(table.c.uid == uid).order_by(*order)
                rows[table] = [dict(row) for row in here.execute(query).mappings()]
        # Only now, so that neither the time that it takes nor its errors are those of the reading,
        # after which a controller would take its database for away.
        with target._writing(_COPY) as there:
            try:
                there.execute(sa.insert(tables.experiments), rows.pop(tables.experiments))
            except sa.exc.IntegrityError as error:
                raise AlreadyExists(
                    f"{target._database.place}: has this experiment, or one of its name"
                ) from error
            for table, some in rows.items():
                if some:
                    there.execute(sa.insert(table), some)
        return True

    def rename(self, experiment: Experiment, revisions: Sequence[Revision]) -> None:
        """Store the experiment under its name, which these revisions have in place of another."""
        uid = experiment.uid
        with self._writing(_COPY) as connection:
            _write(connection, uid, Changes(experiment=experiment))
            connection.execute(sa.delete(tables.revisions).where(tables.revisions.c.uid == uid))
            rows = [tables.revision_row(uid, revision) for revision in revisions]
            connection.execute(sa.insert(tables.revisions), rows)

    def experiment(self, namespace: str, name: str) -> Experiment | None:
        experiments = self._experiments(_EXPERIMENT, namespace=namespace, name=name)
        return experiments[0] if experiments else None

    def named(self, name: str) -> list[Experiment]:
        return self._experiments(_NAMED, name=name)

    def names(self, namespace: str | None) -> list[str]:
        rows = self._rows(_NAMES)
        return [row["name"] for row in rows if namespace in (None, row["namespace"])]

    def namespaced_names(self) -> list[tuple[str, str]]:
        """Return the namespace and name of each experiment, also of those that cannot be read."""
        return [(row["namespace"], row["name"]) for row in self._rows(_NAMES)]

    def rows_of(self, keys: Collection[tuple[str, str]]) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the rows of existing experiments, with their documents, by namespace and name."""
        with self._database.reading(single=True) as connection:
            rows = connection.execute(_OF_KEYS, {"keys": list(keys)}).mappings()
            return {(row["namespace"], row["name"]): dict(row) for row in rows}

    def experiments(self) -> list[Experiment]:
        return self._experiments(_EXPERIMENTS)

    def _experiments(self, query: sa.Select[Any], **values: str) -> list[Experiment]:
        return self._read(
            query,
            lambda row: table_rows.experiment_of(row, self._load_spec(json.loads(row["document"]))),
            **values,
        )

    def add_revision(self, experiment: Experiment, revision: Revision, event: Event) -> Experiment:
        """Store a revision, and return the experiment under it.

        Of an experiment that has ended, also stores the final stage, which belongs to the search
        before. Raises FailedPrecondition if another process has stored a revision meanwhile, or the
        experiment has just ended.
        """
        changed = FailedPrecondition(
            f"{experiment.name} has just been changed by another command; try again"
        )
        values: dict[str, object] = {"revision": revision.number}
        if experiment.state.finished:
            values |= tables.final_columns(experiment)
        try:
            with self._writing(_REVISE) as connection:
                _add_revision(connection, experiment.uid, revision)
                rows = tables.experiments.c
                has_ended = rows.state.in_([s.value for s in ExperimentState if s.finished])
                update = sa.update(tables.experiments).where(
                    rows.uid == experiment.uid, has_ended == experiment.state.finished
                )
                if not connection.execute(update.values(**values)).rowcount:
                    raise changed
                _write(connection, experiment.uid, Changes(events=(event,)))
        except sa.exc.IntegrityError as error:
            raise changed from error
        return replace(experiment, revision=revision.number, spec=revision.spec)

    def revisions(self, uid: Uid) -> list[Revision]:
        return self._read(
            _REVISIONS,
            lambda row: table_rows.revision_of(row, self._load_spec(json.loads(row["document"]))),
            of_uid=uid,
        )

    def request_stop(self, uid: Uid, *, wanted: bool = True) -> None:
        with self._writing(_REQUEST) as connection:
            update = sa.update(tables.experiments).where(tables.experiments.c.uid == uid)
            connection.execute(update.values(stop_requested=wanted))

    def requests(self, uid: Uid) -> ControllerRequests:
        """Return what other processes ask of the controller."""
        for row in self._rows(_REQUESTS, of_uid=uid):
            return ControllerRequests(bool(row["stop_requested"]), row["revision"])
        return ControllerRequests()

    def delete_experiment(self, uid: Uid) -> None:
        with self._writing(_DELETE) as connection:
            if self._fence.epoch:
                usage_ledger.enter_rest(connection, uid, self.now())
            connection.execute(sa.delete(tables.experiments).where(tables.experiments.c.uid == uid))

    # Attempts and events

    def save(self, uid: Uid, changes: Changes) -> None:
        """Store changes. Raises NewerRevision if they end an experiment under an earlier one."""
        with self._writing(_SAVE) as connection:
            if self._fence.epoch:
                usage_ledger.enter(connection, uid, changes.attempts)
            _write(connection, uid, changes)

    def usage_in_month(self, now: datetime) -> Mapping[str, usage_ledger.MonthUsage]:
        """Return what the attempts of each namespace have used in the month until now.

        Only the store of a controller in a cluster counts it.
        """
        with self._database.reading(single=True) as connection:
            return usage_ledger.usage_in_month(connection, now)

    def note_limits_that_stop(self, namespace: str, limits: Spent, now: datetime) -> None:
        """Note that running attempts of the namespace are to be stopped for these limits."""
        with self._writing(_LIMITS) as connection:
            usage_ledger.note_limits_that_stop(connection, namespace, limits, now)

    def attempts(self, uid: Uid, trial: TrialOrFinal | None = None) -> list[Attempt]:
        if trial is None:
            return self._read(_ATTEMPTS, table_rows.attempt_of, of_uid=uid)
        number = table_rows.trial_column(trial)
        return self.attempts_between(uid, number, number)

    def final_attempts(self, uids: Collection[Uid]) -> dict[Uid, list[Attempt]]:
        """Return the attempts of the final stages of these experiments, oldest first."""
        found: dict[Uid, list[Attempt]] = {uid: [] for uid in uids}
        rows = self._rows(_FINAL_ATTEMPTS, uids=list(uids)) if uids else []
        with self._reading_rows():
            for row in rows:
                found[row["uid"]].append(table_rows.attempt_of(row))
        return found

    def attempts_between(self, uid: Uid, first: int, last: int) -> list[Attempt]:
        """Return the attempts of the trials from `first` to `last`."""
        return self._read(
            _ATTEMPTS_BETWEEN, table_rows.attempt_of, of_uid=uid, first=first, last=last
        )

    def last_trial(self, uid: Uid) -> int:
        """Return the highest number of a trial that has attempts; -1 if none has."""
        (row,) = self._rows(_LAST_TRIAL, of_uid=uid)
        return -1 if row["last"] is None else int(row["last"])

    def attempts_that_change(self, uid: Uid, trials: Collection[int]) -> list[Attempt]:
        """Return all attempts of these trials, and those of other trials that may change.

        The latter have not ended or are to run again.
        """
        numbers = [*trials, table_rows.FINAL_ROW]
        return self._read(_ATTEMPTS_THAT_CHANGE, table_rows.attempt_of, of_uid=uid, trials=numbers)

    def to_run_again(self) -> set[Uid]:
        """Return the experiments with a failed trial that is to run again."""
        return {Uid(row["uid"]) for row in self._rows(_TO_RUN_AGAIN)}

    def running(self) -> dict[Uid, int]:
        """Return the number of trials that run, of the experiments that have some."""
        return {Uid(row["uid"]): row["running"] for row in self._rows(_RUNNING)}

    def object_records(self, uid: Uid) -> StoredObjectRecords:
        return StoredObjectRecords(self, uid)

    def latest_events(self, uid: Uid, count: int) -> list[Event]:
        """Return the last events, oldest first."""
        return self._read(_LATEST_EVENTS, table_rows.event_of, of_uid=uid, count=count)[::-1]

    def newest_event(self, uid: Uid) -> int:
        """Return the id of the experiment's newest event; 0 if it has none.

        It rises with each change of the state of the experiment or of an attempt.
        """
        with self._database.reading(single=True) as connection:
            return int(connection.execute(_NEWEST_EVENT, {"of_uid": uid}).scalar_one())

    def events(self, uid: Uid, trial: TrialOrFinal | None = None) -> list[Event]:
        if trial is None:
            return self._read(_EVENTS, table_rows.event_of, of_uid=uid)
        number = table_rows.trial_column(trial)
        return self._read(_EVENTS_OF_TRIAL, table_rows.event_of, of_uid=uid, trial=number)

    def _read(
        self,
        query: sa.Select[Any],
        value_of: Callable[[Mapping[str, Any]], T],
        **values: str | int | Sequence[int],
    ) -> list[T]:
        rows = self._rows(query, **values)
        with self._reading_rows():
            return [value_of(row) for row in rows]

    # Any: the columns of a table
    def _rows(
        self, query: sa.Select[Any], **values: str | int | Sequence[int] | Sequence[str]
    ) -> list[dict[str, Any]]:
        with self._database.reading(single=True) as connection:
            return [row._asdict() for row in connection.execute(query, values)]

    @contextmanager
    def _reading_rows(self) -> Iterator[None]:
        """Report values that nobody wrote as damage.

        Nothing but conversions of rows belongs inside.
        """
        try:
            yield
        except _OF_DAMAGE as error:
            damage = DamagedRow(f"{type(error).__name__}: {error}")
            raise damage.broken(self._database.place) from error

    @contextmanager
    def _writing(self, points: Failpoints) -> Iterator[sa.Connection]:
        """Open one transaction, between its two failpoints."""
        restarts = self.restarts
        with points, self._database.writing() as connection:
            if self.restarts != restarts:
                raise StoreUnavailable(
                    f"{self._database.place}: it was restarted or has failed over; what it has is "
                    "read again"
                )
            self._fence.check(connection)
            yield connection


class StoredObjectRecords:
    """Implements `controller.runtime.provider.ObjectRecords` for one experiment."""

    def __init__(self, store: SqlExperimentStore, uid: Uid) -> None:
        self._store = store
        self._uid = uid

    def load(self) -> Mapping[AttemptKey, ObjectRecord]:
        rows = self._store._rows(_OBJECTS_OF_UNENDED, of_uid=self._uid)
        return {
            table_rows.attempt_key_of(row): ObjectRecord(
                row["object_uid"],
                stopped=row["stop_cause"] is not None,
                timed_out=bool(row["timed_out"]),
            )
            for row in rows
        }

    def save(self, key: AttemptKey, record: ObjectRecord) -> None:
        trial, number = key
        row = {
            "uid": self._uid,
            "trial": table_rows.trial_column(trial),
            "number": number,
            "object_uid": record.uid,
            "timed_out": record.timed_out,
        }
        with self._store._writing(_OBJECT) as connection:
            connection.execute(_upsert(tables.attempt_objects, connection.dialect.name), row)

    def delete(self, key: AttemptKey) -> None:
        trial, number = key
        objects = tables.attempt_objects.c
        this = (objects.uid == self._uid) & (objects.trial == table_rows.trial_column(trial))
        deletion = sa.delete(tables.attempt_objects).where(this, objects.number == number)
        with self._store._writing(_OBJECT) as connection:
            connection.execute(deletion)


# Any: each dialect has an Insert of its own
def _insert(table: sa.Table, dialect: str) -> Any:
    if dialect == "sqlite":
        return sqlite.insert(table)
    # A tenth of the processor time of each command, which SQLite does without.
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(table)


@functools.cache
def _upsert(table: sa.Table, dialect: str) -> sa.Insert:
    statement = _insert(table, dialect)
    keys = [column.name for column in table.primary_key]
    others = [column.name for column in table.c if column.name not in keys]
    updates = {name: statement.excluded[name] for name in others}
    complete: sa.Insert = statement.on_conflict_do_update(index_elements=keys, set_=updates)
    return complete


@functools.cache
def _raising(dialect: str) -> sa.Insert:
    """Return the statement that stores an epoch, unless there is a higher one."""
    leader = tables.leader.c
    new = _insert(tables.leader, dialect)
    is_later = (leader.epoch < new.excluded.epoch) | (
        (leader.epoch == new.excluded.epoch) & (leader.holder == new.excluded.holder)
    )
    statement: sa.Insert = new.on_conflict_do_update(
        index_elements=[leader.id],
        set_={"epoch": new.excluded.epoch, "holder": new.excluded.holder},
        where=is_later,
    )
    return statement


# FOR SHARE on PostgreSQL; SQLite has one writer at a time anyway.
_EPOCH = sa.select(tables.leader.c.epoch, tables.leader.c.holder).with_for_update(read=True)
_OF_UID = tables.experiments.c.uid == sa.bindparam("of_uid")
_UPDATE_EXPERIMENT = sa.update(tables.experiments).where(_OF_UID)
_REQUESTS = sa.select(tables.experiments.c.stop_requested, tables.experiments.c.revision).where(
    _OF_UID
)
_EXPERIMENTS = (
    sa.select(tables.experiments, tables.revisions.c.document)
    .join(
        tables.revisions,
        (tables.revisions.c.uid == tables.experiments.c.uid)
        & (tables.revisions.c.number == tables.experiments.c.revision),
    )
    .order_by(tables.experiments.c.start_time, tables.experiments.c.uid)
)
_NAMES = sa.select(tables.experiments.c.name, tables.experiments.c.namespace)
_NAMED = _EXPERIMENTS.where(tables.experiments.c.name == sa.bindparam("name"))
_EXPERIMENT = _NAMED.where(tables.experiments.c.namespace == sa.bindparam("namespace"))
_OF_KEYS = _EXPERIMENTS.where(
    sa.tuple_(tables.experiments.c.namespace, tables.experiments.c.name).in_(
        sa.bindparam("keys", expanding=True)
    )
)


def _of_uid(table: sa.Table) -> sa.Select[Any]:
    return sa.select(table).where(table.c.uid == sa.bindparam("of_uid"))


_REVISIONS = _of_uid(tables.revisions).order_by(tables.revisions.c.number)
_ATTEMPTS = _of_uid(tables.attempts).order_by(tables.attempts.c.trial, tables.attempts.c.number)
_ATTEMPTS_BETWEEN = _ATTEMPTS.where(
    tables.attempts.c.trial.between(sa.bindparam("first"), sa.bindparam("last"))
)
_FINAL_ATTEMPTS = (
    sa.select(tables.attempts)
    .where(
        # Literals, because a database has a limit of parameters.
        tables.attempts.c.uid.in_(
            sa.bindparam("uids", type_=sa.String, expanding=True, literal_execute=True)
        ),
        tables.attempts.c.trial == table_rows.FINAL_ROW,
    )
    .order_by(tables.attempts.c.uid, tables.attempts.c.number)
)
_LAST_TRIAL = sa.select(sa.func.max(tables.attempts.c.trial).label("last")).where(
    tables.attempts.c.uid == sa.bindparam("of_uid")
)
_ATTEMPTS_THAT_CHANGE = _ATTEMPTS.where(
    sa.or_(
        tables.attempts.c.end_time.is_(None),
        tables.attempts.c.rerun,
        # Literals, because a database has a limit of parameters.
        tables.attempts.c.trial.in_(
            sa.bindparam("trials", type_=sa.Integer, expanding=True, literal_execute=True)
        ),
    )
)
_newer = tables.attempts.alias()
_is_newest = ~(
    sa.select(_newer.c.uid)
    .where(
        _newer.c.uid == tables.attempts.c.uid,
        _newer.c.trial == tables.attempts.c.trial,
        _newer.c.number > tables.attempts.c.number,
    )
    .exists()
)
_TO_RUN_AGAIN = (
    sa.select(tables.attempts.c.uid).where(tables.attempts.c.rerun & _is_newest).distinct()
)
_RUNNING = (
    sa.select(tables.attempts.c.uid, sa.func.count().label("running"))
    .where(
        tables.attempts.c.end_time.is_(None),
        tables.attempts.c.state != AttemptState.CREATED.value,
        tables.attempts.c.trial != table_rows.FINAL_ROW,
    )
    .group_by(tables.attempts.c.uid)
)
_OBJECTS_OF_UNENDED = (
    sa.select(tables.attempt_objects, tables.attempts.c.stop_cause)
    .join(
        tables.attempts,
        (tables.attempts.c.uid == tables.attempt_objects.c.uid)
        & (tables.attempts.c.trial == tables.attempt_objects.c.trial)
        & (tables.attempts.c.number == tables.attempt_objects.c.number),
    )
    .where(
        tables.attempt_objects.c.uid == sa.bindparam("of_uid"), tables.attempts.c.end_time.is_(None)
    )
)
_NEWEST_EVENT = sa.select(sa.func.coalesce(sa.func.max(tables.events.c.id), 0)).where(
    tables.events.c.uid == sa.bindparam("of_uid")
)
_EVENTS = _of_uid(tables.events).order_by(tables.events.c.id)
_EVENTS_OF_TRIAL = _EVENTS.where(tables.events.c.trial == sa.bindparam("trial"))
_LATEST_EVENTS = (
    _of_uid(tables.events).order_by(tables.events.c.id.desc()).limit(sa.bindparam("count"))
)


def _add_revision(connection: sa.Connection, uid: Uid, revision: Revision) -> None:
    connection.execute(sa.insert(tables.revisions).values(tables.revision_row(uid, revision)))


def _write(connection: sa.Connection, uid: Uid, changes: Changes) -> None:
    if changes.experiment is not None:
        row = tables.experiment_row(changes.experiment)
        # Other processes request a stop and store revisions,
        # so the controller's copies may be outdated.
        del row["stop_requested"], row["revision"]
        if not changes.final:
            del row["final_trial"], row["final_first"]
        connection.execute(_UPDATE_EXPERIMENT, {**row, "of_uid": uid})
        if changes.experiment.state.finished:
            _check_is_newest(connection, changes.experiment)
    if changes.attempts:
        rows = [tables.attempt_row(uid, attempt) for attempt in changes.attempts]
        connection.execute(_upsert(tables.attempts, connection.dialect.name), rows)
    if changes.events:
        rows = [tables.event_row(uid, event) for event in changes.events]
        for row in rows:
            del row["id"]  # the database numbers events
        connection.execute(sa.insert(tables.events), rows)


def _check_is_newest(connection: sa.Connection, experiment: Experiment) -> None:
    stored = connection.execute(_REQUESTS, {"of_uid": experiment.uid}).first()
    if stored is not None and stored.revision > experiment.revision:
        raise NewerRevision(f"revision {stored.revision} of {experiment.name} is not in effect yet")
