"""Reads studies from an Optuna database, through Optuna's own storage, for an import.

Writes nothing and unpickles nothing: distributions and attributes are JSON. Imports Optuna.
"""

from __future__ import annotations

import hashlib
import logging
import math
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy
from optuna.exceptions import OptunaError
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState

from suggest.domain import Value, json_problem
from suggest.errors import InvalidArgument, NotFound, Problem, Unavailable, did_you_mean
from suggest.imports import MAX_ROWS, FinishedTrial, Source
from suggest.optuna_storage import METRIC_NAMES
from suggest.study import Direction
from suggest.trial import Measurement, Outcome
from suggest.trial import TrialState as State
from suggest.url_redaction import redacted_url

_WORDS = {TrialState.RUNNING: "still running", TrialState.WAITING: "never run"}


def tables_of(storage_url: str) -> set[str]:
    """Return the names of the tables. Raises NotFound if there is no such database; SQLite would create it."""
    if storage_url.startswith("sqlite:///"):
        path = Path(storage_url.removeprefix("sqlite:///").partition("?")[0])
        if not path.is_file():
            raise NotFound(f"{path}: there is no such database")
    try:
        sqlalchemy.make_url(storage_url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        # Not chained: the cause may quote a part of a password.
        message = f"{redacted_url(storage_url)} is not a database URL"
        raise InvalidArgument.at("--from", message) from None
    with _translated(storage_url):
        engine = sqlalchemy.create_engine(storage_url)
        try:
            return set(sqlalchemy.inspect(engine).get_table_names())
        finally:
            engine.dispose()


def read(storage_url: str, study: str, value: str) -> Source:
    logging.getLogger("optuna").setLevel(logging.ERROR)  # the caller reports problems
    with _translated(storage_url):
        storage = RDBStorage(storage_url, skip_table_creation=True)
        try:
            chosen = _chosen(storage.get_all_studies(), study, redacted_url(storage_url))
            count = storage.get_n_trials(chosen._study_id)
            if count > MAX_ROWS:
                message = (
                    f"{chosen.study_name} has {count:,} trials, more than {MAX_ROWS:,}; export the best to a CSV file"
                )
                raise InvalidArgument.at("--study", message)
            trials = storage.get_all_trials(chosen._study_id, deepcopy=False)
        finally:
            storage.engine.dispose()
    place = _objective(chosen, value)
    names = chosen.system_attrs.get(METRIC_NAMES)
    metric = str(names[place]) if isinstance(names, list) and place < len(names) else ""
    finished: list[tuple[str, FinishedTrial]] = []
    refused: list[Problem] = []
    left_out: Counter[str] = Counter()
    for trial in trials:
        if trial.state in _WORDS:
            left_out[_WORDS[trial.state]] += 1
            continue
        label = f"trial {trial.number}"
        try:
            finished.append((label, _finished(trial, place, metric)))
        except ValueError as error:
            refused.append(Problem(label, str(error)))
    return Source(
        title=f"{chosen.study_name} in {redacted_url(storage_url)}"[:256],
        identity=_identity(chosen, trials),
        trials=finished,
        direction=_direction(chosen.directions[place]),
        metric=metric,
        left_out=left_out,
        refused=refused,
    )


def _chosen(studies: Sequence[FrozenStudy], name: str, place: str) -> FrozenStudy:
    names = [study.study_name for study in studies]
    if not name and len(studies) == 1:
        return studies[0]
    if name in names:
        return studies[names.index(name)]
    some = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    if not name:
        raise InvalidArgument.at("--study", f"name one of the studies in {place}: {some or 'there are none'}")
    raise NotFound(f"{place} has no study {name!r}{did_you_mean(name, names) or f'; there are {some or None}'}")


def _objective(study: FrozenStudy, value: str) -> int:
    """Return the index of the chosen objective. Raises InvalidArgument if the choice is not clear."""
    names = study.system_attrs.get(METRIC_NAMES)
    metric_names = [str(name) for name in names] if isinstance(names, list) else []
    count = len(study.directions)
    if value in metric_names:
        return metric_names.index(value)
    if value.isdigit() and int(value) < count:
        return int(value)
    if count > 1:
        of = f"{', '.join(metric_names)}, or " if metric_names else ""
        message = f"{study.study_name} has {count} objectives; say whose values count: {of}0 to {count - 1}"
        raise InvalidArgument.at("--value", message)
    return 0  # there is one objective, which may have another name here


def _direction(direction: StudyDirection) -> Direction:
    # NOT_SET is found in databases that other programs wrote; Optuna minimizes by default.
    return Direction.MAXIMIZE if direction is StudyDirection.MAXIMIZE else Direction.MINIMIZE


def _finished(trial: FrozenTrial, place: int, metric: str) -> FinishedTrial:
    """Convert a trial. Raises ValueError if nothing can be learned from it."""
    parameters: dict[str, Value] = {}
    for name, value in trial.params.items():
        if problem := json_problem(value):
            raise ValueError(f"{name}: {problem}")
        parameters[name] = value
    reported = [
        Measurement(1, metric, step, float(value))
        for step, value in sorted(trial.intermediate_values.items())
        if step >= 0
    ]
    return FinishedTrial(parameters, _outcome(trial, place), reported, source_id=str(trial.number))


def _outcome(trial: FrozenTrial, place: int) -> Outcome:
    if trial.state is TrialState.FAIL:
        return Outcome(State.FAILED, reason="failed, as Optuna says")
    if trial.state is TrialState.PRUNED:
        last = trial.intermediate_values[max(trial.intermediate_values)] if trial.intermediate_values else None
        return Outcome(State.PRUNED, last if last is not None and math.isfinite(last) else None, "pruned by Optuna")
    values = trial.values
    if not values or not math.isfinite(values[place]):
        raise ValueError(f"its value is {values[place] if values else None}, and only a finite one can be compared")
    return Outcome(State.SUCCEEDED, values[place])


def _identity(study: FrozenStudy, trials: Sequence[FrozenTrial]) -> str:
    """Return an id by the study's name and begin, which stays the same if the database is moved."""
    begun = trials[0].datetime_start.isoformat() if trials and trials[0].datetime_start else ""
    return "optuna-" + hashlib.sha256(f"{study.study_name}\0{begun}".encode()).hexdigest()[:32]


@contextmanager
def _translated(storage_url: str) -> Iterator[None]:
    place = redacted_url(storage_url)
    try:
        yield
    except (sqlalchemy.exc.ArgumentError, ImportError) as error:
        message = f"{place} is not a URL of a database that can be read here ({error})"
        raise InvalidArgument.at("--from", " ".join(message.split())) from error
    except (sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OptunaError, RuntimeError) as error:
        cause = getattr(error, "orig", error)  # without the SQL statement, which does not help people
        raise Unavailable(f"{place}: cannot be read ({' '.join(str(cause).split())[:300]})") from error
