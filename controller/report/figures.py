"""The figures of a report, as Vega-Lite specifications: records in, plain JSON out.

Pure and deterministic.

A figure is an object of Vega-Lite 5 that contains its data, so that it can be drawn anywhere: in a
page, in a notebook, or as SVG and PNG (`controller.report.drawing`). `FIGURES` lists all of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from controller.core.model import Attempt, AttemptState
from controller.report import colors, formatting
from controller.report.record import TrialList, TrialRecord
from suggest.space import Choice, Domain, Parameter, Scale, Value
from suggest.study import MIN_TRIALS_TO_RANK, Direction
from suggest.trial import Measurement, TrialState

Json = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
WIDTH, HEIGHT = 820, 280
# In a figure: the best, and every n-th of the others.
MOST_TRIALS = 2000
MOST_CURVES = 150
MOST_POINTS = 40  # in a curve
MOST_BARS = 400  # attempts in the timeline
# Choices along an axis, or parameters below it, that have room.
MOST_LABELS = 8
_LEGEND = {"orient": "top"}
# Without its ends, which are too light for a white page or too dark for a dark one.
_ON_FRONT = "Pareto front"
_SCHEME = {"name": "plasma", "extent": [0.2, 0.8]}
_GRADIENT = {"type": "gradient", "orient": "right"}
# An axis is logarithmic if its positive values span at least this many.
DECADES = 3.0


def history(record: TrialList) -> Json:
    """The value of each trial in the order of their numbers, and the best so far."""
    objective = record.criteria.objectives[0]
    sign, metric = objective.direction.sign, objective.metric
    rows: list[Json] = []
    best: float | None = None
    valued = sorted(_valued(record), key=lambda entry: entry.trial.number)
    drawn = {entry.trial.number for entry in _some(record, valued, MOST_TRIALS)}
    for entry in valued:
        value = _value(entry)
        keeps = entry.state is TrialState.SUCCEEDED and record.criteria.violation(entry.trial) == 0
        if keeps and (best is None or sign * value < sign * best):
            best = value
        elif entry.trial.number not in drawn:
            # A trial that was the best is always shown, because the line needs it.
            continue
        rows.append(
            {
                "trial": entry.trial.number,
                "value": value,
                "state": entry.state.value,
                "best": best,
                "parameters": formatting.parameters(entry.trial.parameters),
            }
        )
    scale = _scale([row["value"] for row in rows])
    x = _quantity("trial", title="trial", axis={"tickMinStep": 1})
    points = _layer(
        _mark("point", filled=True, size=36, opacity=0.75),
        x=x,
        y=_quantity("value", title=metric, scale=scale),
        color=_state_color(rows),
        tooltip=_tips("trial", ("value", metric), "state", "parameters"),
    )
    line = _layer(
        _mark("line", interpolate="step-after", strokeWidth=2, color=colors.BEST_SO_FAR),
        x=x,
        y=_quantity("best", title=metric, scale=scale),
    ) | {"transform": [{"filter": "datum.best != null"}]}
    title = f"{metric} by trial; the line is the best so far"
    return _figure(title, rows, {"layer": [points, line]}, note=_of(rows, valued))


def curves(record: TrialList, metric: str = "", *, color_trials: bool = False) -> Json:
    """A metric of each trial by step, as its newest attempt reported it.

    Without `metric` the first objective.

    color_trials: Trials have colors, in place of states: for a few that are compared.
    """
    metric = metric or record.criteria.objectives[0].metric
    measured = _began(record)
    drawn = _some(record, measured, MOST_CURVES)
    rows: list[Json] = []
    for entry in drawn:
        curve = _curve(record.measurements.get(entry.trial.number, ()), metric)
        about = {"trial": entry.trial.number, "state": entry.state.value}
        rows += [{**about, "step": step, "value": value} for step, value in curve]
    if len({row["step"] for row in rows}) < 2:
        # A single report per trial does not make a curve.
        rows = []
    line: Json = {"strokeWidth": 2}
    if len(drawn) > 1 and not color_trials:
        line = {"opacity": 0.55, "strokeWidth": 1.2}
    figure = _figure(
        f"{metric} by step",
        rows,
        _layer(
            _mark("line", **line, point={"size": 12, "filled": True}),
            x=_quantity("step", axis={"tickMinStep": 1}),
            y=_quantity("value", title=metric, scale=_scale([row["value"] for row in rows])),
            detail=_word("trial"),
            color=_word("trial", legend=_LEGEND) if color_trials else _state_color(rows),
            tooltip=_tips("trial", "step", ("value", metric), "state"),
        ),
        note=_of(drawn, measured),
    )
    figure["usermeta"]["metrics"] = _metrics_of_curves(record)
    return figure


def _curve(measurements: Sequence[Measurement], metric: str) -> list[tuple[int, float]]:
    """Return at most about MOST_POINTS steps of the newest attempt, with their finite values.

    The last step is among them.
    """
    newest = max((m.attempt for m in measurements), default=0)
    measured = [m for m in measurements if m.metric == metric and m.attempt == newest]
    curve = sorted((m.step, m.value) for m in measured if math.isfinite(m.value))
    stride = max(1, math.ceil(len(curve) / MOST_POINTS))
    points = curve[::stride]
    if (len(curve) - 1) % stride:
        points.append(curve[-1])
    return points


def _metrics_of_curves(record: TrialList) -> list[str]:
    """Return the metrics that have curves, the objectives first."""
    first_steps: dict[str, int] = {}
    several: set[str] = set()
    for measurement in chain.from_iterable(record.measurements.values()):
        if first_steps.setdefault(measurement.metric, measurement.step) != measurement.step:
            several.add(measurement.metric)
    metrics = [objective.metric for objective in record.criteria.objectives]
    objectives = [metric for metric in metrics if metric in several]
    return objectives + sorted(several.difference(objectives))


def trials_of_curves(record: TrialList) -> list[int]:
    """Return the trials whose measurements `curves` needs."""
    return [entry.trial.number for entry in _some(record, _began(record), MOST_CURVES)]


def parallel(record: TrialList) -> Json:
    """Parallel coordinates of the succeeded trials.

    Drag over the strip of values to choose some.
    """
    metric = record.criteria.objectives[0].metric
    succeeded = _valued(record, TrialState.SUCCEEDED)
    drawn = _some(record, succeeded, MOST_CURVES * 2)
    parameters = record.space.parameters
    rows: list[Json] = []
    for entry in drawn:
        rows += _coordinates_of(entry, parameters)
    values = _scale([_value(entry) for entry in drawn])
    color = _value_color(record, values)
    plot: Json = {
        "width": WIDTH,
        "height": HEIGHT,
        "layer": _coordinates(parameters, metric, color),
    }
    strip: Json = {
        "width": WIDTH,
        "height": 40,
        "params": [{"name": "chosen", "select": {"type": "interval", "encodings": ["x"]}}],
        **_layer(
            _mark("tick", thickness=1.5),
            x=_quantity("value", title=f"{metric}: drag to choose", scale=values),
            color=color,
        ),
    }
    body: Json = {"vconcat": [plot, strip], "resolve": {"legend": {"color": "independent"}}}
    return _figure("Parameters of succeeded trials", rows, body, note=_of(drawn, succeeded))


def _coordinates_of(entry: TrialRecord, parameters: Sequence[Parameter]) -> list[Json]:
    """Return the data of a trial's line: one row for each active parameter."""
    about: Json = {"trial": entry.trial.number, "value": _value(entry)}
    given = entry.trial.parameters
    active = [parameter for parameter in parameters if parameter.name in given]
    return [about | _coordinate(parameter, given[parameter.name]) for parameter in active]


