"""Read finished trials from a CSV file with a column for each parameter, objective and constraint.

This reads the output of `tuner export`, of Optuna's `trials_dataframe`, of W&B, MLflow and Ray
Tune, and files written by hand. The domain of a parameter determines how a text is interpreted.
Problems are reported by line.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from controller.app.csv_states import NotTold, StateColumn, StateColumns, state_columns
from controller.core.model import ExperimentSpec
from controller.named_files import open_without_waiting
from controller.report.text_tables import CSV_COLUMNS
from suggest.client import FinishedTrial, Measurement, Outcome, TrialState
from suggest.domain import NO_MEMBER, Choice, Domain, Float, Int, Value, json_problem
from suggest.errors import InvalidArgument, NotFound, Problem, did_you_mean
from suggest.imports import MAX_ROWS, Source
from suggest.space import Parameter

# in the columns of tuner, Optuna, MLflow and Ray Tune
_PREFIXES = ("parameters.", "params_", "params.", "config/")
_METRICS = "metrics."  # in the columns of tuner and MLflow
_VALUES = ("value", "values_0")
_WRITTEN = (  # how the headers of tuner and Optuna begin
    [*CSV_COLUMNS],
    ["number", "value", "datetime_start", "datetime_complete", "duration"],
)
_STATE = "state"  # in the columns of tuner and Optuna
MAX_LINE = 1_000_000  # characters


def read_csv(path: str, spec: ExperimentSpec, *, value: str, fill: Mapping[str, str]) -> Source:
    """Read the trials of a file. Raises InvalidArgument, NotFound.

    Args:
        value: The column of the value; "" means the objective's metric, or else `value`. In a file
            that `tuner export` or Optuna wrote, it means `value`, or else the objective's metric.
        fill: The text for parameters that have no column or an empty cell.
    """
    title = "standard input" if path == "-" else path
    try:
        # Without a translation of line ends, because a cell may have some.
        with open(
            0 if path == "-" else path,
            encoding="utf-8-sig",
            newline="",
            closefd=path != "-",
            opener=open_without_waiting,
        ) as file:
            return _read(file, title, spec, value, fill)
    except FileNotFoundError:
        raise NotFound(f"{path}: there is no such file") from None
    except IsADirectoryError:
        problems: Sequence[str] = ["is a directory; name a file in it"]
    except UnicodeDecodeError as error:
        problems = [f"is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"]
    except _Unusable as error:
        problems = error.args
    raise InvalidArgument([Problem("", f"{title}: {problem}") for problem in problems])


class _Unusable(Exception):
    """The file cannot be imported. The arguments are its problems."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """The meaning of the columns.

    value: of the first objective.
    further: those of the other objectives and of the constraints, by metric.
    ours: the file was written by tuner or Optuna.
    """

    parameters: Mapping[str, str]
    value: str
    further: Mapping[str, str]
    ours: bool

    def states(self, rows: Sequence[Mapping[str, str]]) -> StateColumns:
        """Return the columns that say how trials ended."""
        names = rows[0].keys() if rows else ()
        taken = {*self.parameters.values(), self.value, *self.further.values()}
        if self.ours:
            return StateColumns(
                [StateColumn(_STATE)] if _STATE in names and _STATE not in taken else []
            )
        # those of parameters and metrics that the experiment does not have
        own = (*_PREFIXES, _METRICS)
        return state_columns(
            [name for name in names if name not in taken and not name.startswith(own)], rows
        )


def _read(
    file: TextIO, title: str, spec: ExperimentSpec, value: str, fill: Mapping[str, str]
) -> Source:
    reader = csv.reader(_lines(file))
    rows: dict[str, Mapping[str, str]] = {}  # by place
    refused: list[Problem] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        if not any(header):
            raise _Unusable("is empty; expected a line with the names of the columns")
        if header[0].startswith(("{", "[")):
            raise _Unusable("is JSON; expected CSV, or a file that `export --format json` wrote")
        columns = _columns(header, spec, value, fill)
        for count, cells in enumerate(reader):
            place = f"line {reader.line_num}"
            if count == MAX_ROWS:
                raise _Unusable(f"has more than {MAX_ROWS:,} rows; import the most important part")
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                refused.append(
                    Problem(place, f"has {len(cells)} cells, and the header {len(header)}")
                )
                continue
            rows[place] = dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise _Unusable(f"line {reader.line_num} is not CSV ({error})") from None
    states = columns.states([*rows.values()])
    trials: list[tuple[str, FinishedTrial]] = []
    left_out: Counter[str] = Counter()
    occurrences: Counter[str] = Counter()
    for place, row in rows.items():
        digest = hashlib.sha256("\0".join(row.values()).encode()).hexdigest()[:32]
        try:
            end, column = states.end(row)
            if isinstance(end, NotTold):
                left_out[end.value] += 1
                continue
            occurrences[digest] += 1
            outcome = _outcome(row, columns, end, column)
            trials.append(
                (
                    place,
                    _trial(row, columns, spec, fill, outcome, f"{digest}-{occurrences[digest]}"),
                )
            )
        except ValueError as error:
            refused.append(Problem(place, str(error)))
    # The id depends only on the rows, because the same row in another file is the same result.
    return Source(
        title[-256:],
        "csv",
        trials,
        left_out=left_out,
        refused=refused,
        remark=_remark(states, columns, trials),
    )


def _lines(file: TextIO) -> Iterator[str]:
    """Yield the lines. Raises _Unusable for a line that may never end, as in /dev/zero."""
    while line := file.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise _Unusable(
                f"has a line of more than {MAX_LINE:,} characters; it is not a CSV file"
            )
        yield line


def _remark(
    states: StateColumns, columns: _Columns, trials: Sequence[tuple[str, FinishedTrial]]
) -> str:
    """Return a sentence about another program's columns of states; "" without such columns."""
    if columns.ours or not (states.used or states.unused):
        return ""
    ended = Counter(trial.outcome.state.value for _, trial in trials)
    counts = ", ".join(f"{n} {state}" for state, n in ended.items()) or "none finished"
    used = ", ".join(column.name for column in states.used)
    told = [f"how trials ended is taken from {used} ({counts})"] if used else []
    if states.unused:
        told.append(
            f"{', '.join(states.unused)} may also say it, but not in words such as failed, and is "
            f"not used"
        )
    return "; ".join(told)


