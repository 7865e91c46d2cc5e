"""The statements that a store executes often: made once, compiled once, guarded by the lease.

Many rows are one statement on PostgreSQL, whose every round trip counts: each column goes as an array. SQLite, a
function call away, executes the statement for each row, and is handed text and values: SQLAlchemy would take several
times as long over a row as SQLite does. Nothing is executed in any other way than by `insert` and `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Table,
    Update,
    bindparam,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import Insert

from suggest.store.ownership import guard, held_by_parameters
from suggest.store.protocol import Lease
from suggest.store.rows import Columns
from suggest.store.tables import measurements, studies, trials
from suggest.trial import OPEN, TrialState

_HANDED_OUT = ("state", "parameters", "client_id", "request_id", "labels")

_FINISH_TRIAL = update(trials).where(
    trials.c.namespace == bindparam("lease_namespace"),
    trials.c.study == bindparam("lease_study"),
    trials.c.number == bindparam("this_number"),
    or_(*(trials.c.state == state.value for state in OPEN)),
    held_by_parameters(),
)


@dataclass(frozen=True, slots=True)
class _Plain:
    """A statement as the driver takes it. `converted`: the places of documents, all that it does not know."""

    text: str
    ordered: Callable[[Mapping[str, object]], tuple[object, ...]]
    constants: Mapping[str, object]
    converted: Sequence[tuple[int, Callable[[object], object]]]

    def execute(self, connection: Connection, rows: Sequence[Columns], same: Columns) -> int:
        """For each of the rows; how many were touched."""
        same = {**self.constants, **same}
        lines = [self._line({**same, **row}) for row in rows]
        return connection.exec_driver_sql(self.text, lines if len(lines) > 1 else lines[0]).rowcount

    def _line(self, values: Columns) -> tuple[object, ...]:
        if not self.converted:
            return self.ordered(values)
        line = list(self.ordered(values))
        for place, convert in self.converted:
            line[place] = convert(line[place])
        return tuple(line)


def _plain(statement: Insert | Update, dialect: Dialect, columns: list[str]) -> _Plain:
    compiled = statement.compile(dialect=dialect, column_keys=columns)
    assert isinstance(compiled, SQLCompiler)
    places = compiled.positiontup
    assert places is not None, "SQLite's parameters go by their places"
    types = [compiled.binds[name].type for name in places]
    documents = [(place, kind.dialect_impl(dialect)) for place, kind in enumerate(types) if isinstance(kind, JSON)]
    processors = [(place, kind.bind_processor(dialect)) for place, kind in documents]
    converted = [(place, convert) for place, convert in processors if convert is not None]
    return _Plain(compiled.string, itemgetter(*places), compiled.params, converted)


class Statements:
    """`insert`: the dialect's own, which knows conflicts. `arrays`: all rows are one statement."""

    def __init__(self, insert: Callable[[Table], Any], *, arrays: bool) -> None:
        self._arrays = arrays
        self._compiled: dict[Insert | Update, _Plain] = {}
        self.insert_study = insert(studies).on_conflict_do_nothing(
            index_elements=[studies.c.namespace, studies.c.study]
        )
        self.insert_trial = self._guarded(insert, trials)
        self.insert_measurement = self._guarded(insert, measurements)
        inserted = self._guarded(insert, trials)
        self.hand_out: Insert = inserted.on_conflict_do_update(
            index_elements=[trials.c.namespace, trials.c.study, trials.c.number],
            set_={name: getattr(inserted.excluded, name) for name in _HANDED_OUT},
            where=trials.c.state == TrialState.QUEUED.value,
        )

    def is_one(self, rows: int) -> bool:
        """Whether to insert so many is one statement."""
        return self._arrays or rows == 1

    def insert(self, connection: Connection, statement: Insert, lease: Lease, rows: Sequence[Columns]) -> int:
        """How many rows were written: of an outdated lease none."""
        same = guard(lease)
        if self._arrays:
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            return connection.execute(statement, {**columns, **same}).rowcount
        return self._plain(connection, statement, rows[0]).execute(connection, rows, same)

    def finish(self, connection: Connection, lease: Lease, number: int, outcome: Columns) -> int:
        """How many trials have ended by it: of an outdated lease none."""
        same = {"this_number": number, **guard(lease)}
        if self._arrays:
            return connection.execute(_FINISH_TRIAL, {**outcome, **same}).rowcount
        return self._plain(connection, _FINISH_TRIAL, {**outcome, **same}).execute(connection, [outcome], same)

    def _plain(self, connection: Connection, statement: Insert | Update, values: Columns) -> _Plain:
        """`values`: names what is set."""
        found = self._compiled.get(statement)
        if found is None:
            found = self._compiled[statement] = _plain(statement, connection.dialect, list(values))
        return found

    def has_label(self, key: str, value: str) -> ColumnElement[bool]:
        """By rows of key and value: a path into the document does not find every key."""
        each = func.json_each_text if self._arrays else func.json_each
        pairs = each(studies.c.labels).table_valued("key", "value")
        return select(literal(1)).select_from(pairs).where(pairs.c.key == key, pairs.c.value == value).exists()

    def _guarded(self, insert: Callable[[Table], Any], table: Table) -> Any:  # each dialect has an Insert of its own
        columns = [c for c in table.c if c.name != "id"]
        return insert(table).from_select(columns, self._source(columns).where(held_by_parameters()))

    def _source(self, columns: Sequence[Column[Any]]) -> Any:
        if not self._arrays:
            return select(*(bindparam(c.name, type_=c.type) for c in columns))
        arrays = [bindparam(c.name, type_=ARRAY(c.type)) for c in columns]
        return select(func.unnest(*arrays).table_valued(*(c.name for c in columns)).render_derived())
