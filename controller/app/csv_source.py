"""Read finished trials from a CSV file with a column for each parameter, objective and constraint.

This reads the output of `tuner export` and of Optuna's `trials_dataframe`, and files written by hand. The domain of a
parameter determines how a text is interpreted. Problems are reported by line.
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

from controller.core.model import ExperimentSpec
from controller.report.text_tables import CSV_COLUMNS
from suggest.client import FinishedTrial, Measurement, Outcome, TrialState
from suggest.domain import NO_MEMBER, Choice, Domain, Float, Int, Value, json_problem
from suggest.errors import InvalidArgument, NotFound, Problem, did_you_mean
from suggest.server.admin import MAX_ROWS, Source
from suggest.space import Parameter

_PREFIXES = ("parameters.", "params_")  # in the columns of tuner and Optuna
_METRICS = "metrics."  # in the columns of tuner
_VALUES = ("value", "values_0")
_WRITTEN = (  # how the headers of tuner and Optuna begin
    [*CSV_COLUMNS],
    ["number", "value", "datetime_start", "datetime_complete", "duration"],
)
_STATES = {
    "": TrialState.SUCCEEDED,
    "complete": TrialState.SUCCEEDED,
    "fail": TrialState.FAILED,
    **{state.value: state for state in TrialState if state.finished and state is not TrialState.CANCELLED},
}
_OPEN = {"running", "queued", "waiting", "cancelled"}


def read_csv(path: str, spec: ExperimentSpec, *, value: str, fill: Mapping[str, str]) -> Source:
    """Read the trials of a file. Raises InvalidArgument, NotFound.

    Args:
        value: The column of the value; "" means the objective's metric, or else `value`. In a file that `tuner export`
            or Optuna wrote, it means `value`, or else the objective's metric.
        fill: The text for parameters that have no column or an empty cell.
    """
    title = "standard input" if path == "-" else path
    try:
        # Without a translation of line ends, because a cell may have some.
        with open(0 if path == "-" else path, encoding="utf-8-sig", newline="", closefd=path != "-") as file:
            return _read(file, title, spec, value, fill)
    except FileNotFoundError:
        raise NotFound(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise _wrong(title, f"is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None


@dataclass(frozen=True, slots=True)
class _Columns:
    """The meaning of the columns. `state` is "" if there is no such column.

    value: of the first objective.
    further: those of the other objectives and of the constraints, by metric.
    """

    parameters: Mapping[str, str]
    value: str
    further: Mapping[str, str]
    state: str


def _read(file: TextIO, title: str, spec: ExperimentSpec, value: str, fill: Mapping[str, str]) -> Source:
    rows = csv.reader(file)
    trials: list[tuple[str, FinishedTrial]] = []
    refused: list[Problem] = []
    left_out: Counter[str] = Counter()
    occurrences: Counter[str] = Counter()
    try:
        header = [name.strip() for name in next(rows, [])]
        if not any(header):
            raise _wrong(title, "is empty; expected a line with the names of the columns")
        if header[0].startswith(("{", "[")):
            raise _wrong(title, "is JSON; expected CSV, as `export --format csv` writes it")
        columns = _columns(header, title, spec, value, fill)
        for cells in rows:
            place = f"line {rows.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if len(trials) + len(refused) >= MAX_ROWS:
                raise _wrong(title, f"has more than {MAX_ROWS:,} rows; import the most important part")
            if len(cells) != len(header):
                refused.append(Problem(place, f"has {len(cells)} cells, and the header {len(header)}"))
                continue
            row = dict(zip(header, cells, strict=True))
            if _word(row, columns) in _OPEN:
                left_out["not finished"] += 1
                continue
            digest = hashlib.sha256("\0".join(cells).encode()).hexdigest()[:32]
            occurrences[digest] += 1
            try:
                trials.append((place, _trial(row, columns, spec, fill, f"{digest}-{occurrences[digest]}")))
            except ValueError as error:
                refused.append(Problem(place, str(error)))
    except csv.Error as error:
        raise _wrong(title, f"line {rows.line_num} is not CSV ({error})") from None
    # The id depends only on the rows, because the same row in another file is the same result.
    return Source(title[-256:], "csv", trials, left_out=left_out, refused=refused)


def _columns(header: Sequence[str], title: str, spec: ExperimentSpec, value: str, fill: Mapping[str, str]) -> _Columns:
    """Assign the columns of the header. Raises InvalidArgument."""
    shown = ", ".join(header[:12]) + (", …" if len(header) > 12 else "")
    problems = [_problem(title, f"has two columns {name!r}") for name, n in Counter(header).items() if n > 1 and name]
    parameters: dict[str, str] = {}
    for parameter in spec.space.parameters:
        name = parameter.name
        matching = [column for column in (*(p + name for p in _PREFIXES), name) if column in header]
        if matching:
            parameters[name] = matching[0]
        elif not parameter.when and name not in fill:
            hint = did_you_mean(name, header) or f"; it has {shown}"
            problems.append(_problem(title, f"has no column for {name}{hint}; or add --fill {name}=VALUE"))
    candidates = [spec.objective.metric, *_VALUES]
    named = header if header[0] else header[1:]  # without the index of a frame
    if any(named[: len(columns)] == columns for columns in _WRITTEN):
        # Here, a metric may have the name of another column, such as step.
        candidates = [*_VALUES, spec.objective.metric]
    taken = parameters.values()
    candidates = [column for column in dict.fromkeys(candidates) if column not in taken]
    present = [column for column in candidates if column in header]
    if value:
        candidates, present = [value], [value] * (value in header)
    if not present:
        column = f"column {value!r}" if value else f"column {' or '.join(map(repr, candidates[:2]))} for the value"
        problems.append(_problem(title, f"has no {column}; it has {shown}; select one with --value COLUMN"))
    further: dict[str, str] = {}
    if present and any(constraint.metric == spec.objective.metric for constraint in spec.constraints):
        further[spec.objective.metric] = present[0]
    for place, metric in enumerate(spec.criteria.metrics[1:], start=1):
        names = [_METRICS + metric, metric, *([f"values_{place}"] if place < len(spec.criteria.objectives) else [])]
        matching = [column for column in names if column in header and column not in taken]
        if matching:
            further[metric] = matching[0]
        else:
            problems.append(
                _problem(title, f"has no column {metric!r}, and a succeeded trial needs it; it has {shown}")
            )
    if problems:
        raise InvalidArgument(problems)
    return _Columns(parameters, present[0], further, "state" if "state" not in taken else "")


def _trial(
    row: Mapping[str, str], columns: _Columns, spec: ExperimentSpec, fill: Mapping[str, str], source_id: str
) -> FinishedTrial:
    """Return the trial of a row. Raises ValueError with the problem of the row."""
    word = _word(row, columns)
    if word not in _STATES:
        raise ValueError(f"state: {word!r} is not one of {', '.join(filter(None, _STATES))}")
    parameters: dict[str, Value] = {}
    for parameter in spec.space.ordered:
        column = columns.parameters.get(parameter.name)
        text = row[column] if column else ""
        if not text.strip() and not (_is_choice(parameter, text) and parameter.active(parameters)):
            text = fill.get(parameter.name, "")
            if not text:
                continue
        parameters[parameter.name] = read_value(parameter, text)
    state, reason = _STATES[word], row.get("reason", "").strip()
    if state not in (TrialState.SUCCEEDED, TrialState.PRUNED):
        outcome = Outcome(state, reason=reason, failure_class=row.get("failureClass", ""))
        return FinishedTrial(parameters, outcome, source_id=source_id)
    outcome = Outcome(state, _value(row, columns.value, state), reason=reason if state is TrialState.PRUNED else "")
    # As measurements, because `tuner export` takes the values of all metrics but the first from there.
    values = ((metric, _value(row, column, state)) for metric, column in columns.further.items())
    measured = [Measurement(1, metric, 0, value) for metric, value in values if value is not None]
    return FinishedTrial(parameters, outcome, measured, source_id=source_id)


def _word(row: Mapping[str, str], columns: _Columns) -> str:
    return row.get(columns.state, "").strip().lower()


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
    """Return the parameter's value for a text. Raises ValueError if the domain needs a number and this is not one."""
    value = text if _is_choice(parameter, text) else next(_readings(parameter.domain, text.strip()), NO_MEMBER)
    if value is NO_MEMBER:
        raise ValueError(f"{parameter.name}: {text!r} is not a {'whole ' * isinstance(parameter.domain, Int)}number")
    return value


def _is_choice(parameter: Parameter, text: str) -> bool:
    """Return whether the text is one of the parameter's choices as it stands, with the spaces around it."""
    return isinstance(parameter.domain, Choice) and parameter.domain.canonical(text) is not NO_MEMBER


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
            yield from (member for reading in readings if (member := domain.canonical(reading)) is not NO_MEMBER)
            yield readings[-1]


def _json(text: str) -> list[Value]:
    """Return the value of a text that `tuner export` writes for null, a list or an object; [] for other text."""
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


def _problem(title: str, message: str) -> Problem:
    return Problem("", f"{title}: {message}")


def _wrong(title: str, message: str) -> InvalidArgument:
    return InvalidArgument([_problem(title, message)])
