"""Tables for people and spreadsheets: aligned columns, CSV, names. Pure: records in, text out."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controller.core.budget import spent_trials
from controller.report import formatting, spending
from controller.report.record import ExperimentRecord, TrialList, TrialRecord
from suggest.domain import compact_json, number
from suggest.errors import InvalidArgument, did_you_mean
from suggest.trial import TrialState

Row = Sequence[object]


def widths(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, least: Sequence[int] = ()
) -> list[int]:
    """Return the widths of the columns, at least `least`: those of a part printed before."""
    columns = zip(header, *rows, strict=True)
    return [max([*map(len, column), *least[i : i + 1]]) for i, column in enumerate(columns)]


def aligned(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    headers: bool = True,
    least: Sequence[int] = (),
) -> str:
    """Return a table with columns two spaces apart, where the last column is not padded.

    The text is empty without rows and headers. `least` has minimum widths.
    """
    lines = [header, *rows] if headers else list(rows)
    if not lines:
        return ""
    wide = least or widths(lines[0], lines[1:])
    padded = (map(str.ljust, line, wide) for line in lines)
    return "".join("  ".join(cells).rstrip() + "\n" for cells in padded)


def csv_text(header: Sequence[str], rows: Sequence[Row], *, headers: bool = True) -> str:
    lines = _CsvLines()
    writer = csv.writer(lines, lineterminator="\r\n")
    if headers:
        writer.writerow(header)
    writer.writerows(rows)
    return "".join(f"{line}\n" for line in lines)


class _CsvLines(list[str]):
    """Lines without their ends.

    A writer quotes a cell with a carriage return only if its lines end in one.
    """

    def write(self, line: str) -> None:
        self.append(line.removesuffix("\r\n"))


def experiment_table(
    records: Sequence[ExperimentRecord], *, now: datetime
) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of experiments.

    USED is left out where no budget limits GPU-hours or money.
    """
    columns: dict[str, Callable[[ExperimentRecord], str]] = {
        "NAME": lambda record: record.experiment.name,
        "NAMESPACE": lambda record: record.experiment.namespace,
        "STATE": shown_state,
        "TRIALS": _done,
        "USED": lambda record: ", ".join(spending.used(record.experiment)),
        "BEST": lambda record: formatting.number(record.best.value if record.best else None),
        "AGE": lambda record: formatting.between(record.experiment.start_time, now),
        "REASON": lambda record: one_line(record.experiment.reason),
    }
    if not any(record.experiment.spec.is_metered for record in records):
        del columns["USED"]
    return list(columns), [[cell(record) for cell in columns.values()] for record in records]


def shown_state(record: ExperimentRecord) -> str:
    """Return the experiment's state, and say so if no controller runs it.

    It then needs `tuner resume`.
    """
    state = record.experiment.state
    abandoned = not record.controlled_by and state.value in ("running", "stopping")
    return f"{state.value} (no controller)" if abandoned else state.value


def _done(record: ExperimentRecord) -> str:
    done = "?" if record.unread else spent_trials(record.counts)
    limit = record.experiment.spec.budget.trials
    return str(done) if limit is None else f"{done}/{limit}"


STUDY_COLUMNS = ("NAME", "NAMESPACE", "ALGORITHM", "METRIC", "TRIALS", "BEST", "AGE")


def study_row(study: Mapping[str, Any], *, now: datetime) -> list[str]:
    """Return the row of a study in the form of `documents.study`."""
    trials = "?"
    if "trials" in study:
        trials = ", ".join(f"{n} {state}" for state, n in study["trials"].items())
    created = study.get("createTime")
    return [
        study["name"],
        study["namespace"],
        study["algorithm"],
        study["metric"],
        trials,
        formatting.number(study["best"]["value"] if "best" in study else None),
        formatting.between(datetime.fromisoformat(created) if created else None, now),
    ]


STUDY_CSV = (
    "name",
    "namespace",
    "uid",
    "algorithm",
    "metric",
    "direction",
    "trials",
    "bestTrial",
    "bestValue",
    "createTime",
)


