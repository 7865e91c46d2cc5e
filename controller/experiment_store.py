"""The controller's store of experiments, their revisions, attempts and events.
Uses SQLAlchemy Core only.

Trials are kept in the study, not in this store. `save` is one transaction, so that a turn's changes
are stored together or not at all. Calls are short (no fsync under WAL) and synchronous. An
experiment has one writer, the controller that holds its lock file.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite import Insert, insert

from controller import experiment_tables as tables
from controller.core.model import (
    Attempt,
    Event,
    Experiment,
    ExperimentSpec,
    ExperimentState,
    Revision,
    TrialOrFinal,
    Uid,
)
from suggest import failpoints
from suggest.errors import AlreadyExists, FailedPrecondition, InvalidArgument, Unavailable
from suggest.storage.database import DamagedRow
from suggest.storage.schema import prepare
from suggest.storage.sqlite import SqliteDatabase

if TYPE_CHECKING:
    from collections.abc import Iterator

_CREATE = failpoints.register("controller.experiment_store.create_experiment")
_REVISE = failpoints.register("controller.experiment_store.add_revision")
_REQUEST = failpoints.register("controller.experiment_store.request_stop")
_DELETE = failpoints.register("controller.experiment_store.delete_experiment")
_SAVE = failpoints.register("controller.store.save")


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


class SqlExperimentStore:
    """The store, on SQLite. `load_spec` turns a stored document into an `ExperimentSpec`.

    Every write is atomic, and when it returns, its changes survive the process. Methods raise
    Unavailable (try again) and StoreBroken (a person is needed), with messages for people.
    """

    def __init__(
        self, path: Path, load_spec: Callable[[Mapping[str, object]], ExperimentSpec]
    ) -> None:
        self._load_spec = load_spec
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror}") from error
        self._database = SqliteDatabase(path)
        try:
            prepare(self._database, tables.SCHEMA)
        except BaseException:
            self.close()
            raise
        self._database.file.mark()

    def close(self) -> None:
        self._database.close()

    # Experiments

    def check(self) -> Mapping[str, int]:
        """Read every page and row. Return the numbers of rows by table. Raises StoreBroken."""
        with self._database.reading() as connection:
            self._database.check_pages(connection)
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
                connection.execute(
                    sa.insert(tables.experiments).values(tables.experiment_row(experiment))
                )
                connection.execute(
                    sa.insert(tables.revisions).values(
                        tables.revision_row(experiment.uid, revision)
                    )
                )
        except sa.exc.IntegrityError as error:
            raise AlreadyExists(
                f"there is an experiment {experiment.name} in {experiment.namespace}"
            ) from error

    def experiment(self, namespace: str, name: str) -> Experiment | None:
        experiments = self._experiments(_EXPERIMENT, namespace=namespace, name=name)
        return experiments[0] if experiments else None

    def named(self, name: str) -> list[Experiment]:
        return self._experiments(_NAMED, name=name)

    def names(self, namespace: str | None) -> list[str]:
        rows = self._rows(_NAMES)
        return [row["name"] for row in rows if namespace in (None, row["namespace"])]

    def experiments(self) -> list[Experiment]:
        return self._experiments(_EXPERIMENTS)

    def _experiments(self, query: sa.Select[Any], **values: str) -> list[Experiment]:
        rows = self._rows(query, **values)
        with self._reading_rows():
            return [
                tables.experiment_of(row, self._load_spec(json.loads(row["document"])))
                for row in rows
            ]

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
                connection.execute(
                    sa.insert(tables.revisions).values(
                        tables.revision_row(experiment.uid, revision)
                    )
                )
                finished = tables.experiments.c.state.in_(
                    [state.value for state in ExperimentState if state.finished]
                )
                this = (tables.experiments.c.uid == experiment.uid) & (
                    finished == experiment.state.finished
                )
                if not connection.execute(
                    sa.update(tables.experiments).where(this).values(**values)
                ).rowcount:
                    raise changed
                _write(connection, experiment.uid, Changes(events=(event,)))
        except sa.exc.IntegrityError as error:
            raise changed from error
        return replace(experiment, revision=revision.number, spec=revision.spec)

    def revisions(self, uid: Uid) -> list[Revision]:
        rows = self._rows(_REVISIONS, of_uid=uid)
        with self._reading_rows():
            return [
                tables.revision_of(row, self._load_spec(json.loads(row["document"])))
                for row in rows
            ]

    def request_stop(self, uid: Uid, *, wanted: bool = True) -> None:
        with self._writing(_REQUEST) as connection:
            this = tables.experiments.c.uid == uid
            connection.execute(
                sa.update(tables.experiments).where(this).values(stop_requested=wanted)
            )

    def requests(self, uid: Uid) -> ControllerRequests:
        """Return what other processes ask of the controller."""
        for row in self._rows(_REQUESTS, of_uid=uid):
            return ControllerRequests(bool(row["stop_requested"]), row["revision"])
        return ControllerRequests()

    def delete_experiment(self, uid: Uid) -> None:
        with self._writing(_DELETE) as connection:
            connection.execute(sa.delete(tables.experiments).where(tables.experiments.c.uid == uid))

    # Attempts and events

    def save(self, uid: Uid, changes: Changes) -> None:
        """Store changes.

        Raises NewerRevision if they end the experiment under an earlier revision.
        """
        with self._writing(_SAVE) as connection:
            _write(connection, uid, changes)

    def attempts(self, uid: Uid, trial: TrialOrFinal | None = None) -> list[Attempt]:
        if trial is None:
            return self._attempts(_ATTEMPTS, of_uid=uid)
        number = tables.trial_column(trial)
        return self.attempts_between(uid, number, number)

    def attempts_between(self, uid: Uid, first: int, last: int) -> list[Attempt]:
        """Return the attempts of the trials from `first` to `last`."""
        return self._attempts(_ATTEMPTS_BETWEEN, of_uid=uid, first=first, last=last)

    def attempts_that_change(self, uid: Uid, trials: Collection[int]) -> list[Attempt]:
        """Return all attempts of these trials, and those of other trials that may change.

        The latter have not ended or are to run again.
        """
        return self._attempts(
            _ATTEMPTS_THAT_CHANGE, of_uid=uid, trials=json.dumps([*trials, tables.FINAL_ROW])
        )

    def _attempts(self, query: sa.Select[Any], **values: str | int) -> list[Attempt]:
        rows = self._rows(query, **values)
        with self._reading_rows():
            return [tables.attempt_of(row) for row in rows]

    def latest_events(self, uid: Uid, count: int) -> list[Event]:
        """Return the last events, oldest first."""
        rows = self._rows(_LATEST_EVENTS, of_uid=uid, count=count)
        with self._reading_rows():
            return [tables.event_of(row) for row in reversed(rows)]

    def events(self, uid: Uid, trial: TrialOrFinal | None = None) -> list[Event]:
        if trial is None:
            rows = self._rows(_EVENTS, of_uid=uid)
        else:
            rows = self._rows(_EVENTS_OF_TRIAL, of_uid=uid, trial=tables.trial_column(trial))
        with self._reading_rows():
            return [tables.event_of(row) for row in rows]

    # Any: the columns of a table
    def _rows(self, query: sa.Select[Any], **values: str | int) -> list[dict[str, Any]]:
        text, its_own = _sql(query)
        with self._database.reading() as connection:
            result = connection.exec_driver_sql(text, its_own | values)
            names = list(result.keys())
            # faster to read than SQLAlchemy's mappings
            return [dict(zip(names, row, strict=True)) for row in result]

    @contextmanager
    def _reading_rows(self) -> Iterator[None]:
        """Report values that nobody wrote as damage.

        Nothing but conversions of rows belongs inside.
        """
        try:
            yield
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            InvalidArgument,
        ) as error:
            raise DamagedRow(f"{type(error).__name__}: {error}").broken(
                self._database.place
            ) from error

    @contextmanager
    def _writing(self, points: tuple[str, str]) -> Iterator[sa.Connection]:
        """Open one transaction, between its two failpoints."""
        before, after = points
        failpoints.reach(before)
        with self._database.writing() as connection:
            yield connection
        failpoints.reach(after)


def _upsert(table: sa.Table) -> Insert:
    statement = insert(table)
    keys = [column.name for column in table.primary_key]
    updates = {
        column.name: statement.excluded[column.name]
        for column in table.c
        if column.name not in keys
    }
    return statement.on_conflict_do_update(index_elements=keys, set_=updates)


# Compiled once, because compiling takes longer than running;
# these statements run several times per trial.
_DRIVER = sqlite.dialect(paramstyle="named")
_UPSERT_ATTEMPT = str(_upsert(tables.attempts).compile(dialect=_DRIVER))
_INSERT_EVENT = str(
    insert(tables.events).compile(
        dialect=_DRIVER, column_keys=[c.name for c in tables.events.c if not c.primary_key]
    )
)
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


def _of_uid(table: sa.Table) -> sa.Select[Any]:
    return sa.select(table).where(table.c.uid == sa.bindparam("of_uid"))


_REVISIONS = _of_uid(tables.revisions).order_by(tables.revisions.c.number)
_ATTEMPTS = _of_uid(tables.attempts).order_by(tables.attempts.c.trial, tables.attempts.c.number)
_ATTEMPTS_BETWEEN = _ATTEMPTS.where(
    tables.attempts.c.trial.between(sa.bindparam("first"), sa.bindparam("last"))
)
_ATTEMPTS_THAT_CHANGE = _ATTEMPTS.where(
    sa.or_(
        tables.attempts.c.end_time.is_(None),
        tables.attempts.c.rerun,
        tables.attempts.c.trial.in_(
            sa.select(sa.func.json_each(sa.bindparam("trials")).table_valued("value").c.value)
        ),
    )
)
_EVENTS = _of_uid(tables.events).order_by(tables.events.c.id)
_EVENTS_OF_TRIAL = _EVENTS.where(tables.events.c.trial == sa.bindparam("trial"))
_LATEST_EVENTS = (
    _of_uid(tables.events).order_by(tables.events.c.id.desc()).limit(sa.bindparam("count"))
)


@functools.cache
def _sql(query: sa.Select[Any]) -> tuple[str, dict[str, Any]]:  # Any: values of columns
    """Return the text of one of the constants above, and its own values, such as OFFSET 0.

    Its rows have SQLite's values, such as 1 for true.
    """
    compiled = query.compile(dialect=_DRIVER)
    return str(compiled), dict(compiled.params)


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
        connection.exec_driver_sql(
            _UPSERT_ATTEMPT, [tables.attempt_row(uid, attempt) for attempt in changes.attempts]
        )
    if changes.events:
        connection.exec_driver_sql(
            _INSERT_EVENT, [tables.event_row(uid, event) for event in changes.events]
        )


def _check_is_newest(connection: sa.Connection, experiment: Experiment) -> None:
    stored = connection.execute(_REQUESTS, {"of_uid": experiment.uid}).first()
    if stored is not None and stored.revision > experiment.revision:
        raise NewerRevision(f"revision {stored.revision} of {experiment.name} is not in effect yet")
