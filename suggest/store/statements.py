"""The statements that a store executes often: made once, compiled once, guarded by the lease.

Many rows are one statement on PostgreSQL, whose every round trip counts: each column goes as an array. SQLite, a
function call away, executes the statement for each row. Nothing is executed in any other way than by `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import ARRAY, Column, ColumnElement, Connection, Table, bindparam, func, literal, or_, select, update
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import Insert

from suggest.store.ownership import guard, held_by_parameters
from suggest.store.protocol import Lease
from suggest.store.rows import Columns
from suggest.store.tables import measurements, studies, trials
from suggest.trial import OPEN, TrialState

_HANDED_OUT = ("state", "parameters", "client_id", "request_id", "labels")

finish_trial = update(trials).where(
    trials.c.namespace == bindparam("lease_namespace"),
    trials.c.study == bindparam("lease_study"),
    trials.c.number == bindparam("this_number"),
    or_(*(trials.c.state == state.value for state in OPEN)),
    held_by_parameters(),
)


class Statements:
    """`insert`: the dialect's own, which knows conflicts. `arrays`: all rows are one statement."""

    def __init__(self, insert: Callable[[Table], Any], *, arrays: bool) -> None:
        self._arrays = arrays
        self._in_order: SQLCompiler | None = None
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

    def run(self, connection: Connection, statement: Insert, lease: Lease, rows: Sequence[Columns]) -> int:
        """How many rows were written: of an outdated lease none."""
        if self._arrays:
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            return connection.execute(statement, {**columns, **guard(lease)}).rowcount
        values = guard(lease)
        if statement is self.insert_measurement and len(rows) > 1:
            # They come by the thousand, and SQLAlchemy would take longer over each than SQLite.
            compiled = self._compiled(connection)
            assert compiled.positiontup is not None, "SQLite's parameters go by their places"
            ordered, same = itemgetter(*compiled.positiontup), {**compiled.params, **values}
            return connection.exec_driver_sql(compiled.string, [ordered({**same, **row}) for row in rows]).rowcount
        return connection.execute(statement, [{**row, **values} for row in rows]).rowcount

    def _compiled(self, connection: Connection) -> SQLCompiler:
        """insert_measurement."""
        if self._in_order is None:
            compiled = self.insert_measurement.compile(dialect=connection.dialect)
            assert isinstance(compiled, SQLCompiler)
            self._in_order = compiled
        return self._in_order

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
