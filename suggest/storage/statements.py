"""The statements that a store executes often: built once, compiled once, guarded by the lease.

On PostgreSQL, where every round trip counts, many rows are one statement with an array for each column. SQLite is only
a function call away. It gets text and values directly, because SQLAlchemy would take several times as long for a row as
SQLite does. Measurements and imported trials, of which there are thousands, are inserted in blocks: each statement
releases the GIL and has to wait for it again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    FromClause,
    Table,
    Text,
    Update,
    bindparam,
    cast,
    func,
    literal,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import Insert

from suggest.storage.ownership import guard, held_by_parameters
from suggest.storage.rows import DOCUMENTS, Columns, json_text
from suggest.storage.store import Lease
from suggest.storage.study_tables import measurements, studies, trials
from suggest.trial import OPEN, Measurement, TrialState

TRIALS = 250  # per statement; each has at most 22 values
BLOCK, ROUND = 1000, 100  # measurements per statement; SQLite accepts about 32,000 values, four per measurement

# The columns that change when a trial is handed out. A paused trial loses its value until it ends again.
_HANDED_OUT = ("state", "parameters", "client_id", "request_id", "labels", "tries", "lease_us", "fidelity",
               "value", "step", "reason")  # fmt: skip

LARGEST = 2**63 - 1
# For up to :trials trials with measurements from :first to :last, select the last step of each metric of the newest
# attempt. Each SELECT min or max is one lookup in the index over (namespace, study, trial, attempt, metric, step) and
# skips all entries in between.
LATEST = text(Path(__file__).with_name("latest_measurements.sql").read_text(encoding="utf-8"))

_FINISH_TRIAL = update(trials).where(
    trials.c.namespace == bindparam("lease_namespace"),
    trials.c.study == bindparam("lease_study"),
    trials.c.number == bindparam("this_number"),
    or_(*(trials.c.state == state.value for state in OPEN)),
    held_by_parameters(),
)


def _unnested(columns: Sequence[Column[Any]], arrays: Sequence[ColumnElement[Any]]) -> FromClause:
    """Return a table with a row for each index of the arrays."""
    return func.unnest(*arrays).table_valued(*(c.name for c in columns)).render_derived()


_MEASURED = [c for c in measurements.c if c.name != "id"]
_SHARED = ("namespace", "study", "trial")  # the other columns are the fields of a `Measurement`
_OWN = [c for c in _MEASURED if c.name not in ("namespace", "study")]
# Send arrays as text in PostgreSQL's notation: its driver takes four times as long for a list of a thousand numbers.
_ROWS = _unnested(_OWN, [cast(bindparam(c.name, type_=Text), ARRAY(c.type)) for c in _OWN])
_NEW_MEASUREMENTS = postgresql.insert(measurements).from_select(
    _MEASURED,
    select(*(bindparam(f"lease_{name}", type_=Text) for name in ("namespace", "study")), *_ROWS.c).where(
        held_by_parameters()
    ),
)
# A replaced measurement goes to the end of the reports, where those find it who have read the others.
_INSERT_ARRAYS = _NEW_MEASUREMENTS.on_conflict_do_update(
    index_elements=[c.name for c in _MEASURED if c.name != "value"],
    set_={"id": _NEW_MEASUREMENTS.excluded.id, "value": _NEW_MEASUREMENTS.excluded.value},
)


def _array(words: Iterable[str]) -> str:
    return f"{{{','.join(words)}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class _Plain:
    """A statement as text for the driver. `documents` are the JSON columns, with their places among the values."""

    text: str
    ordered: Callable[[Mapping[str, object]], tuple[object, ...]]
    constants: Mapping[str, object]
    documents: Mapping[str, int]

    def execute(self, connection: Connection, rows: Sequence[Columns], same: Columns) -> int:
        """Execute the statement for each row. Return how many rows were touched."""
        same = {**self.constants, **same}
        if len(rows) == 1:
            return _execute_raw(connection, self.text, self._line({**same, **rows[0]}))
        driver: Any = connection.connection.driver_connection  # as in _execute_raw
        touched: int = driver.executemany(self.text, (self._line({**same, **row}) for row in rows)).rowcount
        return touched

    def _line(self, values: Columns) -> tuple[object, ...]:
        if not self.documents:
            return self.ordered(values)
        line = list(self.ordered(values))
        for place in self.documents.values():
            line[place] = json_text(line[place])
        return tuple(line)


def _plain(statement: Insert | Update, dialect: Dialect, columns: list[str]) -> _Plain:
    compiled = statement.compile(dialect=dialect, column_keys=columns)
    assert isinstance(compiled, SQLCompiler)
    places = compiled.positiontup
    assert places is not None, "SQLite's parameters go by their places"
    documents = {name: place for place, name in enumerate(places) if isinstance(compiled.binds[name].type, JSON)}
    return _Plain(compiled.string, itemgetter(*places), compiled.params, documents)


def _execute_raw(connection: Connection, text: str, values: tuple[object, ...]) -> int:
    """Execute a statement and return how many rows it touched.

    This bypasses SQLAlchemy, which takes longer for a statement than SQLite does.
    """
    driver: Any = connection.connection.driver_connection
    touched: int = driver.execute(text, values).rowcount
    return touched


def _insert_blocks(connection: Connection, lease: Lease, number: int, found: Sequence[Measurement]) -> int:
    first, last = (lease.name.namespace, lease.name.study, number), tuple(guard(lease).values())
    written = 0
    start = 0
    for rows in _blocks(len(found)):
        block = found[start : start + rows]
        start += rows
        # SQLite stores NaN as NULL.
        values = (*first, *chain.from_iterable(block), *last)
        # A replaced row goes to the end, like _INSERT_ARRAYS.
        insert = _insert_text("INSERT OR REPLACE", measurements.name, _SHARED, Measurement._fields, rows)
        written += _execute_raw(connection, insert, values)
    return written


def _blocks(rows: int) -> Iterator[int]:
    """Yield sizes of blocks: large and of few sizes, because each size is a statement that SQLite caches."""
    while rows:
        block = min(rows, BLOCK)
        block -= block % ROUND if block > ROUND else 0
        yield block
        rows -= block


@functools.cache
def _insert_text(verb: str, table: str, shared: tuple[str, ...], own: tuple[str, ...], rows: int) -> str:
    """Return SQLite's INSERT of rows. Its values: the shared columns, each row's own ones, then the lease."""
    named = ", ".join(f"column{place + 1}" for place in range(len(own)))
    each = f"({', '.join('?' * len(own))})"
    condition = held_by_parameters().compile(dialect=sqlite.dialect())
    return (
        f"{verb} INTO {table} ({', '.join(shared + own)}) SELECT {'?, ' * len(shared)}{named} "
        f"FROM (VALUES {', '.join([each] * rows)}) WHERE {condition}"
    )


class Statements:
    """The frequent statements in one SQL dialect.

    `insert` is the dialect's own INSERT, which supports conflicts. With `arrays`, all rows are one statement.
    """

    def __init__(self, insert: Callable[[Table], Any], *, arrays: bool) -> None:
        self._arrays = arrays
        self._compiled: dict[Insert | Update, _Plain] = {}
        self.insert_study = insert(studies).on_conflict_do_nothing(
            index_elements=[studies.c.namespace, studies.c.study]
        )
        inserted = self.insert_trial = self._guarded(insert)
        self.hand_out: Insert = inserted.on_conflict_do_update(
            index_elements=[trials.c.namespace, trials.c.study, trials.c.number],
            set_={name: getattr(inserted.excluded, name) for name in _HANDED_OUT},
            where=or_(*(trials.c.state == state.value for state in (TrialState.QUEUED, TrialState.PAUSED))),
        )

    def is_one(self, rows: int) -> bool:
        """Return whether inserting this many rows is one statement."""
        return self._arrays or rows == 1

    def is_one_block(self, rows: int) -> bool:
        """Return whether inserting this many measurements of one trial is one statement."""
        return self._arrays or len(list(_blocks(rows))) == 1

    def insert(self, connection: Connection, statement: Insert, lease: Lease, rows: Sequence[Columns]) -> int:
        """Insert rows and return how many were written; none if the lease is outdated."""
        same = guard(lease)
        if self._arrays:
            columns = {
                name: [json_text(row[name]) if name in DOCUMENTS else row[name] for row in rows] for name in rows[0]
            }
            return connection.execute(statement, {**columns, **same}).rowcount
        return self._plain(connection, statement, rows[0]).execute(connection, rows, same)

    def insert_trials(self, connection: Connection, lease: Lease, columns: Mapping[str, Sequence[object]]) -> int:
        """Insert trials, with documents as JSON text, and return how many were written; none if the lease is outdated.

        Most columns of a history are the same in all rows. SQLite gets these once for each block of rows.
        """
        same = guard(lease)
        if self._arrays:
            arrays = {name: list(values) for name, values in columns.items()}
            return connection.execute(self.insert_trial, {**arrays, **same}).rowcount
        shared = tuple(name for name, values in columns.items() if values.count(values[0]) == len(values))
        own = tuple(name for name in columns if name not in shared) or shared[:1]
        shared = tuple(name for name in shared if name not in own)
        first, last = tuple(columns[name][0] for name in shared), tuple(same.values())
        values = chain.from_iterable(zip(*(columns[name] for name in own), strict=True))
        written, left = 0, len(columns[own[0]])
        while left:
            block = min(left, TRIALS)
            line = (*first, *islice(values, block * len(own)), *last)
            written += _execute_raw(connection, _insert_text("INSERT", trials.name, shared, own, block), line)
            left -= block
        return written

    def insert_measurements(
        self, connection: Connection, lease: Lease, reports: Sequence[tuple[int, Sequence[Measurement]]]
    ) -> int:
        """Insert measurements by trial number and return how many were written; none if the lease is outdated."""
        if not self._arrays:
            return sum(_insert_blocks(connection, lease, number, found) for number, found in reports)
        measurements = [m for _, found in reports for m in found]
        columns: Columns = {
            "trial": _array(str(number) for number, found in reports for _ in found),
            "attempt": _array([str(m.attempt) for m in measurements]),
            "metric": _array([_quoted(m.metric) for m in measurements]),
            "step": _array([str(m.step) for m in measurements]),
            "value": _array(["NULL" if math.isnan(m.value) else repr(m.value) for m in measurements]),
        }
        return connection.execute(_INSERT_ARRAYS, {**columns, **guard(lease)}).rowcount

    def finish(self, connection: Connection, lease: Lease, number: int, outcome: Columns) -> int:
        """Finish a trial and return how many trials were updated; none if the lease is outdated."""
        same = {"this_number": number, **guard(lease)}
        if self._arrays:
            return connection.execute(_FINISH_TRIAL, {**outcome, **same}).rowcount
        return self._plain(connection, _FINISH_TRIAL, {**outcome, **same}).execute(connection, [outcome], same)

    def _plain(self, connection: Connection, statement: Insert | Update, values: Mapping[str, object]) -> _Plain:
        """Compile the statement once. The keys of `values` are the columns that it sets."""
        found = self._compiled.get(statement)
        if found is None:
            found = self._compiled[statement] = _plain(statement, connection.dialect, list(values))
        return found

    def has_label(self, key: str, value: str) -> ColumnElement[bool]:
        """Return a condition on a label. It expands the document to rows, because a JSON path cannot name every key."""
        each = func.json_each_text if self._arrays else func.json_each
        pairs = each(studies.c.labels).table_valued("key", "value")
        return select(literal(1)).select_from(pairs).where(pairs.c.key == key, pairs.c.value == value).exists()

    def _guarded(self, insert: Callable[[Table], Any]) -> Any:  # each dialect has an Insert of its own
        columns = list(trials.c)
        given = [bindparam(c.name, type_=c.type) for c in columns]
        # PostgreSQL reads documents from text, which `rows` writes in less time than SQLAlchemy does.
        arrays = [
            cast(bindparam(c.name, type_=ARRAY(Text)), ARRAY(JSON))
            if c.name in DOCUMENTS
            else bindparam(c.name, type_=ARRAY(c.type))
            for c in columns
        ]
        source: Any = select(_unnested(columns, arrays)) if self._arrays else select(*given)
        return insert(trials).from_select(columns, source.where(held_by_parameters()))
