"""`tuner report`: an experiment's trials, best first, and the effect of each parameter.

Pure: a record in, text or JSON out.
The effects are computed in `effects`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from controller.phrases import quantity
from controller.report import documents, formatting, spending, text_tables
from controller.report.documents import present
from controller.report.effects import Effect, ParameterLevel, Step, effects, succeeded
from controller.report.record import ExperimentRecord, TrialList, TrialRecord
from suggest.domain import Value, identity
from suggest.study import MIN_TRIALS_TO_RANK, Direction, Importance
from suggest.trial import Trial, TrialState

Json = dict[str, Any]

SHOWN = 20
_MAX_COLUMNS = 4
_MAX_CELLS = 64
# With values that can be compared.
JUDGED = (TrialState.SUCCEEDED, TrialState.PRUNED)
_ORDER = (
    *JUDGED,
    TrialState.RUNNING,
    TrialState.PAUSED,
    TrialState.QUEUED,
    TrialState.INFEASIBLE,
    TrialState.FAILED,
    TrialState.CANCELLED,
)
_BETTER = {Direction.MAXIMIZE: "the higher the better", Direction.MINIMIZE: "the lower the better"}
_STEP_NOTE = """
STEP: from the parameter's first level to this one, the mean difference over PAIRS of points that
are equal otherwise, and the RANGE of these differences.
"""
_LEFT_OUT_NOTE = """
LEFT OUT: trials that did not succeed have no value to compare. If many were pruned, the level looks
better than it is.
"""


def ranked(record: ExperimentRecord) -> ExperimentRecord:
    """Return the record with its succeeded and pruned trials best first, then the others by number.

    With several objectives, the Pareto front comes first. Trials that violate a constraint come
    after those that meet all of them.
    """
    spec = record.experiment.spec
    sign = spec.objective.direction.sign
    best = {trial.number for trial in record.front}

    def order(entry: TrialRecord) -> tuple[int, bool, float, float, int]:
        trial, state = entry.trial, entry.state
        violation, loss = 0.0, math.inf
        if state is TrialState.SUCCEEDED:
            violation = spec.criteria.violation(trial)
        if state in JUDGED and trial.value is not None and math.isfinite(trial.value):
            loss = sign * trial.value
        return _ORDER.index(state), trial.number not in best, violation, loss, trial.number

    return replace(record, trials=sorted(record.trials, key=order))


def trials_that_ran(record: TrialList) -> list[Trial]:
    """Return the trials that ran, in this experiment or where they were imported from."""
    return [entry.trial for entry in record.trials if not entry.value_of]


def effects_of(record: ExperimentRecord) -> list[Effect]:
    """Return the effects, with the most important parameters first."""
    spec = record.experiment.spec
    by_parameter = effects(spec.space, trials_that_ran(record), direction=spec.objective.direction)
    known = [importance.name for importance in record.importances if importance.value is not None]
    ranks = {name: rank for rank, name in enumerate(known)}
    return sorted(by_parameter, key=lambda effect: ranks.get(effect.name, len(ranks)))


def text(record: ExperimentRecord, *, limit: int | None, crop: Callable[[str], str] = str) -> str:
    """Return the report as text.

    Args:
        record: A ranked record.
        limit: The number of rows of the first table; None means all.
        crop: Fits a table into the reader's terminal, in which wrapped rows could not be read.
    """
    by_parameter = effects_of(record)
    parts = [
        _headline(record),
        crop(_rows(record, limit)),
        crop(_grid(record, by_parameter)),
        _importances(record),
        _effects(record, by_parameter, crop),
    ]
    return "\n".join(part for part in parts if part)


def _headline(record: ExperimentRecord) -> str:
    objectives = record.experiment.spec.objectives
    states = [entry.state for entry in record.trials]
    counts = [f"{states.count(state)} {state.value}" for state in _ORDER if state in states]
    goals = [f"{objective.metric}, {_BETTER[objective.direction]}" for objective in objectives]
    front = len(record.front)
    summary = ", ".join(counts) or "no trials yet"
    first = f"{record.experiment.name}: {summary}; {'; '.join(goals)}\n"
    if used := spending.used(record.experiment):
        first += f"Used: {', '.join(used)}\n"
    if front > 1:
        return f"{first}The first {quantity(front, 'trial')} are the Pareto front.\n"
    return first


def _rows(record: ExperimentRecord, limit: int | None) -> str:
    if not record.trials:
        return ""
    headings, rows = text_tables.report_table(
        record, most_rows=limit, most_metrics=text_tables.MOST_METRICS
    )
    table = text_tables.aligned(headings, rows)
    omitted = len(record.trials) - len(rows)
    return table + (f"and {omitted} more: --all\n" if omitted else "")


# A whole grid, with the last parameter as columns


def _grid(record: ExperimentRecord, by_parameter: Sequence[Effect]) -> str:
    """Return the grid as a table; "" unless each combination was tried and it fits a screen."""
    space = record.experiment.spec.space
    if any(effect.has_bins for effect in by_parameter):
        return ""
    levels = {effect.name: [level.low for level in effect.levels] for effect in by_parameter}
    size = math.prod(map(len, levels.values()))
    names = [parameter.name for parameter in space.parameters if parameter.name in levels]
    if len(names) < 2 or len(levels[names[-1]]) > _MAX_COLUMNS or size > _MAX_CELLS:
        return ""
    cells: dict[tuple[object, ...], list[TrialRecord]] = {}
    for entry in record.trials:
        if entry.trial.finished and not entry.value_of:
            # As in the levels.
            point = space.canonical(entry.trial.parameters)
            if any(name not in point for name in names):
                return ""
            cells.setdefault(tuple(identity(point[name]) for name in names), []).append(entry)
    if len(cells) < size:
        return ""
    *down, across = names
    rows = []
    for point_down in itertools.product(*(levels[name] for name in down)):
        points = [(*point_down, value) for value in levels[across]]
        row = [_cell(cells[tuple(map(identity, point))]) for point in points]
        rows.append([*map(formatting.parameter, point_down), *row])
    heads = [f"{across}={formatting.parameter(value)}" for value in levels[across]]
    return text_tables.aligned([*down, *heads], rows)


def _cell(entries: Sequence[TrialRecord]) -> str:
    """Return the mean of the succeeded trials and their seconds.

    If there are none, the outcome of the first trial.
    """
    values, times = [], []
    for entry in entries:
        value, seconds = succeeded(entry.trial), text_tables.seconds(entry)
        if value is not None:
            values.append(value)
            times += [] if seconds is None else [seconds]
    if not values:
        return entries[0].state.value
    mean = formatting.number(sum(values) / len(values))
    return f"{mean} ({sum(times) / len(times):.0f} s)" if times else mean


# The effects of parameters


def _importances(record: ExperimentRecord) -> str:
    importances = record.importances
    metric = record.experiment.spec.objective.metric
    judged = sum(entry.state in JUDGED for entry in record.trials)
    if not judged or len(importances) < 2:
        return ""
    if all(importance.value is None for importance in importances):
        if judged >= MIN_TRIALS_TO_RANK:
            return "The parameters cannot be ranked: the trials do not differ enough.\n"
        needed = f"{judged} succeeded or pruned, {MIN_TRIALS_TO_RANK} are needed"
        return f"Not enough trials to rank the parameters: {needed}.\n"
    rows = [[each.name, _importance(each), str(each.trials)] for each in importances]
    table = text_tables.aligned(["PARAMETER", "IMPORTANCE", "TRIALS"], rows)
    return (
        f"How much each parameter matters for a good {metric}, as shares of 1 with their standard "
        f"deviations:\n\n{table}\n"
        "An importance below twice its deviation may be due to chance (PED-ANOVA, on resampled "
        "trials).\n"
    )


def _importance(importance: Importance) -> str:
    if importance.value is None or importance.spread is None:
        return "not enough trials" if importance.trials < MIN_TRIALS_TO_RANK else "one value only"
    return f"{importance.value:.2f} ± {importance.spread:.2f}"


def _effects(
    record: ExperimentRecord, by_parameter: Sequence[Effect], crop: Callable[[str], str]
) -> str:
    levels = list(itertools.chain.from_iterable(effect.levels for effect in by_parameter))
    if not any(level.trials for level in levels):
        return ""
    metric = record.experiment.spec.objective.metric
    some_left_out = any(level.left_out for level in levels)
    some_steps = any(effect.steps for effect in by_parameter)
    header = ["PARAMETER", "LEVEL", "TRIALS", "MEAN", "MEDIAN", "BEST"]
    header += ["STEP", "PAIRS", "RANGE"] if some_steps else []
    header += ["LEFT OUT"] if some_left_out else []
    rows = []
    for effect in by_parameter:
        for at, level in enumerate(effect.levels):
            row = [effect.name if at == 0 else "", *_level_cells(level)]
            if some_steps:
                row += _step_cells(effect, level)
            if some_left_out:
                row.append(", ".join(f"{n} {state.value}" for state, n in level.left_out.items()))
            rows.append(row)
    table = crop(text_tables.aligned(header, rows))
    notes = [f"What each parameter does to {metric}:\n\n", table]
    if some_steps:
        notes.append(_STEP_NOTE)
    correlations = [
        f"{effect.name} {effect.rank_correlation:+.2f}"
        for effect in by_parameter
        if effect.rank_correlation is not None
    ]
    if correlations:
        listed = ", ".join(correlations)
        notes.append(f"\nSpearman's rank correlation with {metric}: {listed}\n")
    if some_left_out:
        notes.append(_LEFT_OUT_NOTE)
    return "".join(notes)


def _level_cells(level: ParameterLevel) -> list[str]:
    low, high = formatting.parameter(level.low), formatting.parameter(level.high)
    return [
        f"{low} to {high}" if level.is_bin else low,
        str(level.trials),
        formatting.number(level.mean),
        formatting.number(level.median),
        formatting.number(level.best),
    ]


def _step_cells(effect: Effect, level: ParameterLevel) -> list[str]:
    for step in effect.steps:
        if identity(step.level) == identity(level.low):
            spread = f"{_signed(step.lowest)} to {_signed(step.highest)}"
            return [_signed(step.mean), str(step.pairs), spread]
    return ["", "", ""]


def _signed(value: float) -> str:
    return f"{value:+.4g}"


# JSON for programs

_OF_TRIAL = ("number", "state", "value", "seconds", "parameters", "metrics")


def document(record: ExperimentRecord) -> Json:
    """Return the report of a ranked record as JSON, whose keys docs/cli.md describes."""
    objective = record.experiment.spec.objective
    return {
        "name": record.experiment.name,
        "namespace": record.experiment.namespace,
        "metric": objective.metric,
        "direction": objective.direction.value,
        "trials": [_trial(record, entry) for entry in record.trials],
        "importances": [
            present(parameter=each.name, trials=each.trials, value=each.value, spread=each.spread)
            for each in record.importances
        ],
        "effects": [_effect(effect) for effect in effects_of(record)],
    }


def _trial(record: ExperimentRecord, entry: TrialRecord) -> Json:
    whole = documents.trial(record, entry) | present(seconds=text_tables.seconds(entry))
    return {key: whole[key] for key in _OF_TRIAL if key in whole}


def _effect(effect: Effect) -> Json:
    first = effect.levels[0].low
    return present(
        parameter=effect.name,
        spread=effect.spread,
        rankCorrelation=effect.rank_correlation,
        levels=[_level(level) for level in effect.levels],
        steps=[_step(first, step) for step in effect.steps],
    )


def _step(first: Value, step: Step) -> Json:
    return {
        "from": first,
        "to": step.level,
        "pairs": step.pairs,
        "mean": step.mean,
        "min": step.lowest,
        "max": step.highest,
    }


def _level(level: ParameterLevel) -> Json:
    values = {"min": level.low, "max": level.high} if level.is_bin else {"value": level.low}
    return {
        **values,
        "trials": level.trials,
        **present(mean=level.mean, median=level.median, best=level.best),
        "leftOut": {state.value: count for state, count in level.left_out.items()},
    }