def study_csv_rows(studies: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows: list[Row] = []
    for study in studies:
        best = study.get("best", {})
        values = {
            **study,
            "trials": sum(study["trials"].values()) if "trials" in study else None,
            "bestTrial": best.get("number"),
            "bestValue": best.get("value"),
        }
        rows.append([_cell(values.get(name)) for name in STUDY_CSV])
    return rows


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a list of trials.

    name: its name for `--columns`, `--sort` and in a CSV.
    heading, shown: its heading and cells in a table.
    """

    name: str
    heading: str
    raw: Callable[[TrialRecord], object]  # returns None if the trial has no value
    shown: Callable[[TrialRecord], str]


_IN_TABLES = ("number", "state", "value", "step", "time")
_IN_REPORTS = ("number", "state", "value", "seconds")
CSV_COLUMNS = (
    "number",
    "name",
    "state",
    "value",
    "step",
    "reason",
    "failureClass",
    "attempts",
    "startTime",
    "endTime",
    "seconds",
)
# Columns of metrics in a table; `--columns` may name others.
MOST_METRICS = 5


# The columns that every list of trials may show besides its parameters and metrics, with their
# headings in a table.
HEADINGS = {
    "number": "TRIAL",
    "value": "VALUE",
    "step": "STEP",
    "parent": "PARENT",
    "time": "TIME",
    "seconds": "SECONDS",
    "attempts": "ATTEMPTS",
    "name": "NAME",
    "state": "STATE",
    "reason": "REASON",
    "failureClass": "CLASS",
    "startTime": "STARTED",
    "endTime": "ENDED",
}


def columns_of(record: TrialList, *, now: datetime) -> dict[str, Column]:
    """Return all columns that a list of trials may show, by name."""
    raw: dict[str, Callable[[TrialRecord], object]] = {
        "number": lambda row: row.trial.number,
        "value": lambda row: row.trial.value,
        "step": lambda row: row.trial.step,
        "parent": lambda row: row.trial.parent,
        "time": lambda row: _spent(row, now),
        "seconds": seconds,
        "attempts": lambda row: len(row.attempts),
        "name": lambda row: record.trial_name(row.trial.number),
        "state": lambda row: row.state.value,
        "reason": record.reason_of,
        "failureClass": lambda row: row.trial.failure_class,
        "startTime": lambda row: formatting.timestamp(row.start_time),
        "endTime": lambda row: formatting.timestamp(row.end_time),
    }
    # Cells that a table shows in another way than a CSV file.
    shown: dict[str, Callable[[TrialRecord], str]] = {
        "value": lambda row: formatting.number(row.trial.value),
        "time": lambda row: run_time(row, now=now),
        "seconds": lambda row: "" if (spent := seconds(row)) is None else f"{spent:.1f}",
        "state": _shown_trial_state,
        "reason": lambda row: one_line(record.reason_of(row)),
    }
    fixed = [
        Column(name, heading, raw[name], shown.get(name, _as_text(raw[name])))
        for name, heading in HEADINGS.items()
    ]
    parameters = [_parameter_column(name) for name in record.parameter_names]
    measured = [_metric_column(record, name) for name in metric_names(record)]
    return {column.name: column for column in (*fixed, *parameters, *measured)}


def _as_text(raw: Callable[[TrialRecord], object]) -> Callable[[TrialRecord], str]:
    return lambda row: formatting.text(raw(row))


def _parameter_column(name: str) -> Column:
    def raw(row: TrialRecord) -> object:
        """Return text and numbers unchanged; null, booleans, lists and objects as JSON."""
        if name not in row.trial.parameters:
            return None
        value = row.trial.parameters[name]
        return value if isinstance(value, str) or number(value) is not None else compact_json(value)

    def shown(row: TrialRecord) -> str:
        return formatting.parameter_of(row.trial.parameters, name)

    return Column(f"parameters.{name}", name, raw, shown)


def _metric_column(record: TrialList, name: str) -> Column:
    def value(row: TrialRecord) -> float | None:
        return record.metrics.get(row.trial.number, {}).get(name)

    title = f"metrics.{name}"
    return Column(title, title, value, lambda row: formatting.number(value(row)))


def metric_names(record: TrialList) -> list[str]:
    """Return the metrics other than the objective's, most frequently reported first."""
    counts: Counter[str] = Counter()
    for row in record.trials:
        counts.update(record.metrics.get(row.trial.number, ()))
    return sorted(counts, key=lambda name: (-counts[name], name))


def table_columns(record: TrialList) -> list[str]:
    """Return the default columns of a table."""
    lines = ["parent"] if any(row.trial.parent is not None for row in record.trials) else []
    parameters = (f"parameters.{name}" for name in record.parameter_names)
    metrics = (f"metrics.{name}" for name in metric_names(record)[:MOST_METRICS])
    return [*_IN_TABLES, *lines, *parameters, *metrics, "reason"]


def report_table(
    record: TrialList, *, most_rows: int | None, most_metrics: int | None
) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of a report's table of trials; None: no limit."""
    parameters = (f"parameters.{name}" for name in record.parameter_names)
    metrics = (f"metrics.{name}" for name in metric_names(record)[:most_metrics])
    columns = columns_of(record, now=datetime.min)
    chosen = [columns[name] for name in (*_IN_REPORTS, *parameters, *metrics)]
    rows = [[column.shown(row) for column in chosen] for row in record.trials[:most_rows]]
    return [column.heading for column in chosen], rows


def csv_columns(record: TrialList) -> list[str]:
    parameters = [f"parameters.{name}" for name in record.parameter_names]
    metrics = [f"metrics.{name}" for name in sorted(metric_names(record))]
    return [*CSV_COLUMNS, *parameters, *metrics]


def _column_named(flag: str, word: str, columns: Mapping[str, Column]) -> Column:
    """Return the column of that name or heading, parameter or metric. Raises InvalidArgument."""
    by_heading = {column.heading.lower(): column.name for column in columns.values()}
    for name in (word, f"parameters.{word}", f"metrics.{word}", by_heading.get(word.lower(), "")):
        if name in columns:
            return columns[name]
    cure = did_you_mean(word, [name.rpartition(".")[2] for name in columns])
    cure = cure or f"; there are {', '.join(columns)}"
    raise InvalidArgument.at(flag, f"unknown column {word!r}{cure}")


def chosen_columns(words: Sequence[str], columns: Mapping[str, Column]) -> list[str]:
    """Return the names of the columns that a person asked for. Raises InvalidArgument."""
    return [_column_named("--columns", word, columns).name for word in words]


def in_order(
    trials: Sequence[TrialRecord], word: str, columns: Mapping[str, Column]
) -> list[TrialRecord]:
    """Return the trials sorted by a column, in reverse with a leading `-`.

    Trials without a value always come last.

    Raises InvalidArgument for an unknown column.
    """
    column = _column_named("--sort", word.removeprefix("-"), columns)
    keys = [(_sort_key(column.raw(row)), row) for row in trials]
    sortable = [(key, row) for key, row in keys if key is not None]
    sortable.sort(key=lambda pair: pair[0], reverse=word.startswith("-"))
    return [row for _, row in sortable] + [row for key, row in keys if key is None]


def _sort_key(value: object) -> tuple[int, float, str] | None:
    """Return a key that sorts numbers before words; None if there is no value."""
    match value:
        case bool():
            return 1, 0.0, str(value).lower()
        case int() | float():
            return (0, value, "") if math.isfinite(value) else None
        case None | "":
            return None
        case _:
            return 1, 0.0, str(value)


def table_rows(
    record: TrialList, names: Sequence[str], columns: Mapping[str, Column]
) -> list[list[str]]:
    chosen = [columns[name] for name in names]
    return [[column.shown(row) for column in chosen] for row in record.trials]


def csv_rows(record: TrialList, names: Sequence[str], columns: Mapping[str, Column]) -> list[Row]:
    """Return one row per trial, with empty cells for missing values. Numbers are not rounded."""
    chosen = [columns[name] for name in names]
    return [[_cell(column.raw(row)) for column in chosen] for row in record.trials]


def _shown_trial_state(row: TrialRecord) -> str:
    state = row.state.value
    if row.imported_from:
        return f"{state} (imported)"
    if row.value_of:
        return f"{state} (not run)"
    return f"{state} (attempt {len(row.attempts)})" if len(row.attempts) > 1 else state


_EXPERIMENT_CSV: Mapping[str, Callable[[ExperimentRecord], object]] = {
    "name": lambda record: record.experiment.name,
    "namespace": lambda record: record.experiment.namespace,
    "uid": lambda record: record.experiment.uid,
    "state": lambda record: record.experiment.state.value,
    "reason": lambda record: record.experiment.reason,
    "trials": lambda record: None if record.unread else sum(record.counts.values()),
    "bestTrial": lambda record: record.best and record.best.number,
    "bestValue": lambda record: record.best and record.best.value,
    "startTime": lambda record: formatting.timestamp(record.experiment.start_time),
    "endTime": lambda record: formatting.timestamp(record.experiment.end_time),
    "reasonCode": lambda record: (
        record.experiment.reason_code and record.experiment.reason_code.value
    ),
    "gpuHours": lambda record: spending.gpu_hours(record.experiment),
    "cost": lambda record: spending.cost(record.experiment),
}
EXPERIMENT_CSV = tuple(_EXPERIMENT_CSV)


def experiment_csv_rows(records: Sequence[ExperimentRecord]) -> list[Row]:
    return [[_cell(column(record)) for column in _EXPERIMENT_CSV.values()] for record in records]


def trials_csv(record: TrialList) -> str:
    """Return all trials as CSV, with the default columns."""
    names = csv_columns(record)
    return csv_text(names, csv_rows(record, names, columns_of(record, now=datetime.min)))


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value


def _spent(row: TrialRecord, now: datetime) -> float | None:
    """Return the seconds of the newest attempt, up to now if it runs."""
    start, end = _span(row, now)
    return None if start is None or end is None else (end - start).total_seconds()


def _span(row: TrialRecord, now: datetime) -> tuple[datetime | None, datetime | None]:
    if row.by_client:
        return row.start_time, row.end_time or (now if row.state is TrialState.RUNNING else None)
    newest = row.newest
    if newest is None or row.state is TrialState.QUEUED:
        return None, None
    return newest.start_time, newest.end_time or now


def seconds(row: TrialRecord) -> float | None:
    """Return the total run time of all ended attempts."""
    if row.by_client:
        return None if row.end_time is None else _spent(row, row.end_time)
    times = [(attempt.start_time, attempt.end_time) for attempt in row.attempts]
    spans = [(end - start).total_seconds() for start, end in times if start and end]
    return round(sum(spans), 3) if spans else None


def run_time(row: TrialRecord, *, now: datetime) -> str:
    """Return the newest attempt's run time, up to now if it runs; "" if it will run again."""
    return formatting.between(*_span(row, now))


def one_line(text: str) -> str:
    return " ".join(text.split())