def _columns(
    header: Sequence[str], spec: ExperimentSpec, value: str, fill: Mapping[str, str]
) -> _Columns:
    """Assign the columns of the header. Raises _Unusable."""
    has = f"it has {', '.join(header[:12])}"
    has += ", …" if len(header) > 12 else ""
    counts = Counter(header)
    problems = [f"has two columns {name!r}" for name, n in counts.items() if n > 1 and name]
    parameters: dict[str, str] = {}
    for parameter in spec.space.parameters:
        name = parameter.name
        column = _first([*(prefix + name for prefix in _PREFIXES), name], header)
        if column is not None:
            parameters[name] = column
        elif not parameter.when and name not in fill:
            hint = did_you_mean(name, header) or f"; {has}"
            problems.append(f"has no column for {name}{hint}; or add --fill {name}=VALUE")
    metric = spec.objective.metric
    named = header if header[0] else header[1:]  # without the index of a frame
    ours = any(named[: len(columns)] == columns for columns in _WRITTEN)
    # In our own files, a metric may have the name of another column, such as step.
    usual = [*_VALUES, metric] if ours else [metric, *_VALUES, _METRICS + metric]
    taken = parameters.values()
    candidates = [value] if value else [name for name in dict.fromkeys(usual) if name not in taken]
    found = _first(candidates, header)
    if found is None:
        column = f"column {value!r}"
        if not value:
            column = f"column {' or '.join(map(repr, candidates[:2]))} for the value"
        problems.append(f"has no {column}; {has}; select one with --value COLUMN")
    further: dict[str, str] = {}
    if found is not None and any(each.metric == metric for each in spec.constraints):
        further[metric] = found
    for index, other in enumerate(spec.criteria.metrics[1:], start=1):
        names = [_METRICS + other, other]
        if index < len(spec.criteria.objectives):
            names.append(f"values_{index}")
        column = _first([name for name in names if name not in taken], header)
        if column is not None:
            further[other] = column
        else:
            problems.append(f"has no column {other!r}, and a succeeded trial needs it; {has}")
    if problems or found is None:
        raise _Unusable(*problems)
    return _Columns(parameters, found, further, ours)


