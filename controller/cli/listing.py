"""The output of `get`: a list in one of five formats. With --watch,
an entry is printed again when it changes.

Printed lines are never redrawn, so that a pipe and a terminal get the same output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from controller.cli import terminal
from controller.report import documents, plain_data, text_tables
from controller.report.documents import Json
from controller.report.record import ExperimentRecord, StudyTrials, TrialRecord
from suggest.errors import InvalidArgument, did_you_mean
from suggest.trial import TrialState

Trials = TypeVar("Trials", ExperimentRecord, StudyTrials)


class Printer:
    """Prints the whole list the first time, and later only new or changed entries."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        """Take the format and the selection from the command line. Raises InvalidArgument."""
        self._output: str = arguments.output
        self._headers = not arguments.no_headers
        self._selection = _Selection.of(arguments)
        self._begun = False
        self._seen: dict[object, object] = {}
        self._columns: list[str] = []
        self._widths: list[int] = []

    def experiments(self, records: Sequence[ExperimentRecord]) -> None:
        elements = [documents.experiment(record) for record in records]
        fresh = self._fresh(
            (element["uid"], element, text_tables.shown_state(record))
            for element, record in zip(elements, records, strict=True)
        )
        records = [records[at] for at in fresh]
        self._entries(
            [elements[at] for at in fresh],
            csv=lambda: (text_tables.EXPERIMENT_CSV, text_tables.experiment_csv_rows(records)),
            table=lambda now: (*text_tables.experiment_table(records, now=now),),
        )

    def studies(self, elements: Sequence[Json]) -> None:
        """Print studies in the form of `documents.study`."""
        fresh = [
            elements[at] for at in self._fresh((element["uid"], element) for element in elements)
        ]
        self._entries(
            fresh,
            csv=lambda: (text_tables.STUDY_CSV, text_tables.study_csv_rows(fresh)),
            table=lambda now: (
                text_tables.STUDY_COLUMNS,
                [text_tables.study_row(study, now=now) for study in fresh],
            ),
        )

    def _entries(
        self,
        elements: Sequence[Json],
        *,
        csv: Callable[[], tuple[Sequence[str], Sequence[text_tables.Row]]],
        table: Callable[[datetime], tuple[Sequence[str], list[list[str]]]],
    ) -> None:
        if not elements and self._begun:
            return
        match self._output:
            case "csv":
                self._write_data(text_tables.csv_text(*csv(), headers=self._first_headers()))
            case "table":
                if elements or self._begun:  # no header for an empty list
                    self._table(*table(datetime.now(UTC)))
            case _:
                self._others(elements, [element["name"] for element in elements])

    def trials(self, record: ExperimentRecord | StudyTrials) -> None:
        """Print trials. Raises InvalidArgument for an unknown column."""
        now = datetime.now(UTC)
        columns = text_tables.columns_of(record, now=now)
        record = replace(record, trials=self._selection.of_trials(record.trials, columns))
        elements = [documents.trial(record, entry) for entry in record.trials]
        fresh = self._fresh((element["number"], element) for element in elements)
        if not fresh and self._begun:
            return
        some: list[TrialRecord] = [record.trials[at] for at in fresh]
        part = replace(record, trials=some)
        match self._output:
            case "csv":
                # A CSV file has one header, so metrics that appear later get no column.
                self._columns = (
                    self._columns
                    or self._selection.columns(columns)
                    or text_tables.csv_columns(record)
                )
                rows = text_tables.csv_rows(part, self._columns, columns)
                self._write_data(
                    text_tables.csv_text(self._columns, rows, headers=self._first_headers())
                )
            case "table":
                names = self._selection.columns(columns) or text_tables.table_columns(record)
                if names != self._columns:
                    self._columns, self._widths = names, []
                    self._begun = False  # print a new header
                headings = [columns[name].heading for name in names]
                self._table(headings, text_tables.table_rows(part, names, columns))
            case _:
                self._others(
                    [elements[at] for at in fresh],
                    [f"{record.name}/{entry.trial.number}" for entry in some],
                )

    def _fresh(self, entries: Iterable[tuple[object, ...]]) -> list[int]:
        """Return the indices of changed entries; of new ones if only names are printed."""
        fresh = []
        for at, (key, *look) in enumerate(entries):
            changed = (
                self._seen.get(key) != look if self._output != "name" else key not in self._seen
            )
            if changed:
                fresh.append(at)
            self._seen[key] = look
        return fresh

    def _first_headers(self) -> bool:
        return self._headers and not self._begun

    def _table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._widths = text_tables.widths(
            columns if self._headers else [""] * len(columns), rows, least=self._widths
        )
        text = text_tables.aligned(columns, rows, headers=self._first_headers(), least=self._widths)
        self._write(terminal.cropped(text))

    def _others(self, elements: Sequence[Json], names: Sequence[str]) -> None:
        match self._output:
            case "json" | "yaml" as form:
                self._write_data(plain_data.data_text(list(elements), form))
            case _:
                self._write("".join(f"{name}\n" for name in names))

    def _write(self, text: str) -> None:
        self._begun = True
        sys.stdout.write(text)
        sys.stdout.flush()

    def _write_data(self, text: str) -> None:
        self._begun = True
        terminal.write_data(text)


class _Selection:
    """Which trials, in which order, with which columns."""

    def __init__(
        self, *, states: frozenset[str], sort: str, limit: int | None, columns: Sequence[str]
    ) -> None:
        self._states = states
        self._sort = sort
        self._limit = limit
        self._columns = columns

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> _Selection:
        """Return the selection of the command line. Raises InvalidArgument."""
        states = _words(getattr(arguments, "state", []))
        all_states = [state.value for state in TrialState]
        for word in states:
            if word not in all_states:
                hint = did_you_mean(word, all_states) or f"; there are {', '.join(all_states)}"
                raise InvalidArgument.at("--state", f"{word} is not a state of a trial{hint}")
        limit = getattr(arguments, "limit", None)
        if limit is not None and limit < 1:
            raise InvalidArgument.at(
                "--limit", f"{limit} is not a number of trials; write 1 or more"
            )
        columns = _words([getattr(arguments, "columns", None) or ""])
        if columns and arguments.output not in ("table", "csv"):
            cure = f"is for table and csv; -o {arguments.output} has everything"
            raise InvalidArgument.at("--columns", cure)
        sort = getattr(arguments, "sort", None) or ""
        return cls(states=frozenset(states), sort=sort, limit=limit, columns=columns)

    def of_trials(
        self, trials: Sequence[TrialRecord], columns: dict[str, text_tables.Column]
    ) -> Sequence[TrialRecord]:
        if self._states:
            trials = [entry for entry in trials if entry.state.value in self._states]
        if self._sort:
            trials = text_tables.in_order(trials, self._sort, columns)
        return trials if self._limit is None else trials[: self._limit]

    def columns(self, columns: dict[str, text_tables.Column]) -> list[str]:
        return text_tables.chosen_columns(self._columns, columns)


def _words(texts: Sequence[str]) -> list[str]:
    words = ",".join(texts).split(",")
    return [word.strip() for word in words if word.strip()]
