"""`tuner report`: an experiment's trials, best first, and the effect of each parameter.

Pure: a record and the parameters' importances in, text or JSON out. The effects are computed in
`effects`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from controller.phrases import quantity
from controller.report import formatting, text_tables
from controller.report.documents import present
from controller.report.effects import Effect, ParameterLevel, effects, succeeded
from controller.report.record import ExperimentRecord, TrialList, TrialRecord
from suggest.domain import identity
from suggest.study import MIN_TRIALS_TO_RANK, Direction, Importance
from suggest.trial import Trial, TrialState

Json = dict[str, Any]

SHOWN = 20
_MAX_COLUMNS = 4
_MAX_CELLS = 64
_ORDER = (
    TrialState.SUCCEEDED,
    TrialState.PRUNED,
    TrialState.RUNNING,
    TrialState.PAUSED,
    TrialState.QUEUED,
    TrialState.INFEASIBLE,
    TrialState.FAILED,
    TrialState.CANCELLED,
)


_BETTER = {Direction.MAXIMIZE: "the higher the better", Direction.MINIMIZE: "the lower the better"}


def ranked(record: ExperimentRecord) -> ExperimentRecord:
    """Return the record with sorted trials: succeeded ones, best first; pruned ones, best first.

    All others by number.

    With several objectives, the Pareto front comes first. Trials that violate a constraint come
    after those that meet all of them.
    """
    spec = record.experiment.spec
    sign = spec.objective.direction.sign
    best = {trial.number for trial in record.front}

    def place(entry: TrialRecord) -> tuple[int, bool, float, float, int]:
        violation = (
            spec.criteria.violation(entry.trial) if entry.state is TrialState.SUCCEEDED else 0.0
        )
        value = (
            entry.trial.value if entry.state in (TrialState.SUCCEEDED, TrialState.PRUNED) else None
        )
        at = math.inf if value is None or not math.isfinite(value) else sign * value
        return (
            _ORDER.index(entry.state),
            entry.trial.number not in best,
            violation,
            at,
            entry.trial.number,
        )

    return replace(record, trials=sorted(record.trials, key=place))


def trials_that_ran(record: TrialList) -> list[Trial]:
    """Return the trials that ran, in this experiment or where they were imported from."""
    return [entry.trial for entry in record.trials if not entry.value_of]


def effects_of(record: ExperimentRecord, importances: Sequence[Importance] = ()) -> list[Effect]:
    """Return the effects, with the most important parameters first."""
    spec = record.experiment.spec
    by_parameter = effects(spec.space, trials_that_ran(record), direction=spec.objective.direction)
    places = {
        importance.name: place
        for place, importance in enumerate(importances)
        if importance.value is not None
    }
    return sorted(by_parameter, key=lambda effect: places.get(effect.name, len(places)))


def text(
    record: ExperimentRecord, importances: Sequence[Importance] = (), *, limit: int | None
) -> str:
    """Return the report as text.

    Args:
        record: A ranked record.
        importances: The importances of the parameters, largest first.
        limit: The number of rows of the first table; None means all.
    """
    by_parameter = effects_of(record, importances)
    parts = [
        _headline(record),
        _rows(record, limit),
        _grid(record, by_parameter),
        _importances(record, importances),
        _effects(record, by_parameter),
    ]
    return "\n".join(part for part in parts if part)


def _headline(record: ExperimentRecord) -> str:
    spec = record.experiment.spec
    states = [entry.state for entry in record.trials]
    counts = ", ".join(
        f"{states.count(state)} {state.value}" for state in _ORDER if state in states
    )
    goals = "; ".join(
        f"{objective.metric}, {_BETTER[objective.direction]}" for objective in spec.objectives
    )
    front = (
        f"\nThe first {quantity(len(record.front), 'trial')} are the Pareto front."
        if len(record.front) > 1
        else ""
    )
    return f"{record.experiment.name}: {counts or 'no trials yet'}; {goals}{front}\n"


def _rows(record: ExperimentRecord, limit: int | None) -> str:
    if not record.trials:
        return ""
    names = record.parameter_names
    metrics = text_tables.metric_names(record)[: text_tables.MOST_METRICS]
    listed = record.trials[:limit]
    rows = [
        [
            str(entry.trial.number),
            entry.state.value,
            formatting.number(entry.trial.value),
            _seconds(entry),
            *(
                formatting.parameter(entry.trial.parameters[name])
                if name in entry.trial.parameters
                else ""
                for name in names
            ),
            *(
                formatting.number(record.metrics.get(entry.trial.number, {}).get(name))
                for name in metrics
            ),
        ]
        for entry in listed
    ]
    headings = [
        "TRIAL",
        "STATE",
        "VALUE",
        "SECONDS",
        *names,
        *(f"metrics.{name}" for name in metrics),
    ]
    table = text_tables.aligned(headings, rows)
    omitted = len(record.trials) - len(listed)
    return table + (f"and {omitted} more: --all\n" if omitted else "")


def _seconds(entry: TrialRecord) -> str:
    spent = text_tables.seconds(entry)
    return "" if spent is None else f"{spent:.1f}"


# A whole grid, with the last parameter as columns


def _grid(record: ExperimentRecord, by_parameter: Sequence[Effect]) -> str:
    """Return the grid as a table.

    Return "" unless every combination of levels was tried and the table fits a screen.
    """
    space = record.experiment.spec.space
    levels = {effect.name: [level.low for level in effect.levels] for effect in by_parameter}
    names = [parameter.name for parameter in space.parameters if parameter.name in levels]
    if len(names) < 2 or any(level.is_bin for effect in by_parameter for level in effect.levels):
        return ""
    *down, across = names
    if len(levels[across]) > _MAX_COLUMNS or math.prod(map(len, levels.values())) > _MAX_CELLS:
        return ""
    cells: dict[tuple[object, ...], list[TrialRecord]] = {}
    for entry in record.trials:
        if entry.trial.finished and not entry.value_of:
            # As in the levels.
            point = space.canonical(entry.trial.parameters)
            if any(name not in point for name in names):
                return ""
            cells.setdefault(tuple(identity(point[name]) for name in names), []).append(entry)
    if len(cells) < math.prod(map(len, levels.values())):
        return ""
    rows = [
        [
            *map(formatting.parameter, point),
            *(_cell(cells[*map(identity, (*point, value)),]) for value in levels[across]),
        ]
        for point in itertools.product(*(levels[name] for name in down))
    ]
    heads = [f"{across}={formatting.parameter(value)}" for value in levels[across]]
    return text_tables.aligned([*down, *heads], rows)


def _cell(ones: Sequence[TrialRecord]) -> str:
    """Return the mean of the succeeded trials and their seconds.

    If there are none, the outcome of the first trial.
    """
    values = [value for entry in ones if (value := succeeded(entry.trial)) is not None]
    if not values:
        return ones[0].state.value
    spent = [
        seconds
        for entry in ones
        if succeeded(entry.trial) is not None
        and (seconds := text_tables.seconds(entry)) is not None
    ]
    took = f" ({sum(spent) / len(spent):.0f} s)" if spent else ""
    return formatting.number(sum(values) / len(values)) + took


# The effects of parameters


def _importances(record: ExperimentRecord, importances: Sequence[Importance]) -> str:
    metric = record.experiment.spec.objective.metric
    judged = sum(
        entry.state in (TrialState.SUCCEEDED, TrialState.PRUNED) for entry in record.trials
    )
    if not judged or len(importances) < 2:
        return ""
    if all(importance.value is None for importance in importances):
        if judged >= MIN_TRIALS_TO_RANK:
            return "The parameters cannot be ranked: the trials do not differ enough.\n"
        needed = f"{judged} succeeded or pruned, {MIN_TRIALS_TO_RANK} are needed"
        return f"Not enough trials to rank the parameters: {needed}.\n"
    rows = [
        [importance.name, _importance(importance), str(importance.trials)]
        for importance in importances
    ]
    return (
        f"How much each parameter matters for a good {metric}, as shares of 1 with their standard "
        "deviations:\n\n"
        + text_tables.aligned(["PARAMETER", "IMPORTANCE", "TRIALS"], rows)
        + "\nAn importance below twice its deviation may be due to chance (PED-ANOVA, on resampled "
        "trials).\n"
    )


def _importance(importance: Importance) -> str:
    if importance.value is None or importance.spread is None:
        return "not enough trials" if importance.trials < MIN_TRIALS_TO_RANK else "one value only"
    return f"{importance.value:.2f} ± {importance.spread:.2f}"


def _effects(record: ExperimentRecord, by_parameter: Sequence[Effect]) -> str:
    if not any(level.trials for effect in by_parameter for level in effect.levels):
        return ""
    metric = record.experiment.spec.objective.metric
    some_left_out = any(level.left_out for effect in by_parameter for level in effect.levels)
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
    notes = [f"What each parameter does to {metric}:\n\n"]
    notes.append(text_tables.aligned(header, rows))
    if some_steps:
        notes.append(
            "\nSTEP: from the parameter's first level to this one, the mean difference over PAIRS "
            "of points that are\n"
            "equal otherwise, and the RANGE of these differences.\n"
        )
    correlations = [
        (e.name, e.rank_correlation) for e in by_parameter if e.rank_correlation is not None
    ]
    if correlations:
        listed = ", ".join(f"{name} {value:+.2f}" for name, value in correlations)
        notes.append(f"\nSpearman's rank correlation with {metric}: {listed}\n")
    if some_left_out:
        notes.append(
            "\nLEFT OUT: trials that did not succeed have no value to compare. If many were "
            "pruned, the level looks\n"
            "better than it is.\n"
        )
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
            return [
                _signed(step.mean),
                str(step.pairs),
                f"{_signed(step.lowest)} to {_signed(step.highest)}",
            ]
    return ["", "", ""]


def _signed(value: float) -> str:
    return f"{value:+.4g}"


# JSON for programs


def document(record: ExperimentRecord, importances: Sequence[Importance] = ()) -> Json:
    """Return the report as JSON, whose keys docs/cli.md describes.

    Args:
        record: A ranked record.
        importances: The importances of the parameters, largest first.
    """
    objective = record.experiment.spec.objective
    return {
        "name": record.experiment.name,
        "namespace": record.experiment.namespace,
        "metric": objective.metric,
        "direction": objective.direction.value,
        "trials": [_trial(record, entry) for entry in record.trials],
        "importances": [
            present(
                parameter=importance.name,
                trials=importance.trials,
                value=importance.value,
                spread=importance.spread,
            )
            for importance in importances
        ],
        "effects": [_effect(effect) for effect in effects_of(record, importances)],
    }


def _trial(record: ExperimentRecord, entry: TrialRecord) -> Json:
    value, metrics = entry.trial.value, record.metrics.get(entry.trial.number)
    return present(
        number=entry.trial.number,
        state=entry.state.value,
        value=value if value is not None and math.isfinite(value) else None,
        seconds=text_tables.seconds(entry),
        parameters=dict(entry.trial.parameters),
        metrics={name: formatting.json_number(number) for name, number in metrics.items()}
        if metrics
        else None,
    )


def _effect(effect: Effect) -> Json:
    return present(
        parameter=effect.name,
        spread=effect.spread,
        rankCorrelation=effect.rank_correlation,
        levels=[_level(level) for level in effect.levels],
        steps=[
            {
                "from": effect.levels[0].low,
                "to": step.level,
                "pairs": step.pairs,
                "mean": step.mean,
                "min": step.lowest,
                "max": step.highest,
            }
            for step in effect.steps
        ],
    )


def _level(level: ParameterLevel) -> Json:
    return {
        **({"min": level.low, "max": level.high} if level.is_bin else {"value": level.low}),
        "trials": level.trials,
        **present(mean=level.mean, median=level.median, best=level.best),
        "leftOut": {state.value: count for state, count in level.left_out.items()},
    }
