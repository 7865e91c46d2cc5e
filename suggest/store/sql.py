"""The store of studies in SQL: `Store` over SQLAlchemy Core, on SQLite today.

One transaction per method, and one statement for what happens often: handing out trials is one INSERT and no read.
Every write repeats the lease in its WHERE; that it touched no row says that the study has a new owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    exists,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.sqlite import Insert, insert

from suggest import failpoints
from suggest.errors import NotFound, NotOwner, Unavailable
from suggest.store import schema
from suggest.store.documents import spec_document
from suggest.store.locks import StudyLocks
from suggest.store.protocol import Lease, StudyContents, StudyRecord
from suggest.store.rows import (
    Columns,
    measurement_columns,
    measurement_of,
    outcome_columns,
    record_of,
    study_columns,
    study_of,
    trial_columns,
    trial_of,
)
from suggest.store.sqlite import Database
from suggest.store.tables import measurements, studies, trials
from suggest.study import Direction, Study, StudyName
from suggest.trial import OPEN, Measurement, Trial, TrialState

_INSERT_STUDY = failpoints.register("store.insert_study")
_UPDATE_STUDY = failpoints.register("store.update_study")
_DELETE_STUDY = failpoints.register("store.delete_study")
_TAKE_OWNERSHIP = failpoints.register("store.take_ownership")
_HAND_OUT = failpoints.register("store.hand_out")
_ADD_TRIAL = failpoints.register("store.add_trial")
_ADD_MEASUREMENTS = failpoints.register("store.add_measurements")
_FINISH_TRIAL = failpoints.register("store.finish_trial")
_RELABEL_TRIAL = failpoints.register("store.relabel_trial")
_DELETE_TRIAL = failpoints.register("store.delete_trial")


def _of(table: Table, name: StudyName) -> ColumnElement[bool]:
    return and_(table.c.namespace == name.namespace, table.c.study == name.study)


def _held(lease: Lease) -> ColumnElement[bool]:
    return exists().where(_of(studies, lease.name), studies.c.uid == lease.uid, studies.c.owner_epoch == lease.epoch)


def _held_by_parameters() -> ColumnElement[bool]:
    """As `_held`, its values given with each row (`_guard`): the statement is made and compiled once for all leases."""
    return exists().where(
        studies.c.namespace == bindparam("lease_namespace"),
        studies.c.study == bindparam("lease_study"),
        studies.c.uid == bindparam("lease_uid"),
        studies.c.owner_epoch == bindparam("lease_epoch"),
    )


def _guarded_insert(table: Table) -> Insert:
    columns = [c for c in table.c if c.name != "id"]
    values = select(*(bindparam(c.name, type_=c.type) for c in columns)).where(_held_by_parameters())
    return insert(table).from_select(columns, values)


_HANDED_OUT = ("state", "parameters", "client_id", "request_id", "labels")
_insert_trial = _guarded_insert(trials)
_insert_or_hand_out = _insert_trial.on_conflict_do_update(
    index_elements=[trials.c.namespace, trials.c.study, trials.c.number],
    set_={name: getattr(_insert_trial.excluded, name) for name in _HANDED_OUT},
    where=trials.c.state == TrialState.QUEUED.value,
)
_insert_measurement = _guarded_insert(measurements)
_finish_trial = update(trials).where(
    trials.c.namespace == bindparam("lease_namespace"),
    trials.c.study == bindparam("lease_study"),
    trials.c.number == bindparam("this_number"),
    or_(*(trials.c.state == state.value for state in OPEN)),
    _held_by_parameters(),
)


class SqlStore:
    """`Store` in one SQLite file; the locks of its studies lie in `locks/` beside it."""

    def __init__(self, path: Path, *, sync: str = "normal") -> None:
        # By whatever name the file was reached, its locks lie in one place.
        path = path.resolve()
        self._path = path
        self._database = Database(path, sync=sync)
        self._locks = StudyLocks(path.parent / "locks")
        try:
            schema.prepare(self._database)
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        self._locks.release_all()
        self._database.close()

    # Studies

    def insert_study(self, record: StudyRecord) -> bool:
        with self._write(_INSERT_STUDY) as connection:
            statement = (
                insert(studies)
                .values(study_columns(record))
                .on_conflict_do_nothing(index_elements=[studies.c.namespace, studies.c.study])
            )
            return connection.execute(statement).rowcount == 1

    def study(self, name: StudyName) -> StudyRecord | None:
        with self._database.reading() as connection:
            row = connection.execute(select(studies).where(_of(studies, name))).one_or_none()
        return None if row is None else record_of(row)

    def studies(
        self, namespace: str | None, *, labels: Mapping[str, str], after: StudyName | None, limit: int
    ) -> list[Study]:
        query = select(studies).order_by(studies.c.namespace, studies.c.study).limit(limit)
        if namespace is not None:
            query = query.where(studies.c.namespace == namespace)
        if after is not None:
            query = query.where(tuple_(studies.c.namespace, studies.c.study) > (after.namespace, after.study))
        for key, value in labels.items():
            query = query.where(studies.c.labels[key].as_string() == value)
        with self._database.reading() as connection:
            return [study_of(row) for row in connection.execute(query)]

    def update_study(self, lease: Lease, study: Study) -> None:
        with self._write(_UPDATE_STUDY) as connection:
            statement = update(studies).where(_of(studies, lease.name), _held(lease))
            changed = statement.values(spec=spec_document(study.spec), labels=dict(study.labels))
            _must_touch(connection, changed, lease)

    def delete_study(self, lease: Lease) -> None:
        with self._write(_DELETE_STUDY) as connection:
            _must_touch(connection, delete(studies).where(_of(studies, lease.name), _held(lease)), lease)
        self._locks.release(lease.uid, remove=True)

    # Ownership

    def take(self, name: StudyName, *, uid: str, address: str) -> Lease:
        try:
            taken = self._locks.take(uid)
        except OSError as e:
            raise Unavailable(f"{self._path.parent / 'locks'}: cannot lock {name} ({e.strerror})") from e
        if not taken:
            record = self.study(name)
            holder = "" if record is None else record.study.owner_address
            raise NotOwner(
                f"{name} is being written by another process{f' at {holder}' if holder else ''}; send it there, "
                "or end that process and try again",
                address=holder,
            )
        try:
            with self._write(_TAKE_OWNERSHIP) as connection:
                statement = (
                    update(studies)
                    .where(_of(studies, name), studies.c.uid == uid)
                    .values(owner_epoch=studies.c.owner_epoch + 1, owner_address=address)
                    .returning(studies.c.owner_epoch)
                )
                epoch = connection.execute(statement).scalar_one_or_none()
        except BaseException:
            self._locks.release(uid)
            raise
        if epoch is None:
            self._locks.release(uid, remove=True)
            raise NotFound(f"{name} does not exist")
        return Lease(name, uid, epoch)

    def release(self, lease: Lease) -> None:
        try:
            with self._database.writing() as connection:
                # Only what people are told: nothing depends on it.
                connection.execute(
                    update(studies).where(_of(studies, lease.name), _held(lease)).values(owner_address="")
                )
        finally:
            self._locks.release(lease.uid)

    # Trials

    def contents(self, name: StudyName) -> StudyContents:
        with self._database.reading() as connection:
            study = connection.execute(select(studies).where(_of(studies, name))).one_or_none()
            if study is None:
                raise NotFound(f"{name} does not exist")
            found = connection.execute(select(trials).where(_of(trials, name)).order_by(trials.c.number))
            # The row id alone orders it: SQLite then walks the table instead of sorting it.
            reports = connection.execute(
                select(measurements).where(_of(measurements, name)).order_by(measurements.c.id)
            )
            return StudyContents(
                study_of(study), [trial_of(row) for row in found], [(row.trial, measurement_of(row)) for row in reports]
            )

    def hand_out(self, lease: Lease, trials: Sequence[Trial]) -> None:
        with self._write(_HAND_OUT) as connection:
            _must_insert(connection, _insert_or_hand_out, lease, [trial_columns(lease.name, t) for t in trials])

    def add_trial(self, lease: Lease, trial: Trial, *, request_id: str, measurements: Sequence[Measurement]) -> None:
        with self._write(_ADD_TRIAL) as connection:
            columns = trial_columns(lease.name, trial, add_request_id=request_id)
            _must_insert(connection, _insert_trial, lease, [columns])
            rows = measurement_columns(lease.name, trial.number, measurements)
            _must_insert(connection, _insert_measurement, lease, rows)

    def add_measurements(self, lease: Lease, number: int, measurements: Sequence[Measurement]) -> None:
        with self._write(_ADD_MEASUREMENTS) as connection:
            rows = measurement_columns(lease.name, number, measurements)
            _must_insert(connection, _insert_measurement, lease, rows)

    def finish_trial(self, lease: Lease, trial: Trial, measurements: Sequence[Measurement]) -> None:
        with self._write(_FINISH_TRIAL) as connection:
            values = {**outcome_columns(trial), "this_number": trial.number, **_guard(lease)}
            if connection.execute(_finish_trial, values).rowcount != 1:
                raise _lost(lease)
            rows = measurement_columns(lease.name, trial.number, measurements)
            _must_insert(connection, _insert_measurement, lease, rows)

    def relabel_trial(self, lease: Lease, number: int, labels: Mapping[str, str]) -> None:
        with self._write(_RELABEL_TRIAL) as connection:
            statement = update(trials).where(_of(trials, lease.name), trials.c.number == number, _held(lease))
            _must_touch(connection, statement.values(labels=dict(labels)), lease)

    def delete_trial(self, lease: Lease, number: int) -> None:
        with self._write(_DELETE_TRIAL) as connection:
            statement = update(trials).where(_of(trials, lease.name), trials.c.number == number, _held(lease))
            _must_touch(connection, statement.values(deleted=True), lease)
            connection.execute(
                delete(measurements).where(_of(measurements, lease.name), measurements.c.trial == number)
            )

    def trial(self, name: StudyName, number: int) -> Trial | None:
        return self._one_trial(_of(trials, name), trials.c.number == number, ~trials.c.deleted)

    def trial_added_by(self, name: StudyName, request_id: str) -> Trial | None:
        return self._one_trial(_of(trials, name), trials.c.add_request_id == request_id)

    def _one_trial(self, *conditions: ColumnElement[bool]) -> Trial | None:
        with self._database.reading() as connection:
            row = connection.execute(select(trials).where(*conditions)).one_or_none()
        return None if row is None else trial_of(row)

    def trials(
        self, name: StudyName, *, states: Sequence[TrialState], client_id: str, after: int, limit: int
    ) -> list[Trial]:
        query = select(trials).where(_of(trials, name), trials.c.number > after, ~trials.c.deleted)
        if states:
            query = query.where(trials.c.state.in_([state.value for state in states]))
        if client_id:
            query = query.where(trials.c.client_id == client_id)
        with self._database.reading() as connection:
            return [trial_of(row) for row in connection.execute(query.order_by(trials.c.number).limit(limit))]

    def best_trial(self, name: StudyName, direction: Direction) -> Trial | None:
        value = trials.c.value.desc() if direction is Direction.MAXIMIZE else trials.c.value.asc()
        succeeded = and_(trials.c.state == TrialState.SUCCEEDED.value, trials.c.value.is_not(None), ~trials.c.deleted)
        query = select(trials).where(_of(trials, name), succeeded).order_by(value, trials.c.number).limit(1)
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else trial_of(row)

    def measurements(
        self, name: StudyName, number: int | None, *, after: int, limit: int
    ) -> list[tuple[int, int, Measurement]]:
        query = select(measurements).where(_of(measurements, name), measurements.c.id > after)
        if number is not None:
            query = query.where(measurements.c.trial == number)
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(measurements.c.id).limit(limit))
            return [(row.id, row.trial, measurement_of(row)) for row in rows]

    @contextmanager
    def _write(self, points: tuple[str, str]) -> Iterator[Connection]:
        before, after = points
        failpoints.reach(before)
        with self._database.writing() as connection:
            yield connection
        failpoints.reach(after)


def _must_insert(connection: Connection, statement: Insert, lease: Lease, rows: Sequence[Columns]) -> None:
    """One statement, executed for all rows. Undone by the caller's transaction when the lease is outdated."""
    if not rows:
        return
    guard = _guard(lease)
    result = connection.execute(statement, [{**row, **guard} for row in rows])
    if result.rowcount != len(rows):
        raise _lost(lease)


def _guard(lease: Lease) -> Columns:
    name = lease.name
    return {
        "lease_namespace": name.namespace,
        "lease_study": name.study,
        "lease_uid": lease.uid,
        "lease_epoch": lease.epoch,
    }


def _must_touch(connection: Connection, statement: Update | Delete, lease: Lease) -> None:
    if connection.execute(statement).rowcount != 1:
        raise _lost(lease)


def _lost(lease: Lease) -> NotOwner:
    return NotOwner(f"{lease.name} was taken over by another process, or deleted; nothing was written")
