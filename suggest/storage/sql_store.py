"""The store of studies in SQL, over SQLAlchemy Core, on SQLite and PostgreSQL alike.

Each method is one transaction, and frequent operations are one statement: handing out trials is one
INSERT without a read. Every write has the lease in its WHERE clause; if it touches no row, the
study has a new owner. `tests/contract/store_contract.py` tests the store on each database.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Select,
    Subquery,
    Update,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    true,
    tuple_,
    update,
)

from suggest import failpoints
from suggest.curves import Curve, TrialCurve
from suggest.errors import AlreadyExists, NotFound, NotOwner
from suggest.failpoints import Failpoints
from suggest.space import Parameter
from suggest.storage.database import Database
from suggest.storage.observation_log import ObservationLog
from suggest.storage.ownership import Ownership, held, named, of, of_parameters
from suggest.storage.page_sessions import PageSessions
from suggest.storage.rows import (
    AnyRow,
    Columns,
    columns_of_batch,
    columns_of_trials,
    measurement_of,
    outcome_columns,
    past_document,
    record_of,
    reopened_columns,
    state_of,
    study_columns,
    study_of,
    trial_of,
)
from suggest.storage.schema import prepare
from suggest.storage.statements import LARGEST, LATEST, Statements
from suggest.storage.store import MAX_METRICS, Addition, Counts, Lease, StudyContents, StudyRecord
from suggest.storage.study_json import spec_document
from suggest.storage.study_tables import SCHEMA, measurements, studies, trials
from suggest.study import Direction, Study, StudyName
from suggest.trial import (
    IMPORTED_FROM,
    OPEN,
    REUSED,
    Measurement,
    Trial,
    TrialBatch,
    TrialState,
)

Item = TypeVar("Item")

TRIALS_AT_ONCE = 100
TRIALS_PER_PAGE = 1000

_INSERT_STUDY = failpoints.register("store.insert_study")
NO_NAMES: Mapping[str, str] = MappingProxyType({})
NO_CLIENTS: Mapping[StudyName, str] = MappingProxyType({})
_UPDATE_STUDY = failpoints.register("store.update_study")
_DELETE_STUDY = failpoints.register("store.delete_study")
_COPY_STUDY = failpoints.register("store.copy_study")
_TAKE_OWNERSHIP = failpoints.register("store.take_ownership")
_HAND_OUT = failpoints.register("store.hand_out")
_REQUEUE = failpoints.register("store.requeue")
_ADD_TRIALS = failpoints.register("store.add_trials")
_ADD_MEASUREMENTS = failpoints.register("store.add_measurements")
_FINISH_TRIAL = failpoints.register("store.finish_trial")
_REOPEN_TRIALS = failpoints.register("store.reopen_trials")
_DECIDE = failpoints.register("store.decide")
_RELABEL_TRIAL = failpoints.register("store.relabel_trial")
_DELETE_TRIAL = failpoints.register("store.delete_trial")

_AT_A_TIME = 500  # numbers of trials, or names of studies, per statement
_ROWS_AT_A_TIME = 5000  # of a copied study

_STUDY = select(studies).where(of_parameters(studies))
_TRIALS = select(trials).where(of_parameters(trials)).order_by(trials.c.number)
_KEY = tuple(trials.primary_key.columns)
_WHOSE = (trials.c.namespace, trials.c.study)
_NEVER_RAN = or_(
    *(trials.c.labels[key].as_string().is_not(None) for key in (IMPORTED_FROM, REUSED))
)


class StudyStore:
    """The studies in a SQL database, whose schema is created or upgraded.

    Closing the store closes `database`.

    Blocking and thread-safe. Every write is complete when it returns, absent when it raises.
    Reading needs no lease and sees what is committed.

    Raises:
        Unavailable: try again. Nothing changed, unless the connection broke: then take the study
        again and read it.
        StoreBroken: the store cannot be used until a person repairs it.
        NotOwner: of writes; the study was taken over or deleted since `lease` was given.
    """

    def __init__(self, database: Database, ownership: Ownership, statements: Statements) -> None:
        try:
            prepare(database, SCHEMA)
        except BaseException:
            database.close()
            raise
        self._database = database
        self._ownership = ownership
        self._statements = statements
        self.observations = ObservationLog(database)
        self.page_sessions = PageSessions(database)

    def close(self) -> None:
        """Release all studies and close the store."""
        try:
            self._ownership.close()
        finally:
            self._database.close()

    # Studies

    def insert_study(self, record: StudyRecord) -> bool:
        """Insert a study. Return False, having written nothing, if the name is taken."""
        with self._write(_INSERT_STUDY, single=True) as connection:
            return (
                connection.execute(self._statements.insert_study, study_columns(record)).rowcount
                == 1
            )

    def copy_study(
        self, name: StudyName, target: StudyStore, *, on_view: Callable[[], None] = lambda: None
    ) -> bool:
        """Copy a study, with all its trials and measurements, into another store.

        on_view: called once what is copied can no longer change; may raise, and nothing is copied.

        Return False, having written nothing, if there is no such study. Raises AlreadyExists if the
        other store has a study of this name.
        """
        with self._database.reading() as here, target._write(_COPY_STUDY) as there:
            for store, connection in ((self, here), (target, there)):
                if patience := store._statements.patience:
                    connection.exec_driver_sql(patience)
            study = here.execute(select(studies).where(of(studies, name))).mappings().one_or_none()
            on_view()
            if study is None:
                return False
            row = {**study, "owner_address": ""}
            if there.execute(target._statements.insert_study, row).rowcount != 1:
                raise AlreadyExists(f"{target._database.place}: has a study {name} already")
            for table, order in ((trials, "number"), (measurements, "id")):
                columns = [column for column in table.c if column.name != "id"]
                query = select(*columns).where(of(table, name)).order_by(table.c[order])
                for rows in here.execute(query).mappings().partitions(_ROWS_AT_A_TIME):
                    there.execute(insert(table), [dict(row) for row in rows])
        return True

    def study(self, name: StudyName) -> StudyRecord | None:
        with self._database.reading(single=True) as connection:
            row = connection.execute(_STUDY, named(name)).one_or_none()
            return None if row is None else record_of(row)

    def studies(
        self,
        namespace: str | None,
        *,
        labels: Mapping[str, str],
        after: StudyName | None,
        limit: int,
    ) -> list[Study]:
        """Return studies ordered by namespace and study name.

        A `namespace` of None means all namespaces.
        """
        query = select(studies).order_by(studies.c.namespace, studies.c.study).limit(limit)
        if namespace is not None:
            query = query.where(studies.c.namespace == namespace)
        if after is not None:
            query = query.where(
                tuple_(studies.c.namespace, studies.c.study) > (after.namespace, after.study)
            )
        for key, value in labels.items():
            query = query.where(self._statements.has_label(key, value))
        with self._database.reading(single=True) as connection:
            return [study_of(row) for row in connection.execute(query)]

    def check(self) -> Mapping[str, int]:
        """Read every page, study, trial and measurement.

        Return their numbers by table. Raises StoreBroken.
        """
        numbers = Counter[str]()
        with self._database.reading() as connection:
            self._database.check_pages(connection)
            for table, read in (
                (studies, study_of),
                (trials, trial_of),
                (measurements, measurement_of),
            ):
                for row in connection.execute(select(table)):
                    read(row)
                    numbers[table.name] += 1
        return numbers

    def counts(self, namespace: str) -> Counts:
        """Count what the namespace contains, including deleted trials.

        Slow for large namespaces.
        """
        with self._database.reading() as connection:
            found = [
                connection.execute(
                    select(func.count()).select_from(table).where(table.c.namespace == namespace)
                ).scalar_one()
                for table in (studies, trials, measurements)
            ]
        return Counts(*found)

    def update_study(
        self, lease: Lease, study: Study, *, renamed: Mapping[str, str] = NO_NAMES
    ) -> None:
        """Write the study's spec, labels and past spaces, and new names of `renamed` metrics."""
        with self._write(_UPDATE_STUDY, lease, single=not renamed) as connection:
            statement = update(studies).where(of(studies, lease.name), held(lease))
            changed = statement.values(
                spec=spec_document(study.spec), labels=dict(study.labels), past=past_document(study)
            )
            _must_touch(connection, changed, lease)
            for old, new in renamed.items():
                connection.execute(_renaming(lease.name, old, new))

    def delete_study(self, lease: Lease) -> None:
        """Delete the study with all its trials and measurements, and release the lease."""
        with self._write(_DELETE_STUDY, lease) as connection:
            _must_touch(
                connection, delete(studies).where(of(studies, lease.name), held(lease)), lease
            )
            connection.execute(delete(measurements).where(of(measurements, lease.name)))
        self._ownership.deleted(lease)

    # Ownership

    def take(self, name: StudyName, *, uid: str, address: str) -> Lease:
        """Become the study's only writer until `release` or the end of this process.

        A study whose owner has died can be taken soon afterwards.

        Raises:
            NotOwner: another process holds the study; with the address of that process.
            NotFound: the study does not exist (any more).
        """
        with _TAKE_OWNERSHIP:
            return self._ownership.take(name, uid=uid, address=address)

    def still_held(self, lease: Lease) -> bool:
        """Return False if another process may have taken the study meanwhile.

        It may not have written anything yet.

        For replies that write nothing. Usually the answer is known without asking the database.
        """
        return self._ownership.still_held(lease)

    def release(self, lease: Lease) -> None:
        """Release the study. An outdated lease is not an error."""
        self._ownership.release(lease)

    # Trials

    def contents(self, name: StudyName) -> StudyContents:
        with self._database.reading() as connection:
            study = connection.execute(_STUDY, named(name)).one_or_none()
            if study is None:
                raise NotFound(f"{name} does not exist")
            rows = connection.execute(_TRIALS, named(name))
            found = [trial_of(row) for row in rows]
            # Select by trial numbers, a few hundred at a time. With a join,
            # the database would read all measurements.
            numbers = [trial.number for trial in found if trial.state in OPEN]
            reports: list[AnyRow] = []
            for some in _parts(numbers):
                theirs = of(measurements, name), measurements.c.trial.in_(some)
                reports += connection.execute(select(measurements).where(*theirs)).all()
            reports.sort(key=lambda row: row.id)
            return StudyContents(
                study_of(study), found, [(row.trial, measurement_of(row)) for row in reports]
            )

    def curves(self, name: StudyName, metric: str) -> Iterator[TrialCurve]:
        """Yield the curves of succeeded and pruned trials that reported the metric, by number."""
        m = measurements.c
        judged = trials.c.state.in_((TrialState.SUCCEEDED.value, TrialState.PRUNED.value))
        of_judged = of(trials, name), judged, ~trials.c.deleted
        theirs = of(measurements, name), m.trial.in_(select(trials.c.number).where(*of_judged))
        newest = (
            select(m.trial, func.max(m.attempt))
            .where(*theirs)
            .group_by(m.trial)
            .having(func.max(m.attempt) > 1)
        )
        query = select(m.trial, m.attempt, m.step, m.value).where(*theirs, m.metric == metric)
        ended = select(trials.c.number, trials.c.state, trials.c.value).where(*of_judged)
        with self._database.reading() as connection:
            ends = {
                number: (state_of(state), value)
                for number, state, value in connection.execute(ended)
            }
            later = {row[0]: row[1] for row in connection.execute(newest)}
            rows = connection.execute(query.order_by(m.trial, m.attempt, m.step)).all()
        for trial, group in itertools.groupby(rows, key=itemgetter(0)):
            attempt = later.get(trial, 1)
            points = [
                (step, math.nan if value is None else value)
                for _, a, step, value in group
                if a == attempt
            ]
            # another process may have ended a trial between the two queries
            if points and trial in ends:
                state, worth = ends[trial]
                yield TrialCurve(trial, state, Curve(points), worth)

    def hand_out(self, lease: Lease, trials: Sequence[Trial], *, queued: int = 0) -> None:
        """Insert these running trials; `queued` of them exist as queued trials and are replaced."""
        columns = columns_of_trials(lease.name, trials)
        with self._write(
            _HAND_OUT, lease, single=self._statements.is_one(len(trials))
        ) as connection:
            self._insert_trials(connection, lease, columns, handed_out=True)

    def requeue(self, lease: Lease, numbers: Sequence[int]) -> None:
        """Set these running trials to queued; everything else stays."""
        with self._write(_REQUEUE) as connection:
            queued = {"state": TrialState.QUEUED.value}
            _change_all(connection, lease, numbers, TrialState.RUNNING, queued)

    def add_trials(self, lease: Lease, additions: Sequence[Addition]) -> None:
        """Add all trials or none."""
        trials = [each.trial for each in additions]
        request_ids = [each.request_id for each in additions]
        columns = columns_of_trials(lease.name, trials, request_ids)
        reports = [
            (each.trial.number, each.measurements) for each in additions if each.measurements
        ]
        single = self._statements.is_one(len(trials)) and not reports
        with self._write(_ADD_TRIALS, lease, single=single) as connection:
            self._insert_trials(connection, lease, columns)
            self._insert_measurements(connection, lease, *reports)

    def add_batch(self, lease: Lease, batch: TrialBatch) -> None:
        """Add all trials or none."""
        columns = columns_of_batch(lease.name, batch)
        with self._write(
            _ADD_TRIALS, lease, single=self._statements.is_one(len(batch))
        ) as connection:
            self._insert_trials(connection, lease, columns)

    def add_measurements(
        self, lease: Lease, number: int, measurements: Sequence[Measurement]
    ) -> None:
        """Add measurements, none of which may be stored already."""
        single = self._statements.is_one(len(measurements))
        with self._write(_ADD_MEASUREMENTS, lease, single=single) as connection:
            self._insert_measurements(connection, lease, (number, measurements))

    def finish_trial(self, lease: Lease, trial: Trial, measurements: Sequence[Measurement]) -> None:
        """Replace an open trial with this finished one, and add its last measurements.

        None of the measurements is stored already.
        """
        with self._write(_FINISH_TRIAL, lease, single=not measurements) as connection:
            self._change_open_trial(connection, lease, trial, outcome_columns(trial))
            self._insert_measurements(connection, lease, (trial.number, measurements))

    def reopen_trials(self, lease: Lease, numbers: Sequence[int]) -> None:
        """Set these failed trials to running and remove their outcomes, all or none."""
        with self._write(_REOPEN_TRIALS) as connection:
            _change_all(connection, lease, numbers, TrialState.FAILED, reopened_columns())

    def relabel_trial(self, lease: Lease, number: int, labels: Mapping[str, str]) -> None:
        with self._write(_RELABEL_TRIAL, lease, single=True) as connection:
            statement = _changing_trial(lease, number).values(labels=dict(labels))
            _must_touch(connection, statement, lease)

    def decide(
        self, lease: Lease, trial: Trial, study: Study | None, *, joining: Parameter | None = None
    ) -> None:
        """Write the trial's parameters and, unless None, the spec of the study that has them.

        joining: the last parameter of that study's space, if the stored one lacks nothing else.
        """
        with self._write(_DECIDE, lease, single=study is None) as connection:
            if study is not None:
                touched = self._statements.grow(connection, lease, study.spec, joining)
                if touched != 1:
                    raise _lost(lease)
            parameters = {"parameters": dict(trial.parameters)}
            self._change_open_trial(connection, lease, trial, parameters)

    def delete_trial(self, lease: Lease, number: int) -> None:
        """Hide the trial from all reads and remove its measurements.

        The number of the trial stays taken.
        """
        with self._write(_DELETE_TRIAL, lease) as connection:
            _must_touch(connection, _changing_trial(lease, number).values(deleted=True), lease)
            connection.execute(
                delete(measurements).where(
                    of(measurements, lease.name), measurements.c.trial == number
                )
            )

    def trial(self, name: StudyName, number: int) -> Trial | None:
        return self._one_trial(
            select(trials).where(of(trials, name), trials.c.number == number, ~trials.c.deleted)
        )

    def trial_added_by(self, name: StudyName, request_id: str) -> Trial | None:
        """Return the trial that AddTrial created for this request, even if deleted since."""
        return self._one_trial(
            select(trials).where(of(trials, name), trials.c.add_request_id == request_id)
        )

    def numbers_added_by(self, name: StudyName, request_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of trials that these requests created, even if deleted since."""
        query = select(trials.c.add_request_id, trials.c.number).where(
            of(trials, name), trials.c.add_request_id.in_(request_ids)
        )
        with self._database.reading(single=True) as connection:
            return {row.add_request_id: row.number for row in connection.execute(query)}

    # a row has too many columns for a type
    def _one_trial(self, query: Select[Any]) -> Trial | None:
        with self._database.reading(single=True) as connection:
            row = connection.execute(query).one_or_none()
            return None if row is None else trial_of(row)

    def trials(
        self,
        name: StudyName,
        *,
        states: Sequence[TrialState],
        client_id: str,
        after: int,
        limit: int,
    ) -> list[Trial]:
        """Return trials with numbers above `after`, in order.

        No states and no `client_id` mean all.
        """
        query = select(trials).where(of(trials, name), trials.c.number > after, ~trials.c.deleted)
        if states:
            query = query.where(trials.c.state.in_([state.value for state in states]))
        if client_id:
            query = query.where(trials.c.client_id == client_id)
        with self._database.reading(single=True) as connection:
            return [
                trial_of(row)
                for row in connection.execute(query.order_by(trials.c.number).limit(limit))
            ]

    def pages_of_trials(
        self, name: StudyName, states: Sequence[TrialState]
    ) -> Iterator[list[Trial]]:
        """Yield the trials in these states page by page.

        A large study's trials must not all be in memory at once.
        """
        after = -1
        while page := self.trials(
            name, states=states, client_id="", after=after, limit=TRIALS_PER_PAGE
        ):
            yield page
            after = page[-1].number

    def trial_counts(
        self, names: Sequence[StudyName], *, clients: Mapping[StudyName, str] = NO_CLIENTS
    ) -> dict[StudyName, dict[TrialState, int]]:
        """Count the trials of each state in these studies. Reads a row for each trial.

        clients: by study, the client whose trials count, unless they did not run. None: all count.
        """
        found: dict[StudyName, dict[TrialState, int]] = {name: {} for name in names}
        query = select(*_WHOSE, trials.c.state, func.count().label("trials"))
        query = query.where(~trials.c.deleted).group_by(*_WHOSE, trials.c.state)
        if clients:
            query = query.where(~_NEVER_RAN)
        for some in _parts(names):
            with self._database.reading(single=True) as connection:
                for row in connection.execute(query.where(_in_studies(some, clients))):
                    found[StudyName(row.namespace, row.study)][state_of(row.state)] = row.trials
        return found

    def best_trials(
        self,
        directions: Mapping[StudyName, Direction],
        *,
        clients: Mapping[StudyName, str] = NO_CLIENTS,
    ) -> dict[StudyName, Trial]:
        """Return the best succeeded trial of each of these studies that has one.

        Of several, the one with the lowest number. Reads a row for each trial.

        clients: by study, the client whose trials count, beside those that did not run.
        """
        found: dict[StudyName, Trial] = {}
        for direction in set(directions.values()):
            names = [name for name, each in directions.items() if each is direction]
            for some in _parts(names):
                counted = _in_studies(some, clients) | _NEVER_RAN if clients else true()
                query = _best(direction, _in_studies(some, NO_CLIENTS), counted)
                with self._database.reading(single=True) as connection:
                    for row in connection.execute(query):
                        found[StudyName(row.namespace, row.study)] = trial_of(row)
        return found

    def measurements(
        self, name: StudyName, number: int | None, *, after: int, limit: int
    ) -> list[tuple[int, int, Measurement]]:
        """Return tuples (position, trial, measurement) with positions above `after`.

        They are in the order of the reports. A `number` of None means all trials.
        """
        query = select(measurements).where(of(measurements, name), measurements.c.id > after)
        if number is not None:
            query = query.where(measurements.c.trial == number)
        with self._database.reading(single=True) as connection:
            rows = connection.execute(query.order_by(measurements.c.id).limit(limit))
            return [(row.id, row.trial, measurement_of(row)) for row in rows]

    def latest_measurements(
        self, name: StudyName, number: int | None, *, after: int, limit: int
    ) -> list[tuple[int, int, Measurement]]:
        """Like `measurements`, but only each metric's last step in each trial's newest attempt.

        Ordered by trial and metric, with at most MAX_METRICS metrics of a trial. `after` is -1 for
        the first page. The work is bounded, however many measurements there are.
        """
        whose = {"namespace": name.namespace, "study": name.study, "metrics": MAX_METRICS}
        found: list[tuple[int, int, Measurement]] = []
        first, last = ((after + 1) // MAX_METRICS, LARGEST) if number is None else (number, number)
        # Read a few trials first, because the number of their metrics is not known before.
        at_once = TRIALS_AT_ONCE
        while len(found) < limit:
            span = {"first": first, "last": last, "trials": min(limit - len(found), at_once)}
            with self._database.reading(single=True) as connection:
                rows = connection.execute(LATEST, whose | span).all()
            # By position, because access by name would double the time.
            found += [
                (
                    position,
                    trial,
                    Measurement(attempt, metric, step, math.nan if value is None else value),
                )
                for trial, place, attempt, metric, step, value in rows
                if (position := trial * MAX_METRICS + place) > after
            ]
            if not rows or number is not None:
                break
            metrics = len(rows) / span["trials"]
            at_once = max(1, math.ceil((limit - len(found)) / metrics))
            first = rows[-1].trial + 1
        return found[:limit]

    def _insert_trials(
        self,
        connection: Connection,
        lease: Lease,
        columns: Mapping[str, Sequence[object]],
        *,
        handed_out: bool = False,
    ) -> None:
        """Insert trials.

        Raises NotOwner if the lease is outdated, so that the transaction is rolled back.
        """
        total = len(columns["number"])
        if (
            total
            and self._statements.insert_trials(connection, lease, columns, handed_out=handed_out)
            != total
        ):
            raise _lost(lease)

    def _change_open_trial(
        self, connection: Connection, lease: Lease, trial: Trial, columns: Columns
    ) -> None:
        """Write columns of a trial. Raises NotOwner, as `_insert_trials` does."""
        if self._statements.change_open_trial(connection, lease, trial.number, columns) != 1:
            raise _lost(lease)

    def _insert_measurements(
        self, connection: Connection, lease: Lease, *reports: tuple[int, Sequence[Measurement]]
    ) -> None:
        """Insert measurements by trial number. Raises NotOwner, as `_insert_trials` does."""
        some = [report for report in reports if report[1]]
        total = sum(len(measurements) for _, measurements in some)
        if total and self._statements.insert_measurements(connection, lease, some) != total:
            raise _lost(lease)

    @contextmanager
    def _write(
        self, points: Failpoints, lease: Lease | None = None, *, single: bool = False
    ) -> Iterator[Connection]:
        with points, self._database.writing(single=single) as connection:
            if lease is not None:
                self._ownership.check(connection, lease)
            yield connection


def _changing_trial(lease: Lease, number: int) -> Update:
    return update(trials).where(of(trials, lease.name), trials.c.number == number, held(lease))


def _renaming(name: StudyName, old: str, new: str) -> Update:
    """Return the statement that renames a metric, but not in trials that reported the new name."""
    other = measurements.alias()
    known = select(other.c.trial).where(
        other.c.namespace == name.namespace, other.c.study == name.study, other.c.metric == new
    )
    kept = measurements.c.trial.not_in(known)
    return (
        update(measurements)
        .where(of(measurements, name), measurements.c.metric == old, kept)
        .values(metric=new)
    )


def _parts(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    return (items[k : k + _AT_A_TIME] for k in range(0, len(items), _AT_A_TIME))


def _in_studies(
    names: Sequence[StudyName], clients: Mapping[StudyName, str]
) -> ColumnElement[bool]:
    """Return a condition on trials: they are in one of these studies, and of its client, if any."""
    if clients:
        of_client = [(name.namespace, name.study, clients[name]) for name in names]
        return tuple_(*_WHOSE, trials.c.client_id).in_(of_client)
    return tuple_(*_WHOSE).in_([(name.namespace, name.study) for name in names])


def _best(
    direction: Direction, in_studies: ColumnElement[bool], counted: ColumnElement[bool]
) -> Select[Any]:
    """Return the query for each study's first succeeded trial with the best value.

    Two groupings take half the time of ranking all trials.
    """
    extreme = func.min if direction.sign > 0 else func.max
    succeeded = counted & (trials.c.state == TrialState.SUCCEEDED.value) & ~trials.c.deleted
    best = select(*_WHOSE, extreme(trials.c.value).label("value"))
    best_values = best.where(in_studies, succeeded).group_by(*_WHOSE).subquery()
    first = select(*_WHOSE, func.min(trials.c.number).label("number"))
    having_it = first.join(best_values, _same(best_values)).where(succeeded)
    numbers = having_it.group_by(*_WHOSE).subquery()
    return select(trials).join(numbers, _same(numbers))


def _same(found: Subquery) -> ColumnElement[bool]:
    """Return the condition that a trial has the values of a subquery's columns."""
    return and_(*(trials.c[column.name] == column for column in found.c))


def _change_all(
    connection: Connection,
    lease: Lease,
    numbers: Sequence[int],
    state: TrialState,
    columns: Mapping[str, object],
) -> None:
    """Change these trials, which are in this state. Raises NotOwner, as `_lost` says."""
    for some in _parts(numbers):
        these = trials.c.number.in_(some), trials.c.state == state.value
        statement = update(trials).where(of(trials, lease.name), *these, held(lease))
        if connection.execute(statement.values(columns)).rowcount != len(some):
            raise _lost(lease)


def _must_touch(connection: Connection, statement: Update | Delete, lease: Lease) -> None:
    if connection.execute(statement).rowcount != 1:
        raise _lost(lease)


def _lost(lease: Lease) -> NotOwner:
    return NotOwner(
        f"{lease.name} was taken over by another process, or deleted; nothing was written"
    )