def _coordinate(parameter: Parameter, value: Value) -> Json:
    """Return where a value of a parameter is on its axis."""
    return {
        "parameter": parameter.name,
        "place": _place(parameter.domain, value),
        "is": formatting.parameter(value),
    }


def _coordinates(parameters: Sequence[Parameter], metric: str, color: Json) -> list[Json]:
    """Return the layers of parallel coordinates: the lines, and the labels along each axis."""
    names = [parameter.name for parameter in parameters]
    # Names that have no room beside each other are shortened.
    room = {"expr": f"width / {len(names)} - 6"}
    axis: Json = {"labelAngle": 0, "labelLimit": room, "grid": True}
    if len(names) > MOST_LABELS:
        axis |= {"labelAngle": -30, "labelLimit": 180}
    axes: Json = {
        "x": {
            "field": "parameter",
            "type": "ordinal",
            "sort": names,
            "title": None,
            "axis": axis,
            # A label stands to the right of its axis.
            "scale": {"padding": 0.3},
        },
        "y": _quantity("place", axis=None, scale={"domain": [0, 1]}),
    }
    lines = _layer(
        _mark("line", strokeWidth=1.2, opacity=0.6),
        **axes,
        detail=_word("trial"),
        # The strip shows it.
        color={**color, "legend": None},
        tooltip=_tips("trial", ("value", metric), "parameter", "is"),
    )
    written: Json = {"align": "left", "dx": 5, "fontSize": 10}
    # Lines run through the labels; the white below keeps them readable.
    labels = {
        "layer": [
            _layer(
                _mark("text", **written, stroke="white", strokeWidth=4), text=_word("is"), **axes
            ),
            _layer(_mark("text", **written, color="#3d4654"), text=_word("is"), **axes),
        ],
        "data": {"values": list(chain.from_iterable(map(_places, parameters)))},
    }
    return [lines | {"transform": [{"filter": {"param": "chosen", "empty": True}}]}, labels]


