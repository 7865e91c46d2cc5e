"""What `get` prints: a list in one of five formats, and, watched, each entry of it again when it has changed.

What scrolled by is never redrawn: a pipe and a terminal get the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from controller.report import documents, figures, tables
from controller.report.documents import Json
from controller.report.record import ExperimentRecord, TrialRecord


class Printer:
    """Prints all of a list the first time, and of each later one what is new or has changed."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._output: str = arguments.output
        self._headers = not arguments.no_headers
        self._begun = False
        self._seen: dict[object, object] = {}
        self._widths: list[int] = []

    def experiments(self, records: Sequence[ExperimentRecord]) -> None:
        shown = [documents.experiment(record) for record in records]
        fresh = self._fresh((it["uid"], it, tables.shown_state(one)) for it, one in zip(shown, records, strict=True))
        if not fresh and self._begun:
            return
        records = [records[at] for at in fresh]
        match self._output:
            case "csv":
                rows = tables.experiment_csv_rows(records)
                self._write(tables.csv_text(tables.EXPERIMENT_CSV, rows, headers=self._first_headers()))
            case "table":
                if records or self._begun:  # no header over nothing
                    self._table(tables.EXPERIMENT_COLUMNS, tables.experiment_rows(records, now=datetime.now(UTC)))
            case _:
                self._others([shown[at] for at in fresh], [record.experiment.name for record in records])

    def trials(self, record: ExperimentRecord) -> None:
        shown = [documents.trial(record, one) for one in record.trials]
        fresh = self._fresh((it["number"], it) for it in shown)
        if not fresh and self._begun:
            return
        some: list[TrialRecord] = [record.trials[at] for at in fresh]
        part = replace(record, trials=some)
        match self._output:
            case "csv":
                columns, rows = tables.trial_csv_columns(part), tables.trial_csv_rows(part)
                self._write(tables.csv_text(columns, rows, headers=self._first_headers()))
            case "table":
                self._table(tables.trial_columns(part), tables.trial_rows(part, now=datetime.now(UTC)))
            case _:
                name = record.experiment.name
                self._others([shown[at] for at in fresh], [f"{name}/{one.trial.number}" for one in some])

    def _fresh(self, entries: Iterable[tuple[object, ...]]) -> list[int]:
        """The places of those that look different; of names, of those that were not there."""
        fresh = []
        for at, (key, *look) in enumerate(entries):
            changed = self._seen.get(key) != look if self._output != "name" else key not in self._seen
            if changed:
                fresh.append(at)
            self._seen[key] = look
        return fresh

    def _first_headers(self) -> bool:
        return self._headers and not self._begun

    def _table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._widths = tables.widths(columns if self._headers else [""] * len(columns), rows, least=self._widths)
        self._write(tables.aligned(columns, rows, headers=self._first_headers(), least=self._widths))

    def _others(self, shown: Sequence[Json], names: Sequence[str]) -> None:
        match self._output:
            case "json":
                self._write(figures.json_text(list(shown)) + "\n")
            case "yaml":
                self._write(figures.yaml_text(list(shown)))
            case _:
                self._write("".join(f"{name}\n" for name in names))

    def _write(self, text: str) -> None:
        self._begun = True
        sys.stdout.write(text)
        sys.stdout.flush()
