"""The frequent statements of a store: each is built once, and guarded by the lease.

On PostgreSQL, where every round trip counts, many rows are one statement with an array for each
column. SQLite is only a function call away: a statement for each row, as text that is compiled
once, because SQLAlchemy would take several times as long for a row as SQLite does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, TypeAlias

from sqlalchemy import (
    ARRAY,
    JSON,
    Column,
    ColumnElement,
    Connection,
    FromClause,
    Text,
    Update,
    bindparam,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import Insert

from suggest.space import Parameter
from suggest.storage.ownership import guard, held_by_parameters
from suggest.storage.rows import DOCUMENTS, OUTCOME, Columns, json_text
from suggest.storage.store import Lease
from suggest.storage.study_json import parameter_document, spec_document
from suggest.storage.study_tables import measurements, studies, trials
from suggest.study import StudySpec
from suggest.trial import OPEN, Measurement, TrialState

LARGEST = 2**63 - 1
# For up to :trials trials with measurements from :first to :last, select the last step of each
# metric of the newest attempt. Each SELECT min or max is one lookup in the index over (namespace,
# study, trial, attempt, metric, step) and skips all entries in between.
LATEST = text(Path(__file__).with_name("latest_measurements.sql").read_text(encoding="utf-8"))

# The columns that change when a trial is handed out.
# A paused trial loses its value until it ends again.
_HANDED_OUT = (
    "state",
    "parameters",
    "client_id",
    "request_id",
    "labels",
    "tries",
    "lease_us",
    "fidelity",
    "value",
    "step",
    "reason",
)
_TRIAL = tuple(trials.c)
_MEASUREMENT = tuple(column for column in measurements.c if column.name != "id")
_MEASURED = ("trial", *Measurement._fields)


def _in_state(*states: TrialState) -> ColumnElement[bool]:
    # Without parameters, so that all parameters of a statement are columns and the lease.
    return or_(*(trials.c.state == literal_column(f"'{state.value}'") for state in states))


_CHANGE_OPEN_TRIAL = update(trials).where(
    trials.c.namespace == bindparam("lease_namespace"),
    trials.c.study == bindparam("lease_study"),
    trials.c.number == bindparam("this_number"),
    _in_state(*OPEN),
    held_by_parameters(),
)


_CHANGE_STUDY = update(studies).where(
    studies.c.namespace == bindparam("lease_namespace"),
    studies.c.study == bindparam("lease_study"),
    held_by_parameters(),
)


class SqliteStatements:
    """The frequent statements in SQLite's SQL.

    Those that write return how many rows they touched; none if the lease is outdated.
    """

    patience = ""  # every transaction may stall while rows are copied

    def __init__(self) -> None:
        self.insert_study = _insert_study(sqlite.insert(studies))
        new = sqlite.insert(trials)
        guarded = new.from_select(_TRIAL, _parameter_row(_TRIAL))
        self._insert_trial = _GuardedInsert(guarded, new)
        self._hand_out = _GuardedInsert(_handing_out(guarded), _handing_out(new))
        measurement = sqlite.insert(measurements).prefix_with("OR REPLACE")
        self._insert_measurement = _GuardedInsert(
            measurement.from_select(_MEASUREMENT, _parameter_row(_MEASUREMENT)),
            measurement,
            [column.name for column in _MEASUREMENT],
        )
        self._change_open_trial = {
            sets: _Compiled(_CHANGE_OPEN_TRIAL, sets=sets) for sets in (OUTCOME, ("parameters",))
        }
        end: ColumnElement[str] = literal_column("'$.parameters[#]'")
        joining = func.json_insert(studies.c.spec, end, func.json(bindparam("joining", type_=Text)))
        self._grow = _Compiled(_CHANGE_STUDY.values(spec=joining))

    def is_one(self, rows: int) -> bool:
        """Return whether inserting this many rows is one statement."""
        return rows == 1

    def insert_trials(
        self,
        connection: Connection,
        lease: Lease,
        columns: Mapping[str, Sequence[object]],
        *,
        handed_out: bool,
    ) -> int:
        """Insert trials, with documents as JSON text.

        handed_out: trials that exist and are queued or paused are replaced.
        """
        statement = self._hand_out if handed_out else self._insert_trial
        return statement.execute(connection, columns, guard(lease))

    def insert_measurements(
        self,
        connection: Connection,
        lease: Lease,
        reports: Sequence[tuple[int, Sequence[Measurement]]],
    ) -> int:
        """Insert measurements by trial number.

        A replaced one goes to the end, where those who read on find it.
        """
        # SQLite stores NaN as NULL.
        columns = _columns(reports)
        same = {"namespace": lease.name.namespace, "study": lease.name.study, **guard(lease)}
        return self._insert_measurement.execute(connection, columns, same)

    def change_open_trial(
        self, connection: Connection, lease: Lease, number: int, columns: Columns
    ) -> int:
        """Write columns of an open trial: its outcome, or its parameters."""
        row = {
            name: [json_text(value) if name in DOCUMENTS else value]
            for name, value in columns.items()
        }
        statement = self._change_open_trial[tuple(columns)]
        return statement.execute(connection, row, {"this_number": number, **guard(lease)})

    def grow(
        self, connection: Connection, lease: Lease, spec: StudySpec, joining: Parameter | None
    ) -> int:
        """Write a study's spec.

        joining: the last parameter of its space, if that is all that the stored one lacks.
        """
        if joining is None:
            return _change_study(connection, lease, spec)
        # A trial may meet a thousand, one after the other.
        columns = {"joining": [json_text(parameter_document(joining))]}
        return self._grow.execute(connection, columns, guard(lease))

    def has_label(self, key: str, value: str) -> ColumnElement[bool]:
        """Return a condition on a label of a study."""
        return _has_label(func.json_each(studies.c.labels), key, value)


class PostgresStatements:
    """The same in PostgreSQL's SQL."""

    # For a transaction that stalls while rows are copied. It holds no lock that others wait for.
    patience = "SET LOCAL idle_in_transaction_session_timeout = '1min'"

    def __init__(self) -> None:
        # A tenth of the processor time of each command, which SQLite does without.
        from sqlalchemy.dialects.postgresql import insert

        self.insert_study = _insert_study(insert(studies))
        rows = _unnested(_TRIAL, [_array_of(column) for column in _TRIAL])
        given = select(rows).where(held_by_parameters())
        self._insert_trials = insert(trials).from_select(_TRIAL, given)
        self._hand_out = _handing_out(self._insert_trials)
        own = [measurements.c[name] for name in _MEASURED]
        # Send arrays as text in PostgreSQL's notation: its driver takes four times as long for a
        # list of a thousand numbers.
        reported = _unnested(own, [cast(bindparam(c.name, type_=Text), ARRAY(c.type)) for c in own])
        shared = [bindparam(f"lease_{name}", type_=Text) for name in ("namespace", "study")]
        new = insert(measurements).from_select(
            [measurements.c.namespace, measurements.c.study, *own],
            select(*shared, *reported.c).where(held_by_parameters()),
        )
        self._insert_measurements = new.on_conflict_do_update(
            index_elements=[column.name for column in _MEASUREMENT if column.name != "value"],
            set_={"id": new.excluded.id, "value": new.excluded.value},
        )

    def is_one(self, rows: int) -> bool:
        return True

    def insert_trials(
        self,
        connection: Connection,
        lease: Lease,
        columns: Mapping[str, Sequence[object]],
        *,
        handed_out: bool,
    ) -> int:
        statement = self._hand_out if handed_out else self._insert_trials
        arrays = {name: list(values) for name, values in columns.items()}
        return connection.execute(statement, {**arrays, **guard(lease)}).rowcount

    def insert_measurements(
        self,
        connection: Connection,
        lease: Lease,
        reports: Sequence[tuple[int, Sequence[Measurement]]],
    ) -> int:
        columns = _columns(reports)
        arrays = {name: _array(map(str, columns[name])) for name in ("trial", "attempt", "step")}
        arrays["metric"] = _array(map(_quoted, columns["metric"]))
        arrays["value"] = _array(
            "NULL" if math.isnan(value) else repr(value) for value in columns["value"]
        )
        return connection.execute(self._insert_measurements, {**arrays, **guard(lease)}).rowcount

    def change_open_trial(
        self, connection: Connection, lease: Lease, number: int, columns: Columns
    ) -> int:
        values = {**columns, "this_number": number, **guard(lease)}
        return connection.execute(_CHANGE_OPEN_TRIAL, values).rowcount

    def grow(
        self, connection: Connection, lease: Lease, spec: StudySpec, joining: Parameter | None
    ) -> int:
        return _change_study(connection, lease, spec)

    def has_label(self, key: str, value: str) -> ColumnElement[bool]:
        return _has_label(func.json_each_text(studies.c.labels), key, value)