def slice_(record: TrialList) -> Json:
    """The value over each parameter, one small chart for each."""
    metric = record.criteria.objectives[0].metric
    valued = _valued(record)
    drawn = _some(record, valued, MOST_TRIALS)
    parameters = record.space.parameters
    rows = [_row(entry, [parameter.name for parameter in parameters]) for entry in drawn]
    y = _quantity("value", title=metric, scale=_scale([row["value"] for row in rows]))
    charts: list[Json] = [
        {
            "width": 240,
            "height": 170,
            "transform": [{"filter": f"isValid(datum.p{index})"}],
            **_layer(
                _mark("point", filled=True, size=22, opacity=0.6),
                x=_axis(parameter.domain, f"p{index}", parameter.name),
                y=y,
                color=_state_color(rows),
                tooltip=_tips("trial", ("value", metric), "state"),
            ),
        }
        for index, parameter in enumerate(parameters)
    ]
    body = {"concat": charts, "columns": 3}
    return _figure(f"{metric} over each parameter", rows, body, note=_of(drawn, valued))


def contour(record: TrialList) -> Json:
    """Two parameters against each other, chosen from lists where the figure is drawn in a page.

    It shows the mean value of the trials in each cell, and the trials.
    """
    metric = record.criteria.objectives[0].metric
    succeeded = _valued(record, TrialState.SUCCEEDED)
    drawn = _some(record, succeeded, MOST_TRIALS)
    parameters = record.space.parameters
    rows = [_contour_row(entry, parameters) for entry in drawn]
    color = _value_color(record, _scale([row["value"] for row in rows]))
    names = [parameter.name for parameter in parameters]
    body = {
        "params": [
            _chosen_parameter("x", 0, names),
            _chosen_parameter("y", min(1, len(names) - 1), names),
        ],
        "transform": [
            {"calculate": "datum.places[xParameter]", "as": "x"},
            {"calculate": "datum.places[yParameter]", "as": "y"},
            {"filter": "isValid(datum.x) && isValid(datum.y)"},
        ],
        "layer": [*_contour_layers(metric, parameters, color), *_contour_names(names)],
    }
    title = f"Mean {metric} over two parameters"
    return _figure(title, rows, body, note=_of(drawn, succeeded))


def _contour_row(entry: TrialRecord, parameters: Sequence[Parameter]) -> Json:
    given = entry.trial.parameters
    return {
        "trial": entry.trial.number,
        "value": _value(entry),
        "parameters": formatting.parameters(given),
        "places": [
            _place(each.domain, given[each.name]) if each.name in given else None
            for each in parameters
        ],
    }


def _chosen_parameter(axis: str, index: int, names: Sequence[str]) -> Json:
    """Return the selection list of an axis, in which the parameter at `index` is chosen."""
    options = list(range(len(names)))
    bind = {"input": "select", "options": options, "labels": names, "name": f"{axis}: "}
    return {"name": f"{axis}Parameter", "value": index, "bind": bind}