def _first(names: Sequence[str], present: Sequence[str]) -> str | None:
    return next((name for name in names if name in present), None)


def _outcome(row: Mapping[str, str], columns: _Columns, state: TrialState, column: str) -> Outcome:
    """Return the outcome of a trial whose column says this state. Raises ValueError."""
    reason = row.get("reason", "").strip()
    if state is TrialState.SUCCEEDED:
        return Outcome(state, _value(row, columns.value, state))
    if not reason and not columns.ours:
        reason = f"{column}: {row[column].strip()}"
    if state is TrialState.PRUNED:
        return Outcome(state, _value(row, columns.value, state), reason=reason)
    return Outcome(state, reason=reason, failure_class=row.get("failureClass", ""))


def _trial(
    row: Mapping[str, str],
    columns: _Columns,
    spec: ExperimentSpec,
    fill: Mapping[str, str],
    outcome: Outcome,
    source_id: str,
) -> FinishedTrial:
    """Return the trial of a row. Raises ValueError with the problem of the row."""
    parameters: dict[str, Value] = {}
    for parameter in spec.space.ordered:
        column = columns.parameters.get(parameter.name)
        text = row[column] if column else ""
        if not text.strip() and not (_is_choice(parameter, text) and parameter.active(parameters)):
            text = fill.get(parameter.name, "")
            if not text:
                continue
        parameters[parameter.name] = read_value(parameter, text)
    state = outcome.state
    if state not in (TrialState.SUCCEEDED, TrialState.PRUNED):
        return FinishedTrial(parameters, outcome, source_id=source_id)
    # As measurements, because `tuner export` takes the values of all metrics
    # but the first from there.
    values = ((metric, _value(row, column, state)) for metric, column in columns.further.items())
    measured = [Measurement(1, metric, 0, value) for metric, value in values if value is not None]
    return FinishedTrial(parameters, outcome, measured, source_id=source_id)


def _value(row: Mapping[str, str], column: str, state: TrialState) -> float | None:
    """Return the number of a cell; None for an empty one of a pruned trial. Raises ValueError."""
    text = row[column].strip()
    value = _number(text)
    if value is None and (text or state is TrialState.SUCCEEDED):
        problem = f"{text!r} is not a finite number" if text else "is empty"
        cure = "remove the row, or set its state to failed"
        raise ValueError(f"{column}: {problem}, so there is nothing to compare; {cure}")
    return value


def read_value(parameter: Parameter, text: str) -> Value:
    """Return the parameter's value for a text.

    Raises ValueError if the domain needs a number and this is not one.
    """
    value = (
        text
        if _is_choice(parameter, text)
        else next(_readings(parameter.domain, text.strip()), NO_MEMBER)
    )
    if value is NO_MEMBER:
        raise ValueError(
            f"{parameter.name}: {text!r} is not a "
            f"{'whole ' * isinstance(parameter.domain, Int)}number"
        )
    return value


def _is_choice(parameter: Parameter, text: str) -> bool:
    """Return whether the text, with the spaces around it, is a choice of the parameter."""
    return (
        isinstance(parameter.domain, Choice) and parameter.domain.canonical(text) is not NO_MEMBER
    )


def _readings(domain: Domain, text: str) -> Iterator[Value]:
    """Yield the possible values of a text, most likely first."""
    number = _number(text)
    match domain:
        case Float() | Int():
            if number is not None:
                yield _whole(text, number) if isinstance(domain, Int) else number
        case Choice():
            readings: list[Value] = [text]
            if text.lower() in ("true", "false"):
                readings.append(text.lower() == "true")
            if number is not None:
                readings.append(_whole(text, number))
            readings += _json(text)
            for reading in readings:
                member = domain.canonical(reading)
                if member is not NO_MEMBER:
                    yield member
            yield readings[-1]


def _json(text: str) -> list[Value]:
    """Parse what `tuner export` writes for null, a list or an object; [] for other text."""
    if text != "null" and not text.startswith(("[", "{")):
        return []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [] if json_problem(value) else [value]


def _whole(text: str, number: float) -> Value:
    try:
        return int(text)
    except ValueError:
        return int(number) if number.is_integer() else number


def _number(text: str) -> float | None:
    """Return the finite number that the text is; None for other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None