Statements: TypeAlias = SqliteStatements | PostgresStatements


def _change_study(connection: Connection, lease: Lease, spec: StudySpec) -> int:
    values = {"spec": spec_document(spec), **guard(lease)}
    return connection.execute(_CHANGE_STUDY, values).rowcount


class _Compiled:
    """A statement as text for SQLite's driver. `sets`: the columns that an UPDATE sets."""

    def __init__(self, statement: Insert | Update, *, sets: Sequence[str] | None = None) -> None:
        compiled = statement.compile(dialect=sqlite.dialect(), column_keys=sets)
        assert isinstance(compiled, SQLCompiler)
        self._text = compiled.string
        self._names = tuple(compiled.positiontup or ())

    def execute(
        self,
        connection: Connection,
        columns: Mapping[str, Sequence[Any]],
        same: Mapping[str, object],
    ) -> int:
        """Execute it for each index of the columns.

        `same` has the values that are the same each time.

        Returns how many rows were touched.
        """
        given = [
            _without_adapters(columns[name]) if name in columns else repeat(same[name])
            for name in self._names
        ]
        rows = zip(*given, strict=False)
        # Bypasses SQLAlchemy, which takes longer for a row than SQLite does.
        driver: Any = connection.connection.driver_connection
        cursor = (
            driver.execute(self._text, next(rows))
            if len(next(iter(columns.values()))) == 1
            else driver.executemany(self._text, rows)
        )
        touched: int = cursor.rowcount
        return touched