def _contour_layers(metric: str, parameters: Sequence[Parameter], color: Json) -> list[Json]:
    """Return the cells with the mean values, and the trials above them."""
    axes: Json = {}
    for axis in "xy":
        ticks = {"labelExpr": _value_at_tick([p.domain for p in parameters], f"{axis}Parameter")}
        # The space of a title: `_contour_names` writes it.
        axes[axis] = _quantity(axis, title=" ", scale={"domain": [0, 1]}, axis=ticks)
    cells = _layer(
        _mark("rect", opacity=0.55),
        x={**axes["x"], "bin": {"maxbins": 12, "extent": [0, 1]}},
        y={**axes["y"], "bin": {"maxbins": 12, "extent": [0, 1]}},
        color={"aggregate": "mean", **color},
    )
    points = _layer(
        _mark("point", filled=True, size=30, stroke="white", strokeWidth=0.4),
        **axes,
        color=color,
        tooltip=_tips("trial", ("value", metric), "parameters"),
    )
    return [cells, points]


def _contour_names(names: Sequence[str]) -> list[Json]:
    """Return the names of the parameters as marks, because a title of an axis cannot change."""
    places: tuple[Json, Json] = (
        {"x": {"expr": "width / 2"}, "y": {"expr": "height + 32"}, "align": "center"},
        {"x": 0, "y": -8, "align": "left"},
    )
    style: Json = {"fontSize": 11, "fontWeight": 500, "color": "#7a8496", "clip": False}
    layers: list[Json] = []
    for place, chosen in zip(places, ("xParameter", "yParameter"), strict=True):
        text = {"expr": f"{json.dumps(names)}[{chosen}]"}
        mark = _mark("text", **style, **place, text=text)
        layers.append({"data": {"values": [{}]}, "mark": mark})
    return layers


def importance(record: TrialList) -> Json:
    """How much each parameter matters for a good value, with the standard deviation of that."""
    metric = record.criteria.objectives[0].metric
    rows = [
        {
            "parameter": importance.name,
            "importance": importance.value,
            "low": max(0.0, importance.value - (importance.spread or 0.0)),
            "high": min(1.0, importance.value + (importance.spread or 0.0)),
            "trials": importance.trials,
        }
        for importance in record.importances
        if importance.value is not None
    ]
    y = _word("parameter", sort=[row["parameter"] for row in rows], title=None)
    bars = _layer(
        _mark("bar", color=colors.BAR.light),
        x=_quantity("importance", title="share of 1"),
        y=y,
        tooltip=_tips("parameter", "importance", "trials"),
    )
    errors = _layer(
        _mark("rule", color=colors.SPREAD.light, strokeWidth=2),
        x=_quantity("low"),
        x2={"field": "high"},
        y=y,
    )
    states = [entry.state for entry in record.trials]
    judged = (TrialState.SUCCEEDED, TrialState.PRUNED)
    counts = [f"{states.count(state):,} {state.value}" for state in judged]
    note = (
        f"from {' and '.join(counts)} trials; a bar shorter than twice its line to one side may be "
        "due to chance"
    )
    title = f"How much each parameter matters for a good {metric}"
    return {**_figure(title, rows, {"layer": [bars, errors]}, note=note), "height": {"step": 24}}


