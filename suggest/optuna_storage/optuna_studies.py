"""Reads studies from an Optuna database or journal file,
through Optuna's own storages, for an import.

Writes nothing and unpickles nothing: distributions and attributes are JSON. Imports Optuna.
"""

from __future__ import annotations

import hashlib
import logging
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import sqlalchemy
from optuna.exceptions import OptunaError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState

from suggest.domain import Value, json_problem
from suggest.errors import InvalidArgument, NotFound, Problem, Unavailable
from suggest.imports import MAX_ROWS, FinishedTrial, Source, study_of
from suggest.optuna_storage import METRIC_NAMES, quiet
from suggest.study import Direction, Objective
from suggest.trial import Measurement, Outcome
from suggest.trial import TrialState as State
from suggest.url_redaction import redacted_url

_WORDS = {TrialState.RUNNING: "still running", TrialState.WAITING: "never run"}


def tables_of(storage_url: str) -> set[str]:
    """Return the names of the tables.

    Raises NotFound if there is no such database; SQLite would create it.
    """
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


def is_optunas(storage_url: str) -> bool:
    """Return whether an existing database contains Optuna's studies, not Tuner's.

    Raises:
        NotFound: there is no database, or it contains studies of neither.
        Unavailable: the database does not answer.
    """
    tables = tables_of(storage_url)
    if {"version_info", "studies", "trials"} <= tables:
        return True
    if "studies" in tables:
        return False
    raise NotFound(f"{redacted_url(storage_url)}: contains neither tuner's nor Optuna's studies")


def read(
    place: str,
    study: str,
    value: str,
    objectives: Sequence[str] = (),
    constraints: Sequence[str] = (),
) -> Source:
    """Return the finished trials of a study in a database or a journal file.

    `study` may be "" if there is only one. `value` selects the first objective by name or number,
    and may be "" if it is clear. `objectives` and `constraints` are the metrics to read. Raises
    NotFound, InvalidArgument, Unavailable.
    """
    # The caller reports problems.
    logging.getLogger("optuna").setLevel(logging.ERROR)
    with _opened(place) as storage:
        studies = {found.study_name: found for found in storage.get_all_studies()}
        chosen = study_of(studies, study, redacted_url(place))
        count = storage.get_n_trials(chosen._study_id)
        if count > MAX_ROWS:
            message = (
                f"{chosen.study_name} has {count:,} trials, more than {MAX_ROWS:,}; export "
                "the best to a CSV file"
            )
            raise InvalidArgument.at("--study", message)
        trials = storage.get_all_trials(chosen._study_id, deepcopy=False)
    names = _metric_names(chosen)
    first, *others = _indices(chosen, objectives, value)
    further: dict[str, int | None] = {
        metric: names.index(metric) if metric in names else None for metric in constraints
    }
    further |= dict(zip(objectives[1:], others, strict=True))
    # A constraint of the first objective.
    if objectives and objectives[0] in further:
        further[objectives[0]] = first
    metric = names[first] if names else ""

    def measured(trial: FrozenTrial) -> dict[str, object]:
        return {
            name: trial.user_attrs.get(name) if index is None else trial.values[index]
            for name, index in further.items()
        }

    metrics = [metric, *objectives[1:]]
    directions = [_direction(chosen.directions[index]) for index in (first, *others)]
    return source_of(
        trials,
        [str(trial.number) for trial in trials],
        first=first,
        objectives=[*map(Objective, metrics, directions)],
        measured=measured,
        title=f"{chosen.study_name} in {redacted_url(place)}"[:256],
        identity=_identity(chosen, trials),
    )


def source_of(
    trials: Sequence[FrozenTrial],
    source_ids: Sequence[str],
    *,
    first: int,
    objectives: Sequence[Objective],
    measured: Callable[[FrozenTrial], Mapping[str, object]],
    title: str,
    identity: str,
) -> Source:
    """Return the finished trials for an import.

    first: the index of the value that counts, that of the first objective. measured: what is known
    of other metrics of a trial that has succeeded.
    """
    finished: list[tuple[str, FinishedTrial]] = []
    refused: list[Problem] = []
    left_out: Counter[str] = Counter()
    for trial, source_id in zip(trials, source_ids, strict=True):
        if trial.state in _WORDS:
            left_out[_WORDS[trial.state]] += 1
            continue
        label = f"trial {trial.number}"
        try:
            taken = _finished(trial, first, objectives[0].metric, measured)
            finished.append((label, replace(taken, source_id=source_id)))
        except ValueError as error:
            refused.append(Problem(label, str(error)))
    return Source(title, identity, finished, objectives, left_out=left_out, refused=refused)


