"""The tables of experiments, in controller.db or beside the studies in PostgreSQL, and the
conversion of the controller's values to rows; `experiment_rows` reads them.

Opens no connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from controller import experiment_rows as rows
from controller.core.model import (
    FORMAT,
    Attempt,
    AttemptState,
    Event,
    Experiment,
    ExperimentSpec,
    ExperimentState,
    FailureClass,
    Revision,
    Stage,
    StopCause,
    Uid,
)
from suggest.storage.schema import Schema, version_table

metadata = sa.MetaData()
# 64 bits, which every INTEGER of SQLite has
_Long = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
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
    sa.Column("gpu_hours", sa.Float, nullable=False, server_default="0"),
    sa.Column("cost", sa.Float, nullable=False, server_default="0"),
    sa.Column("final_trial", sa.Integer),
    sa.Column("final_first", sa.Integer),
    sa.Column("ended_by", sa.String, nullable=False, server_default=""),
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
    sa.Column("step", _Long),
    sa.Column("failure_class", sa.String),
    sa.Column("reason", sa.String, nullable=False),
    sa.Column("node", sa.String, nullable=False),
    sa.Column("image", sa.String, nullable=False),
    # `Attempt.set_aside`. Searches that 0.1.0 runs need this name after an upgrade, too.
    sa.Column("rerun", sa.Boolean, nullable=False),
    sa.Column("reviewed", sa.Boolean, nullable=False),
    sa.Column("fidelity", sa.Float),
    sa.Column("log_gap", sa.String, nullable=False),
    sa.Column("value_doubt", sa.String, nullable=False),
    sa.Column("gpus", sa.Float, nullable=False, server_default="0"),
    sa.Column("price_per_hour", sa.Float, nullable=False, server_default="0"),
    sa.Column("earlier_s", sa.Float, nullable=False, server_default="0"),
)
_is_unended = attempts.c.end_time.is_(None)
_unended = sa.Index("attempts_unended", attempts.c.uid, sqlite_where=_is_unended)


@sa.event.listens_for(attempts, "before_create")
def _limit_index(_: sa.Table, connection: sa.Connection, **__: object) -> None:
    """Set `postgresql_where`, which would import that dialect with this module:
    a tenth of the processor time of each command.
    """
    if connection.dialect.name == "postgresql":
        _unended.dialect_options["postgresql"]["where"] = _is_unended


events = sa.Table(
    "events",
    metadata,
    sa.Column("id", _Long, primary_key=True),
    sa.Column("uid", sa.ForeignKey("experiments.uid", ondelete="CASCADE"), nullable=False),
    sa.Column("time", sa.String, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("trial", sa.Integer),
    sa.Column("attempt", sa.Integer),
    sa.Index("events_of", "uid", "trial"),
)
# The controller in the cluster that writes: one row, or none. See `experiment_store.Fence`.
leader = sa.Table(
    "controller_leader",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("epoch", _Long, nullable=False),
    sa.Column("holder", sa.String, nullable=False),
)
# What a runtime did with the objects of attempts; of those without a row, none was ever created.
attempt_objects = sa.Table(
    "attempt_objects",
    metadata,
    sa.Column("uid", sa.ForeignKey("experiments.uid", ondelete="CASCADE"), primary_key=True),
    sa.Column("trial", sa.Integer, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("object_uid", sa.String, nullable=False),
    sa.Column("timed_out", sa.Boolean, nullable=False),
)
# What the ended attempts of a namespace have used in a month, and the highest limits for which
# running ones were stopped: see `usage_ledger`.
usage = sa.Table(
    "usage",
    metadata,
    sa.Column("namespace", sa.String, primary_key=True),
    sa.Column("month", sa.String, primary_key=True),
    sa.Column("gpu_hours", sa.Float, nullable=False),
    sa.Column("cost", sa.Float, nullable=False),
    sa.Column("stopped_gpu_hours", sa.Float, nullable=False, server_default="0"),
    sa.Column("stopped_cost", sa.Float, nullable=False, server_default="0"),
)
SCHEMA = Schema(
    metadata,
    version_table("controller_schema_version", metadata),
    newest="0006",
    older=("0001",),
    migrations="controller:migrations",
    option="--state-dir or TUNER_STATE_DIR",
)

_COLUMNS = {
    table: [column.name for column in table.c]
    for table in (experiments, revisions, attempts, events)
}
_WRITE: Mapping[type, Callable[[Any], object]] = {  # Any: values of that type
    Stage: lambda stage: rows.FINAL_ROW,
    datetime: datetime.isoformat,
    # PostgreSQL stores no zero byte
    str: lambda text: text.replace("\0", "\ufffd"),
    **{
        states: attrgetter("value")
        for states in (ExperimentState, AttemptState, StopCause, FailureClass)
    },
}


def _row(table: sa.Table, value: object, **others: object) -> dict[str, object]:
    """Return a value's row: each column has the field of its name, unless it is in `others`."""
    row = dict(others)
    for name in _COLUMNS[table]:
        if name not in row:
            field = getattr(value, name)
            write = _WRITE.get(type(field))
            row[name] = field if write is None else write(field)
    return row


def experiment_row(experiment: Experiment) -> dict[str, object]:
    code = experiment.reason_code
    return _row(
        experiments,
        experiment,
        reason=experiment.reason if code is None else f"{code.value}: {experiment.reason}",
        **final_columns(experiment),
    )


def final_columns(experiment: Experiment) -> dict[str, object]:
    final = experiment.final
    return {"final_trial": final and final.trial, "final_first": final and final.first}


def stored_document(spec: ExperimentSpec) -> dict[str, object]:
    """Return the document of the experiment, with the format of the person's file beside it."""
    return {**spec.document, **({FORMAT: "katib"} if spec.is_katib else {})}


def revision_row(uid: Uid, revision: Revision) -> dict[str, object]:
    return _row(revisions, revision, uid=uid, document=json.dumps(stored_document(revision.spec)))


def attempt_row(uid: Uid, attempt: Attempt) -> dict[str, object]:
    return _row(attempts, attempt, uid=uid, rerun=attempt.set_aside)


def event_row(uid: Uid, event: Event) -> dict[str, object]:
    return _row(events, event, uid=uid, id=None)  # the database numbers events
