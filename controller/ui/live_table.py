"""The trials of one experiment or study as rows of the page,
with the version in which each row changed last.

A page that knows a version is sent what changed since. Versions count within
one `LiveTable`, whose random id is part of every position, so that a page
that comes back after a restart of the server is sent everything.

Each row is encoded once, and each event once for all pages that know the same version: encoding for
each page would keep the event loop, which is also that of the server, from everybody else.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeAlias

from controller.report.formatting import json_number, timestamp
from controller.report.record import TrialList, TrialRecord
from suggest import domain
from suggest.domain import Choice
from suggest.space import Parameter

Json = dict[str, Any]  # Any: what JSON holds
Row = str  # a list in JSON
# in one event: about 100 kB, which wait in memory for each page that does not read
ROWS_AT_ONCE = 500
_SHARED = 4  # versions whose events are kept for other pages


@dataclass(frozen=True, slots=True)
class Encoded:
    """An event's data as JSON. id: the position of a page that has it; "" if it does not move."""

    text: str
    id: str = ""

    @classmethod
    def of(cls, data: Json) -> Encoded:
        # JSON has no line feeds between its tokens, and escapes those in strings.
        return cls(json.dumps(data), str(data.get("id", "")))


Event: TypeAlias = tuple[str, Encoded]  # with its name


class LiveTable:
    def __init__(self) -> None:
        self._id = secrets.token_hex(4)
        self._version = 0
        self._columns: list[Json] = []
        self._columns_changed = 0
        self._metrics: list[str] = []
        self._summary: Json = {}
        self._summary_changed = 0
        self._rows: dict[int, Row] = {}
        # By trial number: the version of its last change or its removal.
        # The last changes are at the end.
        self._changed: dict[int, int] = {}
        # by the version that pages know, of the current version
        self._events: dict[int, Sequence[Event]] = {}

    @property
    def position(self) -> str:
        return f"{self._id}.{self._version}"

    def apply(
        self, record: TrialList, summary: Json, trials: Mapping[int, TrialRecord | None]
    ) -> None:
        """Take over the trials of `record` that may have changed, by number; None: deleted."""
        self._version += 1
        self._events.clear()
        if summary != self._summary:
            self._summary, self._summary_changed = summary, self._version
        measured = (record.metrics.get(number, ()) for number in trials)
        metrics = sorted(set(self._metrics).union(*measured))
        columns = _columns(record, metrics)
        if columns != self._columns:
            self._columns, self._metrics, self._columns_changed = columns, metrics, self._version
            trials = {entry.trial.number: entry for entry in record.trials}
            trials |= dict.fromkeys(self._rows.keys() - trials.keys())
        parameters = record.parameter_names
        for number, entry in trials.items():
            row = None if entry is None else _row(record, entry, parameters, metrics)
            if row != self._rows.get(number):
                self._changed.pop(number, None)
                self._changed[number] = self._version
                if row is None:
                    del self._rows[number]
                else:
                    self._rows[number] = row

    def since(self, position: str, trials: frozenset[int] | None = None) -> Sequence[Event]:
        """Return what changed since the position, if anything, as names of events with their data.

        `trials` limits the rows to these trials.

        `reset` begins with new columns, `update` has changed rows. Only the last
        event has the new position as its id, so that a page whose connection is lost
        in between does not take itself to be up to date.
        """
        version = self._known(position)
        if trials is not None:
            return list(self._since(version, trials))
        if version not in self._events:
            if len(self._events) >= _SHARED:
                self._events.clear()
            self._events[version] = list(self._since(version, None))
        return self._events[version]

    def _since(self, version: int, trials: frozenset[int] | None) -> Iterator[Event]:
        since = list(takewhile(lambda n: self._changed[n] > version, reversed(self._changed)))
        changed = [n for n in reversed(since) if trials is None or n in trials]
        summary = {"summary": self._summary} if self._summary_changed > version else {}
        if not changed and not summary and version >= self._columns_changed:
            return
        rows = [self._rows[number] for number in changed if number in self._rows]
        first: Json = summary | {
            "removed": [number for number in changed if number not in self._rows]
        }
        event = "update"
        if version < self._columns_changed:
            event, first = "reset", {"summary": self._summary, "columns": self._columns}
        parts = [rows[at : at + ROWS_AT_ONCE] for at in range(0, len(rows), ROWS_AT_ONCE)] or [[]]
        for part in parts[:-1]:
            yield event, Encoded(_with_rows(first, part))
            event, first = "update", {}
        yield event, Encoded(_with_rows(first | {"id": self.position}, parts[-1]), self.position)

    def _known(self, position: str) -> int:
        """Return the version of a position; -1 if it is of another table."""
        table, _, version = position.partition(".")
        if table != self._id or not (version.isascii() and version.isdigit() and len(version) < 16):
            return -1
        return min(int(version), self._version)


def _with_rows(data: Json, rows: Sequence[Row]) -> str:
    """Return the data in JSON, with the encoded rows."""
    fields = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in data.items()]
    fields.append(f'"rows": [{", ".join(rows)}]')
    return f"{{{', '.join(fields)}}}"


def _columns(record: TrialList, metrics: list[str]) -> list[Json]:
    """Return the columns. The head of one with `number` is aligned as numbers are."""
    parameters = record.parameter_names
    return [
        {"key": "number", "title": "Trial"},
        {"key": "state", "title": "State"},
        {"key": "value", "title": record.criteria.objectives[0].metric, "number": True},
        {"key": "step", "title": "Step", "number": True},
        *map(_parameter_column, record.space.parameters),
        *(_metric_column(name, parameters) | {"number": True} for name in metrics),
        {"key": "startTime", "title": "Started"},
        {"key": "endTime", "title": "Ended"},
        {"key": "attempts", "title": "Attempts"},
        {"key": "reason", "title": "Reason"},
        {"key": "labels", "title": "Labels"},
    ]


def _parameter_column(it: Parameter) -> Json:
    choices = it.domain.values if isinstance(it.domain, Choice) else ()
    numbers = all(domain.number(value) is not None for value in choices)
    return {"key": f"parameters.{it.name}", "title": it.name, "number": numbers}


def _metric_column(name: str, parameters: list[str]) -> Json:
    """Return a metric's column.

    Its name must differ from that of a parameter that the program prints as a metric.
    """
    if name in parameters:
        return {"key": f"metrics.{name}", "title": f"metrics.{name}", "hidden": True}
    return {"key": f"metrics.{name}", "title": name}


def _row(record: TrialList, entry: TrialRecord, parameters: list[str], metrics: list[str]) -> Row:
    trial = entry.trial
    measured = record.metrics.get(trial.number, {})
    values = [json_number(measured[name]) if name in measured else None for name in metrics]
    row = [
        trial.number,
        entry.state.value,
        None if trial.value is None else json_number(trial.value),
        trial.step,
        *[trial.parameters.get(name) for name in parameters],
        *values,
        timestamp(entry.start_time) or None,
        timestamp(entry.end_time) or None,
        len(entry.attempts),
        record.reason_of(entry),
        " ".join([f"{key}={value}" for key, value in trial.shown_labels.items()]),
    ]
    return json.dumps(row)