def timeline(record: TrialList) -> Json:
    """Each attempt from its creation to its start, and from there to its end.

    One that still runs ends with the newest time that is known.
    """
    attempts: list[tuple[TrialRecord, Attempt]] = []
    times: list[datetime | None] = []
    for entry in record.trials:
        for attempt in entry.attempts:
            if attempt.start_time is not None:
                attempts.append((entry, attempt))
                times += [attempt.start_time, attempt.end_time]
    newest = max(filter(None, times), default=None)
    begun = (event for event in record.events if event.kind == AttemptState.CREATED.value)
    created = {(event.trial, event.attempt): event.time for event in begun}
    stride = max(1, math.ceil(len(attempts) / MOST_BARS))
    rows: list[Json] = []
    for entry, attempt in attempts[::stride]:
        bar = {
            "trial": entry.trial.number,
            "attempt": attempt.number,
            "node": attempt.node or "this machine",
            "reason": attempt.reason[:80],
        }
        if queued := created.get((attempt.trial, attempt.number)):
            start, end = formatting.timestamp(queued), formatting.timestamp(attempt.start_time)
            rows.append({**bar, "start": start, "end": end, "state": TrialState.QUEUED.value})
        start = formatting.timestamp(attempt.start_time)
        end = formatting.timestamp(attempt.end_time or newest)
        rows.append({**bar, "start": start, "end": end, "state": attempt.state.value})
    x_axis = {"format": _time_format(attempts)}
    y_axis = {"labelOverlap": True}
    body = _layer(
        _mark("bar", height={"band": 0.8}),
        x={"field": "start", "type": "temporal", "title": None, "axis": x_axis},
        x2={"field": "end"},
        y={"field": "trial", "type": "ordinal", "title": "trial", "axis": y_axis},
        color=_state_color(rows),
        tooltip=_tips("trial", "attempt", "state", "node", "start", "end", "reason"),
    )
    note = f"one of {stride} attempts, {len(attempts)} in all" if stride > 1 else ""
    figure = _figure("Attempts over time", rows, body, note=note)
    bars = len({row["trial"] for row in rows})
    return {**figure, "height": min(600, max(80, 8 * bars))}


def _time_format(attempts: Sequence[tuple[TrialRecord, Attempt]]) -> str:
    """Return how the axis writes times: with seconds for a short search, the day for a long one."""
    times = [attempt.start_time for _, attempt in attempts if attempt.start_time is not None]
    span = max(times) - min(times) if times else timedelta()
    if span < timedelta(minutes=10):
        return "%H:%M:%S"
    if span < timedelta(days=1):
        return "%H:%M"
    return "%b %d %H:%M"