class _GuardedInsert:
    """An INSERT for SQLite's driver, while the lease is held.

    Only the first row is `guarded`: until the transaction ends, no one else can write. Checking the
    lease takes a third of the time of a row.
    """

    def __init__(self, guarded: Insert, other: Insert, sets: Sequence[str] | None = None) -> None:
        self._first, self._others = _Compiled(guarded), _Compiled(other, sets=sets)

    def execute(
        self,
        connection: Connection,
        columns: Mapping[str, Sequence[Any]],
        same: Mapping[str, object],
    ) -> int:
        """Insert rows, and return how many: see `_Compiled.execute`."""
        first = {name: values[:1] for name, values in columns.items()}
        others = {name: values[1:] for name, values in columns.items()}
        touched = self._first.execute(connection, first, same)
        if touched and any(map(len, others.values())):
            touched += self._others.execute(connection, others, same)
        return touched


def _without_adapters(values: Sequence[Any]) -> Sequence[Any]:
    """Return the values with NaN for None and ints for bools, which SQLite stores as the same.

    The driver searches for an adapter of each None and bool. For the Nones of a trial this takes
    nearly as long as storing it.
    """
    if None in values:
        return [math.nan if value is None else value for value in values]
    return list(map(int, values)) if isinstance(values[0], bool) else values


def _insert_study(insert: Any) -> Insert:  # each dialect has an Insert of its own
    statement: Insert = insert.on_conflict_do_nothing(
        index_elements=[studies.c.namespace, studies.c.study]
    )
    return statement


def _handing_out(insert: Any) -> Insert:  # as above
    statement: Insert = insert.on_conflict_do_update(
        index_elements=[trials.c.namespace, trials.c.study, trials.c.number],
        set_={name: getattr(insert.excluded, name) for name in _HANDED_OUT},
        where=_in_state(TrialState.QUEUED, TrialState.PAUSED),
    )
    return statement


def _parameter_row(columns: Sequence[Column[Any]]) -> Any:
    """Return a row with a parameter for each column, if the lease is held."""
    return select(*(bindparam(column.name, type_=column.type) for column in columns)).where(
        held_by_parameters()
    )


def _columns(reports: Sequence[tuple[int, Sequence[Measurement]]]) -> dict[str, list[Any]]:
    """Return the columns of measurements, which are given by trial number."""
    columns: dict[str, list[Any]] = {name: [] for name in _MEASURED}
    for number, found in reports:
        columns["trial"] += [number] * len(found)
        for name, values in zip(Measurement._fields, zip(*found, strict=True), strict=False):
            columns[name] += values
    return columns


def _unnested(columns: Sequence[Column[Any]], arrays: Sequence[ColumnElement[Any]]) -> FromClause:
    """Return a table with a row for each index of the arrays."""
    return func.unnest(*arrays).table_valued(*(c.name for c in columns)).render_derived()


def _array_of(column: Column[Any]) -> ColumnElement[Any]:
    """Return the parameter for the values of a column. PostgreSQL reads documents from text."""
    if column.name in DOCUMENTS:
        return cast(bindparam(column.name, type_=ARRAY(Text)), ARRAY(JSON))
    return bindparam(column.name, type_=ARRAY(column.type))


def _array(words: Iterable[str]) -> str:
    return f"{{{','.join(words)}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def _has_label(each: Any, key: str, value: str) -> ColumnElement[bool]:
    # Expand the document to rows, because a JSON path cannot name every key.
    pairs = each.table_valued("key", "value")
    return (
        select(literal(1))
        .select_from(pairs)
        .where(pairs.c.key == key, pairs.c.value == value)
        .exists()
    )