@contextmanager
def _opened(place: str) -> Iterator[BaseStorage]:
    """Yield the storage of a database's URL, or of a journal file.

    Raises InvalidArgument, Unavailable.
    """
    if "://" in place:
        with _translated(place):
            database = RDBStorage(place, skip_table_creation=True)
            try:
                yield database
            finally:
                database.engine.dispose()
        return
    try:
        # Some versions call journals experimental.
        with quiet():
            journal = JournalStorage(JournalFileBackend(place))
    except (OSError, ValueError, KeyError, TypeError, AssertionError, OptunaError) as error:
        problem = (
            f"{place}: cannot be read as a journal of Optuna ({type(error).__name__}: {error})"
        )
        raise Unavailable(" ".join(problem.split())[:400]) from error
    yield journal


def _metric_names(study: FrozenStudy) -> list[str]:
    """Return the names of the objectives; empty if they have none."""
    names = study.system_attrs.get(METRIC_NAMES)
    if isinstance(names, list) and len(names) == len(study.directions):
        return [str(name) for name in names]
    return []


def _indices(study: FrozenStudy, objectives: Sequence[str], value: str) -> list[int]:
    """Return which objectives of the study the experiment's are, or the one to read.

    Raises InvalidArgument if this is not clear: objectives are identified by name,
    or by order if they have none.
    """
    names, count = _metric_names(study), len(study.directions)
    in_order = not names and count == len(objectives)
    missing = [metric for metric in objectives[bool(value) :] if metric not in names]
    if missing and len(objectives) > 1 and not in_order:
        its = f"its objectives are {', '.join(names)}" if names else f"it has {count} without names"
        message = (
            f"{study.study_name} has no objective {', '.join(missing)}; {its}; name them "
            "with Optuna's "
        )
        raise InvalidArgument.at("--from", message + f"study.set_metric_names({[*objectives]})")
    first = _first(study, names, value, "" if not objectives else objectives[0], in_order=in_order)
    if in_order:
        return [first, *(index for index in range(count) if index != first)]
    return [first, *(names.index(metric) for metric in objectives[1:])]


def _first(
    study: FrozenStudy, names: Sequence[str], value: str, metric: str, *, in_order: bool
) -> int:
    """Return the index of the objective whose values count.

    Raises InvalidArgument if it is not clear.
    """
    count = len(study.directions)
    if value in names:
        return names.index(value)
    if value.isdigit() and int(value) < count:
        return int(value)
    if not value and metric in names:
        return names.index(metric)
    if count == 1 or (in_order and not value):
        # A single objective may have another name here.
        return 0
    of = f"{', '.join(names)}, or " if names else ""
    message = (
        f"{study.study_name} has {count} objectives; say whose values count: {of}0 to {count - 1}"
    )
    raise InvalidArgument.at("--value", message)


def _direction(direction: StudyDirection) -> Direction:
    # NOT_SET is found in databases that other programs wrote; Optuna minimizes by default.
    return Direction.MAXIMIZE if direction is StudyDirection.MAXIMIZE else Direction.MINIMIZE


def _finished(
    trial: FrozenTrial,
    place: int,
    metric: str,
    measured: Callable[[FrozenTrial], Mapping[str, object]],
) -> FinishedTrial:
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
    outcome = _outcome(trial, place)
    if outcome.state is State.SUCCEEDED:
        reported += [
            Measurement(1, name, 0, _finite(name, found)) for name, found in measured(trial).items()
        ]
    return FinishedTrial(parameters, outcome, reported)


def _finite(metric: str, found: object) -> float:
    """Raises ValueError if the value is not a finite number."""
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise ValueError(
            f"{metric}: an objective or a user attribute of this name is {found}, and only a "
            "finite number can be compared"
        )
    return float(found)


def _outcome(trial: FrozenTrial, place: int) -> Outcome:
    if trial.state is TrialState.FAIL:
        return Outcome(State.FAILED, reason="failed, as Optuna says")
    if trial.state is TrialState.PRUNED:
        last = (
            trial.intermediate_values[max(trial.intermediate_values)]
            if trial.intermediate_values
            else None
        )
        return Outcome(
            State.PRUNED,
            last if last is not None and math.isfinite(last) else None,
            "pruned by Optuna",
        )
    values = trial.values
    if not values or not math.isfinite(values[place]):
        raise ValueError(
            f"its value is {values[place] if values else None}, and only a finite one can be "
            "compared"
        )
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
        # Without the SQL statement, which does not help people.
        cause = getattr(error, "orig", error)
        raise Unavailable(
            f"{place}: cannot be read ({' '.join(str(cause).split())[:300]})"
        ) from error