def front(record: TrialList) -> Json:
    """Two objectives against each other; the Pareto front is drawn as a line."""
    objectives = record.criteria.objectives
    ended = (entry for entry in record.trials if entry.state is TrialState.SUCCEEDED)
    succeeded = [entry for entry in ended if entry.trial.further]
    drawn = _some(record, succeeded, MOST_TRIALS)
    best = {trial.number for trial in record.front}
    rows: list[Json] = []
    for entry in drawn:
        trial = entry.trial
        first, second = trial.values[:2]
        if trial.number in best:
            kind = _ON_FRONT
        elif record.criteria.violation(trial) == 0:
            kind = "dominated"
        else:
            kind = "breaks a constraint"
        assignment = formatting.parameters(trial.parameters)
        row = {"trial": trial.number, "x": first, "y": second, "is": kind, "parameters": assignment}
        rows.append(row)
    names = [objective.metric for objective in objectives[:2]]
    axes = {
        axis: _quantity(axis, title=name, scale=_scale([row[axis] for row in rows]))
        for axis, name in zip("xy", names, strict=False)
    }
    kind_scale = {
        "domain": [_ON_FRONT, "dominated", "breaks a constraint"],
        "range": [color.light for color in (colors.FRONT, colors.DOMINATED, colors.FORBIDDEN)],
    }
    points = _layer(
        _mark("point", filled=True, size=40, opacity=0.8),
        **axes,
        color=_word("is", title=None, scale=kind_scale, legend=_LEGEND),
        tooltip=_tips("trial", ("x", names[0]), ("y", names[-1]), "is", "parameters"),
    )
    # Between two trials of the front, the worse value of the second objective is reached.
    step = "step-after" if _is_minimized(record) else "step-before"
    line = _layer(
        _mark("line", color=colors.FRONT.light, interpolate=step, opacity=0.5),
        **axes,
        order={"field": "x"},
    ) | {"transform": [{"filter": f"datum.is == '{_ON_FRONT}'"}]}
    # With more, the front is no line in two.
    layers = [points, line] if len(objectives) == 2 else [points]
    title = f"{names[0]} and {names[-1]}"
    return _figure(title, rows, {"layer": layers}, note=_of(drawn, succeeded))


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure: its heading on a page, how a record is drawn, and the text for no data."""

    heading: str
    draw: Callable[[TrialList], Json]
    why_empty: str


FIGURES = {
    "history": Figure("History", history, "No trial has a value yet."),
    "front": Figure("Pareto front", front, "No trial has values of all objectives yet."),
    "curves": Figure("Learning curves", curves, "No trial has reported values by step."),
    "parallel": Figure("Parallel coordinates", parallel, "No trial has succeeded yet."),
    "slice": Figure("Each parameter", slice_, "No trial has a value yet."),
    "contour": Figure("Two parameters", contour, "No trial has succeeded yet."),
    "importance": Figure(
        "Importance",
        importance,
        f"Importance needs {MIN_TRIALS_TO_RANK} succeeded or pruned trials.",
    ),
    "timeline": Figure("Timeline", timeline, "No attempt has started yet."),
}
_OF_TWO_PARAMETERS = frozenset({"parallel", "contour"})


def worth_showing(record: TrialList) -> list[str]:
    """Return the available figures; with one parameter, none that relates parameters."""
    single = len(record.space.parameters) == 1
    return [name for name in available(record) if not (single and name in _OF_TWO_PARAMETERS)]


def available(record: TrialList) -> list[str]:
    """Return the names of the figures that apply: a front needs several objectives."""
    return [name for name in FIGURES if name != "front" or len(record.criteria.objectives) > 1]


def _figure(title: str, rows: Sequence[Json], body: Json, *, note: str) -> Json:
    """Return a figure.

    A page has its own heading in place of the title, and shows the note below the figure.
    """
    concatenated = "concat" in body or "vconcat" in body
    size = {} if concatenated else {"width": WIDTH, "height": HEIGHT}
    return {
        "$schema": SCHEMA,
        "title": {"text": f"{title}; {note}" if note else title, "anchor": "start", "fontSize": 13},
        "usermeta": {"note": note, "onDark": colors.ON_DARK},
        "data": {"values": [{key: _short(value) for key, value in row.items()} for row in rows]},
        **size,
        **body,
    }


def _short(value: object) -> object:
    """Return a number with six digits, as in tables, to keep pages small."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _valued(record: TrialList, *states: TrialState) -> list[TrialRecord]:
    """Return the trials of these states that have a value; without states, of both that can."""
    states = states or (TrialState.SUCCEEDED, TrialState.PRUNED)
    chosen = (entry for entry in record.trials if entry.state in states)
    return [entry for entry in chosen if _is_finite(entry.trial.value)]


def _began(record: TrialList) -> list[TrialRecord]:
    return [entry for entry in record.trials if entry.trial.step is not None]


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _value(entry: TrialRecord) -> float:
    assert entry.trial.value is not None
    return entry.trial.value


def _is_minimized(record: TrialList) -> bool:
    return record.criteria.objectives[0].direction is Direction.MINIMIZE


