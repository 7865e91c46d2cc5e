"""Conversion between rows of the tables and domain objects. No query, no connection."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from operator import attrgetter
from typing import Any, cast

from sqlalchemy import JSON, Row

from suggest.errors import InvalidArgument
from suggest.storage.database import DamagedRow
from suggest.storage.store import StudyRecord
from suggest.storage.study_json import space_document, space_of, spec_document, spec_of
from suggest.storage.study_tables import trials as trials_table
from suggest.study import PastSpace, Study, StudyName
from suggest.trial import Measurement, RungResult, Trial, TrialBatch, TrialState

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_STATES = {state.value: state for state in TrialState}

# A row of any table. The contract tests check its columns, not the types.
AnyRow = Row[Any]
Columns = dict[str, Any]


def microseconds(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - _EPOCH) // _MICROSECOND


def moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else _EPOCH + microseconds * _MICROSECOND


def study_columns(record: StudyRecord) -> Columns:
    study = record.study
    return {
        "namespace": study.name.namespace,
        "study": study.name.study,
        "uid": study.uid,
        "spec": spec_document(study.spec),
        "seed": study.seed,
        "labels": dict(study.labels),
        "create_time_us": microseconds(study.create_time),
        "create_request_id": record.request_id,
        "fingerprint": record.fingerprint,
        "owner_address": study.owner_address,
        "owner_epoch": study.owner_epoch,
        "owner_nonce": "",
        "past": past_document(study),
    }


# What reading a value that nobody wrote raises.
_DAMAGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, InvalidArgument)


def state_of(word: str) -> TrialState:
    """Raises DamagedRow."""
    try:
        return _STATES[word]
    except LookupError as e:
        raise DamagedRow(f"{word!r} is not a state of a trial") from e


def study_of(row: AnyRow) -> Study:
    """Raises DamagedRow."""
    try:
        return _study_of(row)
    except _DAMAGE as e:
        raise DamagedRow(f"study {row.namespace}/{row.study}: {_error_text(e)}") from e


def _study_of(row: AnyRow) -> Study:
    return Study(
        name=StudyName(row.namespace, row.study),
        uid=row.uid,
        spec=spec_of(row.spec),
        seed=row.seed,
        labels=row.labels,
        create_time=moment(row.create_time_us),
        owner_address=row.owner_address,
        owner_epoch=row.owner_epoch,
        past=tuple(
            PastSpace(
                space_of(one["parameters"]),
                one["trials"],
                _EPOCH + one["end_time_us"] * _MICROSECOND,
            )
            for one in row.past
        ),
    )


def past_document(study: Study) -> list[Columns]:
    return [
        {
            "parameters": space_document(one.space),
            "trials": one.trials,
            "end_time_us": microseconds(one.end_time),
        }
        for one in study.past
    ]


def record_of(row: AnyRow) -> StudyRecord:
    return StudyRecord(study_of(row), row.create_request_id, row.fingerprint)


def outcome_columns(trial: Trial) -> Columns:
    """Return the columns that change when a trial finishes."""
    return {column: value_of(trial) for column, value_of in _OUTCOME.items()}


def reopened_columns() -> Columns:
    """Return the columns that change when a failed trial runs again; see `Trial.reopened`."""
    running = Trial(0, TrialState.RUNNING, {})
    changed = outcome_columns(running).keys() - {"rungs"} | {"lease_us"}
    return {column: _COLUMNS[column](running) for column in changed}


def columns_of_trials(
    name: StudyName, trials: Sequence[Trial], add_request_ids: Sequence[str | None] | None = None
) -> dict[str, Sequence[object]]:
    """Return the columns of many trials, with documents as JSON text.

    A history has thousands of trials.
    """
    count = len(trials)
    columns: dict[str, Sequence[object]] = {
        "namespace": [name.namespace] * count,
        "study": [name.study] * count,
    }
    columns["add_request_id"] = add_request_ids or [None] * count
    for column, value_of in _COLUMNS.items():
        values = list(map(value_of, trials))
        columns[column] = list(map(json_text, values)) if column in DOCUMENTS else values
    return columns


def columns_of_batch(name: StudyName, batch: TrialBatch) -> dict[str, Sequence[object]]:
    """Return the columns of a batch.

    Those that it does not have take the values of any of its trials.
    """
    count = len(batch)
    labels = {key: list(map(json_text, texts)) for key, texts in batch.labels.items()}
    own: dict[str, Sequence[object]] = {
        "number": range(batch.first, batch.first + count),
        "state": [_WORDS[state] for state in batch.states],
        "parameters": _objects(
            {key: column.json for key, column in batch.parameters.items()}, count
        ),
        "value": batch.values,
        "reason": batch.reasons,
        "failure_class": batch.failure_classes,
        "labels": _objects(labels, count),
    }
    first = batch.trial(0)
    same: Columns = {"namespace": name.namespace, "study": name.study, "add_request_id": None}
    same |= {column: value_of(first) for column, value_of in _COLUMNS.items()}
    return {column: own.get(column) or [value] * count for column, value in same.items()}


DOCUMENTS = frozenset(column.name for column in trials_table.c if isinstance(column.type, JSON))
_encode = json.JSONEncoder().encode


def json_text(value: object) -> str | None:
    """Return a document as SQLAlchemy stores it, in less time; None if there is none."""
    if value is None:
        return None
    return "{}" if value == {} else _encode(value)


def _objects(columns: Mapping[str, Sequence[str | None]], count: int) -> list[str]:
    """Return a JSON object per row, with the values of its columns, all JSON; None is no value."""
    if any(None in texts for texts in columns.values()):
        heads = [f"{_encode(key)}: " for key in columns]
        objects = []
        for row in zip(*columns.values(), strict=True):
            pairs = zip(heads, row, strict=True)
            fields = [head + text for head, text in pairs if text is not None]
            objects.append("{" + ", ".join(fields) + "}")
        return objects
    parts: list[Iterable[str]] = []
    for key, texts in columns.items():
        parts += [repeat(f"{', ' if parts else '{'}{_encode(key)}: "), cast(Sequence[str], texts)]
    return list(map("".join, zip(*parts, repeat("}")))) if columns else ["{}"] * count


_WORDS = {state: word for word, state in _STATES.items()}
_OUTCOME: Mapping[str, Callable[[Trial], object]] = {
    "state": lambda trial: _WORDS[trial.state],
    "value": attrgetter("value"),
    "step": attrgetter("step"),
    "reason": attrgetter("reason"),
    "failure_class": attrgetter("failure_class"),
    "end_time_us": lambda trial: microseconds(trial.end_time),
    "further": lambda trial: list(trial.further) or None,
    "constraint_values": lambda trial: list(trial.constraint_values) or None,
    "rungs": lambda trial: [list(each) for each in trial.rungs] or None,
}
_FIXED: Mapping[str, Callable[[Trial], object]] = {
    "number": attrgetter("number"),
    "parameters": lambda trial: dict(trial.parameters),
    "client_id": attrgetter("client_id"),
    "request_id": attrgetter("request_id"),
    "labels": lambda trial: dict(trial.labels),
    "create_time_us": lambda trial: microseconds(trial.create_time),
    "deleted": lambda trial: False,
    "tries": attrgetter("tries"),
    "lease_us": lambda trial: None if trial.lease_s is None else round(trial.lease_s * 1e6),
    "fidelity": attrgetter("fidelity"),
    "parent": attrgetter("parent"),
}
_COLUMNS = {**_FIXED, **_OUTCOME}
OUTCOME = tuple(_OUTCOME)  # the columns that change when a trial finishes


def trial_of(row: AnyRow) -> Trial:
    """Read a trial from a row with all columns of `trials`, in their order.

    The columns are read by position: a study has thousands of trials,
    and access by name would double the time.

    Raises DamagedRow.
    """
    try:
        return _trial_of(row)
    except _DAMAGE as e:
        raise DamagedRow(f"trial {row.namespace}/{row.study}/{row.number}: {_error_text(e)}") from e


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _trial_of(row: AnyRow) -> Trial:
    columns: Sequence[Any] = row
    (
        _,
        _,
        number,
        word,
        parameters,
        value,
        step,
        reason,
        failure_class,
        client_id,
        request_id,
        _,
        labels,
        create_us,
        end_us,
        deleted,
        tries,
        lease_us,
        further,
        constraint_values,
        fidelity,
        rungs,
        parent,
    ) = columns
    # Only engines read deleted trials, and treat them as cancelled.
    return Trial(
        number,
        TrialState.CANCELLED if deleted else state_of(word),
        dict(parameters),
        None if deleted or value is None else float(value),
        None if deleted or step is None else int(step),
        reason,
        failure_class,
        client_id,
        request_id,
        labels,
        moment(create_us),
        moment(end_us),
        tries,
        None if lease_us is None else lease_us / 1e6,
        None,
        () if deleted or further is None else tuple(further),
        () if deleted or constraint_values is None else tuple(constraint_values),
        fidelity,
        () if deleted or rungs is None else tuple(RungResult(*each) for each in rungs),
        parent,
    )


def measurement_of(row: AnyRow) -> Measurement:
    """Raises DamagedRow."""
    try:
        value = math.nan if row.value is None else float(row.value)
        return Measurement(int(row.attempt), row.metric, int(row.step), value)
    except _DAMAGE as e:
        raise DamagedRow(
            f"measurement of trial {row.namespace}/{row.study}/{row.trial}: {_error_text(e)}"
        ) from e
