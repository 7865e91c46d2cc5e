"""The values of the controller from rows of its tables, as a database has them or as JSON.

Knows no database, so that a program that reads rows over HTTP loads none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from controller.core.model import (
    FINAL,
    Attempt,
    AttemptKey,
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
)

FINAL_ROW = -1  # the final stage, in a column `trial`
_CODES = {code.value: code for code in ReasonCode}


def trial_column(trial: TrialOrFinal) -> int:
    return FINAL_ROW if isinstance(trial, Stage) else trial


def attempt_key_of(row: Mapping[str, Any]) -> AttemptKey:
    """Return the attempt of a row that belongs to one."""
    return trial_of(row["trial"]), row["number"]


def trial_of(column: int) -> TrialOrFinal:
    return FINAL if column == FINAL_ROW else column


# Any: the schema says what the column of that name has
_READ: Mapping[str, Callable[[Any], object]] = {
    "trial": trial_of,
    "stop_cause": StopCause,
    "failure_class": FailureClass,
    "time": datetime.fromisoformat,
    "start_time": datetime.fromisoformat,
    "end_time": datetime.fromisoformat,
    # SQLite has 0 and 1 for these
    "stop_requested": bool,
    "rerun": bool,
    "reviewed": bool,
}


def _fields(row: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """Return the fields of the value of a row, except for the columns `others`."""
    fields = dict(row)
    for name in others:
        del fields[name]
    for name, read in _READ.items():
        if fields.get(name) is not None:
            fields[name] = read(fields[name])
    return fields


def experiment_of(row: Mapping[str, Any], spec: ExperimentSpec) -> Experiment:
    reason, code = _reason_of(row["reason"])
    trial = row["final_trial"]
    return Experiment(
        spec=spec,
        state=ExperimentState(row["state"]),
        reason=reason,
        reason_code=code,
        final=None if trial is None else FinalRun(trial, row["final_first"]),
        **_fields(
            row, "name", "namespace", "state", "reason", "final_trial", "final_first", "document"
        ),
    )


def _reason_of(column: str) -> tuple[str, ReasonCode | None]:
    """Return the sentence and the code, if there is one before the sentence."""
    word, colon, sentence = column.partition(": ")
    if colon and word in _CODES:
        return sentence, _CODES[word]
    return column, None


def revision_of(row: Mapping[str, Any], spec: ExperimentSpec) -> Revision:
    return Revision(spec=spec, **_fields(row, "uid", "document"))


def attempt_of(row: Mapping[str, Any]) -> Attempt:
    fields = _fields(row, "uid", "state")
    return Attempt(state=AttemptState(row["state"]), set_aside=fields.pop("rerun"), **fields)


def event_of(row: Mapping[str, Any]) -> Event:
    return Event(**_fields(row, "uid", "id"))
