"""Rows for people and spreadsheets: aligned tables, CSV, names. Pure: records in, text out."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime

from controller.report import figures
from controller.report.documents import trial_name_of
from controller.report.record import ExperimentRecord, TrialRecord
from suggest.domain import compact_json, number
from suggest.trial import Trial, TrialState

Row = Sequence[object]


def widths(header: Sequence[str], rows: Sequence[Sequence[str]], *, least: Sequence[int] = ()) -> list[int]:
    """Of the columns that hold all this, and what was there before."""
    lines = [header, *rows]
    return [max(*(len(line[i]) for line in lines), least[i] if least else 0) for i in range(len(header))]


def aligned(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, headers: bool = True, least: Sequence[int] = ()
) -> str:
    """Columns two spaces apart; the last one is never padded. Empty without rows and headers. `least`: of widths."""
    lines = [list(header), *map(list, rows)] if headers else [list(row) for row in rows]
    if not lines:
        return ""
    wide = least or [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, wide, strict=True)).rstrip() + "\n" for line in lines
    )


def csv_text(header: Sequence[str], rows: Sequence[Row], *, headers: bool = True) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if headers:
        writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


EXPERIMENT_COLUMNS = ("NAME", "NAMESPACE", "STATE", "TRIALS", "BEST", "AGE", "REASON")


def experiment_rows(records: Sequence[ExperimentRecord], *, now: datetime) -> list[list[str]]:
    return [
        [
            record.experiment.name,
            record.experiment.namespace,
            shown_state(record),
            _done(record),
            "" if (best := record.best) is None else figures.number(best.value),
            figures.between(record.experiment.start_time, now),
            shortened(record.experiment.reason, 60),
        ]
        for record in records
    ]


def shown_state(record: ExperimentRecord) -> str:
    """`running` that nobody runs is worth knowing: it waits for `tuner resume`."""
    state = record.experiment.state
    abandoned = not record.controlled_by and state.value in ("running", "stopping")
    return f"{state.value} (no controller)" if abandoned else state.value


def _done(record: ExperimentRecord) -> str:
    done = sum(n for state, n in record.counts.items() if state.finished and state is not TrialState.CANCELLED)
    limit = record.experiment.spec.budget.trials
    return str(done) if limit is None else f"{done}/{limit}"


def trial_columns(record: ExperimentRecord) -> list[str]:
    return ["TRIAL", "STATE", "VALUE", "STEP", "TIME", *_parameter_names(record), "REASON"]


def trial_rows(record: ExperimentRecord, *, now: datetime) -> list[list[str]]:
    return [
        [
            str(one.trial.number),
            _shown_trial_state(one),
            figures.number(one.trial.value),
            "" if one.trial.step is None else str(one.trial.step),
            run_time(one, now=now),
            *(
                figures.parameter(one.trial.parameters[p]) if p in one.trial.parameters else ""
                for p in _parameter_names(record)
            ),
            shortened(record.reason_of(one), 60),
        ]
        for one in record.trials
    ]


def _shown_trial_state(one: TrialRecord) -> str:
    if one.imported_from:
        return f"{one.state.value} (imported)"
    if one.value_of:
        return f"{one.state.value} (not run)"
    return one.state.value + (f" (attempt {len(one.attempts)})" if len(one.attempts) > 1 else "")


EXPERIMENT_CSV = (
    "name",
    "namespace",
    "uid",
    "state",
    "reason",
    "trials",
    "bestTrial",
    "bestValue",
    "startTime",
    "endTime",
)


def experiment_csv_rows(records: Sequence[ExperimentRecord]) -> list[Row]:
    rows: list[Row] = []
    for record in records:
        it, best = record.experiment, record.best
        rows.append([
            it.name, it.namespace, it.uid, it.state.value, it.reason, len(record.trials),
            "" if best is None else best.number, "" if best is None else best.value,
            _time(it.start_time), _time(it.end_time),
        ])  # fmt: skip
    return rows


def trial_csv_columns(record: ExperimentRecord) -> list[str]:
    fixed = [
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
    ]
    return [*fixed, *(f"parameters.{name}" for name in _parameter_names(record))]


def trial_csv_rows(record: ExperimentRecord) -> list[Row]:
    """One trial a row; an inactive parameter's cell is empty. Figures in full, not rounded."""
    return [_csv_row(record, one) for one in record.trials]


def _csv_row(record: ExperimentRecord, one: TrialRecord) -> Row:
    starts = [each.start_time for each in one.attempts if each.start_time is not None]
    end = one.newest.end_time if one.newest is not None and one.trial.finished else None
    return [
        one.trial.number,
        trial_name_of(record, one.trial.number),
        one.state.value,
        "" if one.trial.value is None else one.trial.value,
        "" if one.trial.step is None else one.trial.step,
        record.reason_of(one),
        one.trial.failure_class,
        len(one.attempts),
        _time(min(starts, default=None)),
        _time(end),
        "" if (spent := seconds(one)) is None else spent,
        *(_cell(one.trial, name) for name in _parameter_names(record)),
    ]


def _cell(trial: Trial, name: str) -> object:
    """Numbers in full; null, lists and objects as JSON."""
    value = trial.parameters.get(name, "")
    return value if isinstance(value, str) or number(value) is not None else compact_json(value)


def seconds(one: TrialRecord) -> float | None:
    """Run time over all attempts that have ended."""
    spans = [
        (each.end_time - each.start_time).total_seconds()
        for each in one.attempts
        if each.start_time is not None and each.end_time is not None
    ]
    return round(sum(spans), 3) if spans else None


def run_time(one: TrialRecord, *, now: datetime) -> str:
    """Of the newest attempt, so far if it runs; none of one that waits to run again."""
    newest = one.newest
    return (
        ""
        if newest is None or one.state is TrialState.QUEUED
        else figures.between(newest.start_time, newest.end_time or now)
    )


def shortened(text: str, width: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _parameter_names(record: ExperimentRecord) -> list[str]:
    return [parameter.name for parameter in record.experiment.spec.space.parameters]


def _time(time: datetime | None) -> str:
    return "" if time is None else figures.timestamp(time)