def _some(record: TrialList, trials: Sequence[TrialRecord], limit: int) -> list[TrialRecord]:
    """Return at most `limit` trials by number.

    Half of them are the best, the others are spread evenly over the rest.
    """
    if len(trials) <= limit:
        return list(trials)
    sign = record.criteria.objectives[0].direction.sign

    def loss(entry: TrialRecord) -> float:
        return sign * _value(entry) if _is_finite(entry.trial.value) else math.inf

    ranked = sorted(trials, key=loss)
    best, others = ranked[: limit // 2], ranked[limit // 2 :]
    remaining = limit - len(best)
    chosen = [*best, *(others[k * len(others) // remaining] for k in range(remaining))]
    return sorted(chosen, key=lambda entry: entry.trial.number)


def _of(drawn: Sequence[object], available: Sequence[object]) -> str:
    if len(drawn) == len(available):
        return ""
    return f"{len(drawn):,} of {len(available):,} trials, half of them the best"


def _row(entry: TrialRecord, names: Sequence[str]) -> Json:
    """Return the data of a trial.

    Parameters are called `p0`, `p1` and so on: Vega would interpret people's names.
    """
    row: Json = {"trial": entry.trial.number, "value": _value(entry), "state": entry.state.value}
    for index, name in enumerate(names):
        if name in entry.trial.parameters:
            value = entry.trial.parameters[name]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            row[f"p{index}"] = value if is_number else formatting.parameter(value)
    return row


def _place(domain: Domain, value: Any) -> float | None:
    """Return the position of a value in its range, or of a choice in its list, from 0 to 1."""
    if isinstance(domain, Choice):
        index = domain.index_of(value)
        return None if index is None else index / max(1, len(domain.values) - 1)
    low, high, position = float(domain.min), float(domain.max), float(value)
    if domain.scale is Scale.LOG:
        position = position if position > 0 else low
        low, high, position = map(math.log, (low, high, position))
    # Also the logarithms of two neighboring doubles.
    if high <= low:
        return 0.5
    return min(1.0, max(0.0, (position - low) / (high - low)))


def _places(parameter: Parameter) -> list[Json]:
    """Return an axis's labels: the parameter's limits, or its choices unless they are many."""
    match parameter.domain:
        case Choice(values):
            labeled = values if len(values) <= MOST_LABELS else (values[0], values[-1])
        case domain:
            labeled = (domain.min, domain.max)
    labels = [_coordinate(parameter, value) for value in labeled]
    return [label | {"is": label["is"][:20]} for label in labels]


def _value_at_tick(domains: Sequence[Domain], chosen: str) -> str:
    """Return the expression for the value at a tick, which is a place from 0 to 1 (see `_place`).

    chosen: the parameter of the figure that has the index of the domain.
    """
    ranges = [
        {"values": [formatting.parameter(value)[:20] for value in domain.values]}
        if isinstance(domain, Choice)
        else {"low": domain.min, "high": domain.max, "log": domain.scale is Scale.LOG}
        for domain in domains
    ]
    axis = f"{json.dumps(ranges)}[{chosen}]"
    place = f"(datum.value * ({axis}.values.length - 1))"
    choice = f"(abs({place} - round({place})) < 0.001 ? {axis}.values[round({place})] : '')"
    by_factor = f"{axis}.low * pow({axis}.high / {axis}.low, datum.value)"
    by_sum = f"{axis}.low + ({axis}.high - {axis}.low) * datum.value"
    number = f"({axis}.log ? {by_factor} : {by_sum})"
    return f"{axis}.values ? {choice} : format({number}, '.3~g')"


def _axis(domain: Domain, field: str, title: str) -> Json:
    if isinstance(domain, Choice):
        return _word(field, title=title)
    scale = {"type": "log"} if domain.scale is Scale.LOG else {"zero": False}
    return _quantity(field, title=title, scale=scale)


def _scale(values: Iterable[float]) -> Json:
    """Return an axis's scale: logarithmic for positive values that span several decades."""
    numbers = list(values)
    if numbers and min(numbers) > 0 and math.log10(max(numbers) / min(numbers)) > DECADES:
        return {"type": "log"}
    return {"zero": False}


def _quantity(field: str, **more: object) -> Json:
    return {"field": field, "type": "quantitative", **more}


def _word(field: str, **more: object) -> Json:
    return {"field": field, "type": "nominal", **more}


def _value_color(record: TrialList, scale: Json) -> Json:
    metric = record.criteria.objectives[0].metric
    colored = {**scale, "scheme": _SCHEME, "reverse": _is_minimized(record)}
    return _quantity("value", title=metric, scale=colored, legend=_GRADIENT)


def _state_color(rows: Sequence[Json]) -> Json:
    states = {row["state"] for row in rows}
    present = {state: color.light for state, color in colors.STATES.items() if state in states}
    scale = {"domain": list(present), "range": list(present.values())}
    return _word("state", title=None, scale=scale, legend=_LEGEND)


def _tips(*fields: str | tuple[str, str]) -> list[Json]:
    """Return what a tooltip shows: fields, or fields with other titles."""
    titled = [(each, each) if isinstance(each, str) else each for each in fields]
    return [{"field": field, "title": title} for field, title in titled]


def _mark(kind: str, **properties: object) -> Json:
    return {"type": kind, **properties}


def _layer(mark: Json, **encoding: object) -> Json:
    return {"mark": mark, "encoding": encoding}
