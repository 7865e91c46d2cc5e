"""The tables of controller.db, and the conversion of the controller's values to rows and back. Opens no connection."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from controller.core.model import (
    FINAL,
    Attempt,
    AttemptState,
    Event,
    Experiment,
    ExperimentSpec,
    ExperimentState,
    FailureClass,
    FinalRun,
    ReasonCode,
    Revision,
    Stage,
    StopCause,
    TrialOrFinal,
    Uid,
)

# The statements that upgrade each older schema to the next; ADR 14 says why this is not done by a migration tool.
UPGRADES = {
    1: (
        "ALTER TABLE experiments ADD COLUMN final_trial INTEGER",
        "ALTER TABLE experiments ADD COLUMN final_first INTEGER",
    ),
    2: (
        "ALTER TABLE attempts ADD COLUMN rerun BOOLEAN NOT NULL DEFAULT 0",
        "ALTER TABLE attempts ADD COLUMN reviewed BOOLEAN NOT NULL DEFAULT 0",
    ),
    3: ("ALTER TABLE attempts ADD COLUMN fidelity FLOAT",),
}

metadata = sa.MetaData()
schema = sa.Table("controller_schema", metadata, sa.Column("version", sa.Integer, nullable=False))
experiments = sa.Table(
    "experiments",
    metadata,
    sa.Column("uid", sa.String, primary_key=True),
    sa.Column("namespace", sa.String, nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("directory", sa.String, nullable=False),
    sa.Column("study", sa.String, nullable=False),
    sa.Column("server", sa.String, nullable=False),
    sa.Column("context", sa.String, nullable=False),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("reason", sa.String, nullable=False),
    sa.Column("stop_requested", sa.Boolean, nullable=False),
    sa.Column("running_s", sa.Float, nullable=False),
    sa.Column("final_trial", sa.Integer),
    sa.Column("final_first", sa.Integer),
    sa.Column("start_time", sa.String),
    sa.Column("end_time", sa.String),
    sa.UniqueConstraint("namespace", "name"),
)
revisions = sa.Table(
    "revisions",
    metadata,
    sa.Column("uid", sa.ForeignKey("experiments.uid", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("file_text", sa.Text, nullable=False),
    sa.Column("time", sa.String, nullable=False),
)
attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("uid", sa.ForeignKey("experiments.uid", ondelete="CASCADE"), primary_key=True),
    sa.Column("trial", sa.Integer, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("stop_cause", sa.String),
    sa.Column("start_time", sa.String),
    sa.Column("end_time", sa.String),
    sa.Column("exit_code", sa.Integer),
    sa.Column("signal", sa.Integer),
    sa.Column("value", sa.Float),
    sa.Column("step", sa.Integer),
    sa.Column("failure_class", sa.String),
    sa.Column("reason", sa.String, nullable=False),
    sa.Column("node", sa.String, nullable=False),
    sa.Column("image", sa.String, nullable=False),
    sa.Column("rerun", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("reviewed", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("fidelity", sa.Float),
)
events = sa.Table(
    "events",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uid", sa.ForeignKey("experiments.uid", ondelete="CASCADE"), nullable=False),
    sa.Column("time", sa.String, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("trial", sa.Integer),
    sa.Column("attempt", sa.Integer),
    sa.Index("events_of", "uid", "trial"),
)


FINAL_ROW = -1  # the final stage, in a column `trial`
_CODES = {code.value: code for code in ReasonCode}
# The reasons of earlier versions on which a later command depends.
_BEFORE_CODES = (
    ("tuner stop", ReasonCode.STOP_REQUESTED),
    ("budget.failedTrials", ReasonCode.TOO_MANY_FAILURES),
)


def trial_column(trial: TrialOrFinal) -> int:
    return FINAL_ROW if isinstance(trial, Stage) else trial


def trial_of(column: int) -> TrialOrFinal:
    return FINAL if column == FINAL_ROW else column


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _stored(value: object) -> object:
    """Return a value of the model as its column has it."""
    match value:
        case Stage():
            return FINAL_ROW
        case enum.Enum():
            return value.value
        case datetime():
            return value.isoformat()
    return value


def _read(row: sa.RowMapping, names: Iterable[str], readers: Mapping[str, Callable[[Any], object]]) -> dict[str, Any]:
    """Return columns as fields of the model, of any type. A column without a reader has the same value there."""
    return {name: row[name] if row[name] is None or name not in readers else readers[name](row[name]) for name in names}


_TIMES: dict[str, Callable[[Any], object]] = {"time": moment, "start_time": moment, "end_time": moment}
_ATTEMPT = [field.name for field in fields(Attempt)]
_OF_ATTEMPT: dict[str, Callable[[Any], object]] = {
    "trial": trial_of,
    "state": AttemptState,
    "stop_cause": StopCause,
    "failure_class": FailureClass,
    **_TIMES,
}
_EVENT = [field.name for field in fields(Event)]
_OF_EVENT: dict[str, Callable[[Any], object]] = {"trial": trial_of, **_TIMES}
_DERIVED = {"reason", "final_trial", "final_first"}  # columns of an experiment that are no fields of it
_EXPERIMENT = [column.name for column in experiments.c if column.name not in _DERIVED]
_OF_EXPERIMENT = {"state": ExperimentState, **_TIMES}


def experiment_row(experiment: Experiment) -> dict[str, object]:
    return {
        **{name: _stored(getattr(experiment, name)) for name in _EXPERIMENT},
        "reason": _reason_column(experiment),
        "final_trial": experiment.final and experiment.final.trial,
        "final_first": experiment.final and experiment.final.first,
    }


def _reason_column(experiment: Experiment) -> str:
    code = experiment.reason_code
    return experiment.reason if code is None else f"{code.value}: {experiment.reason}"


def _reason_of(column: str) -> tuple[str, ReasonCode | None]:
    """Return the sentence and the code. Records of earlier versions have the sentence alone."""
    word, colon, sentence = column.partition(": ")
    if colon and word in _CODES:
        return sentence, _CODES[word]
    return column, next((code for text, code in _BEFORE_CODES if text in column), None)


def experiment_of(row: sa.RowMapping, spec: ExperimentSpec) -> Experiment:
    reason, code = _reason_of(row["reason"])
    final = None if row["final_trial"] is None else FinalRun(row["final_trial"], row["final_first"])
    own = _read(row, (name for name in _EXPERIMENT if name not in ("namespace", "name")), _OF_EXPERIMENT)
    return Experiment(spec=spec, reason=reason, reason_code=code, final=final, **own)


def revision_row(uid: Uid, revision: Revision) -> dict[str, object]:
    return {
        "uid": uid,
        "number": revision.number,
        "document": json.dumps(revision.spec.document),
        "file_text": revision.file_text,
        "time": revision.time.isoformat(),
    }


def attempt_row(uid: Uid, attempt: Attempt) -> dict[str, object]:
    return {"uid": uid, **{name: _stored(getattr(attempt, name)) for name in _ATTEMPT}}


def attempt_of(row: sa.RowMapping) -> Attempt:
    return Attempt(**_read(row, _ATTEMPT, _OF_ATTEMPT))


def event_row(uid: Uid, event: Event) -> dict[str, object]:
    return {"uid": uid, **{name: _stored(getattr(event, name)) for name in _EVENT}}


def event_of(row: sa.RowMapping) -> Event:
    return Event(**_read(row, _EVENT, _OF_EVENT))
