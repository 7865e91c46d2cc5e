"""The tables of controller.db, and the conversion of the controller's values to rows and back. Opens no connection."""

from __future__ import annotations

import json
from datetime import datetime

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


def experiment_row(experiment: Experiment) -> dict[str, object]:
    return {
        "uid": experiment.uid,
        "namespace": experiment.namespace,
        "name": experiment.name,
        "revision": experiment.revision,
        "directory": experiment.directory,
        "study": experiment.study,
        "server": experiment.server,
        "context": experiment.context,
        "state": experiment.state.value,
        "reason": _reason_column(experiment),
        "stop_requested": experiment.stop_requested,
        "running_s": experiment.running_s,
        "final_trial": experiment.final and experiment.final.trial,
        "final_first": experiment.final and experiment.final.first,
        "start_time": experiment.start_time and experiment.start_time.isoformat(),
        "end_time": experiment.end_time and experiment.end_time.isoformat(),
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
    return Experiment(
        uid=row["uid"],
        spec=spec,
        revision=row["revision"],
        directory=row["directory"],
        study=row["study"],
        server=row["server"],
        context=row["context"],
        state=ExperimentState(row["state"]),
        reason=reason,
        reason_code=code,
        stop_requested=row["stop_requested"],
        running_s=row["running_s"],
        final=None if row["final_trial"] is None else FinalRun(row["final_trial"], row["final_first"]),
        start_time=row["start_time"] and moment(row["start_time"]),
        end_time=row["end_time"] and moment(row["end_time"]),
    )


def revision_row(uid: Uid, revision: Revision) -> dict[str, object]:
    return {
        "uid": uid,
        "number": revision.number,
        "document": json.dumps(revision.spec.document),
        "file_text": revision.file_text,
        "time": revision.time.isoformat(),
    }


def attempt_row(uid: Uid, attempt: Attempt) -> dict[str, object]:
    return {
        "uid": uid,
        "trial": trial_column(attempt.trial),
        "number": attempt.number,
        "state": attempt.state.value,
        "stop_cause": attempt.stop_cause and attempt.stop_cause.value,
        "start_time": attempt.start_time and attempt.start_time.isoformat(),
        "end_time": attempt.end_time and attempt.end_time.isoformat(),
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "value": attempt.value,
        "step": attempt.step,
        "failure_class": attempt.failure_class and attempt.failure_class.value,
        "reason": attempt.reason,
        "node": attempt.node,
        "image": attempt.image,
        "rerun": attempt.rerun,
        "reviewed": attempt.reviewed,
        "fidelity": attempt.fidelity,
    }


def attempt_of(row: sa.RowMapping) -> Attempt:
    return Attempt(
        trial=trial_of(row["trial"]),
        number=row["number"],
        state=AttemptState(row["state"]),
        stop_cause=row["stop_cause"] and StopCause(row["stop_cause"]),
        start_time=row["start_time"] and moment(row["start_time"]),
        end_time=row["end_time"] and moment(row["end_time"]),
        exit_code=row["exit_code"],
        signal=row["signal"],
        value=row["value"],
        step=row["step"],
        failure_class=row["failure_class"] and FailureClass(row["failure_class"]),
        reason=row["reason"],
        node=row["node"],
        image=row["image"],
        rerun=row["rerun"],
        reviewed=row["reviewed"],
        fidelity=row["fidelity"],
    )


def event_row(uid: Uid, event: Event) -> dict[str, object]:
    return {
        "uid": uid,
        "time": event.time.isoformat(),
        "kind": event.kind,
        "message": event.message,
        "trial": None if event.trial is None else trial_column(event.trial),
        "attempt": event.attempt,
    }


def event_of(row: sa.RowMapping) -> Event:
    trial = None if row["trial"] is None else trial_of(row["trial"])
    return Event(moment(row["time"]), row["kind"], row["message"], trial, row["attempt"])
