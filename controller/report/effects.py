"""Compute the effect of each parameter on the value, from the succeeded trials. Pure.

Other trials have no comparable value (that of a pruned trial belongs to an earlier
step). They are counted beside each level instead: a level that lost many trials looks
better than it is, and the count shows it.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from suggest.domain import Identity, identity, number
from suggest.space import Choice, Parameter, Space, Value
from suggest.study import Direction
from suggest.trial import Trial, TrialState

# A number that took more values than this is divided into bins.
MAX_LEVELS = 8
# Also used for a number whose values mostly occur once.
BINS = 4

Point: TypeAlias = tuple[tuple[str, Identity], ...]  # names and values, by name


@dataclass(frozen=True, slots=True)
class ParameterLevel:
    """The trials that share a parameter's value, or have one from low to high, inclusive (a bin).

    mean, median, best: of the succeeded `trials`; None if there are none.
    left_out: the number of other trials, by outcome.
    """

    low: Value
    high: Value
    trials: int
    mean: float | None
    median: float | None
    best: float | None
    left_out: Mapping[TrialState, int] = field(default_factory=dict)

    @property
    def is_bin(self) -> bool:
        return identity(self.low) != identity(self.high)


@dataclass(frozen=True, slots=True)
class Step:
    """The change of the value from the first level to another one.

    It is the mean of value(other) - value(first) over pairs of points that are equal in all other
    parameters, with the smallest and the largest difference. A point that ran several times counts
    once, with its mean value.
    """

    level: Value
    pairs: int
    mean: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a parameter that took at least two values.

    spread: the largest mean of a level minus the smallest.
    rank_correlation: Spearman's coefficient, for numbers in bins; positive if larger parameters go
        with larger values.
    """

    name: str
    levels: Sequence[ParameterLevel]
    spread: float
    steps: Sequence[Step] = ()
    rank_correlation: float | None = None

    @property
    def has_bins(self) -> bool:
        return any(level.is_bin for level in self.levels)


def effects(space: Space, trials: Iterable[Trial], *, direction: Direction) -> list[Effect]:
    """Return the effects of all parameters that took several values.

    They are in the order of the space, because the spreads of a few trials do not show which
    parameter matters most.
    """
    ended = (trial for trial in trials if trial.finished)
    finished = [replace(each, parameters=space.canonical(each.parameters)) for each in ended]
    points = _points(finished)
    by_parameter = []
    for parameter in space.parameters:
        effect = _effect(parameter, finished, points, direction=direction)
        if effect is not None:
            by_parameter.append(effect)
    return by_parameter


def _points(finished: Sequence[Trial]) -> dict[Point, float]:
    """Return the mean value at each point."""
    values: dict[Point, list[float]] = defaultdict(list)
    for trial in finished:
        value = succeeded(trial)
        if value is not None:
            point = sorted((name, identity(v)) for name, v in trial.parameters.items())
            values[tuple(point)].append(value)
    return {point: _mean(losses) for point, losses in values.items()}


def _effect(
    parameter: Parameter,
    finished: Sequence[Trial],
    points: Mapping[Point, float],
    *,
    direction: Direction,
) -> Effect | None:
    name = parameter.name
    active = [trial for trial in finished if name in trial.parameters]
    values = {identity(trial.parameters[name]): trial.parameters[name] for trial in active}
    if len(values) < 2:
        return None
    many = len(values) > MAX_LEVELS or BINS < len(values) > len(active) / 2
    if many and not isinstance(parameter.domain, Choice):
        placed = [
            (float(x), trial)
            for trial in active
            if (x := number(trial.parameters[name])) is not None
        ]
        return _in_bins(name, placed, direction=direction)
    of_level: dict[Identity, list[Trial]] = defaultdict(list)
    for trial in active:
        of_level[identity(trial.parameters[name])].append(trial)
    order = _ordered(parameter, values)
    levels = [
        _level(of_level[identity(value)], value, value, direction=direction) for value in order
    ]
    return Effect(name, levels, _spread(levels), steps=_steps(name, order, points))


def _in_bins(name: str, placed: Sequence[tuple[float, Trial]], *, direction: Direction) -> Effect:
    levels = []
    for low, high in _bins([place for place, _ in placed]):
        inside = [trial for place, trial in placed if low <= place <= high]
        levels.append(_level(inside, low, high, direction=direction))
    points = [(place, value) for place, trial in placed if (value := succeeded(trial)) is not None]
    return Effect(name, levels, _spread(levels), rank_correlation=spearman(points))


def succeeded(trial: Trial) -> float | None:
    return trial.value if trial.state is TrialState.SUCCEEDED else None


def _ordered(parameter: Parameter, values: Mapping[Identity, Value]) -> list[Value]:
    """Return the values in order: choices as in the file, numbers by size."""
    if not isinstance(parameter.domain, Choice):
        return sorted(values.values(), key=lambda value: number(value) or 0.0)
    ranks = {identity(value): rank for rank, value in enumerate(parameter.domain.values)}
    keys = sorted(values, key=lambda key: ranks.get(key, len(ranks)))
    return [values[key] for key in keys]


def _level(
    trials: Sequence[Trial], low: Value, high: Value, *, direction: Direction
) -> ParameterLevel:
    values = [value for trial in trials if (value := succeeded(trial)) is not None]
    states = Counter(trial.state for trial in trials)
    del states[TrialState.SUCCEEDED]
    left_out = {state: states[state] for state in TrialState if states[state]}
    if not values:
        return ParameterLevel(low, high, 0, None, None, None, left_out)
    best = min(values, key=lambda value: direction.sign * value)
    return ParameterLevel(
        low, high, len(values), _mean(values), statistics.median(values), best, left_out
    )


def _mean(values: Sequence[float]) -> float:
    try:
        return statistics.fmean(values)
    except (OverflowError, ValueError):
        # The sum is no double, or has two infinite differences.
        return sum(value / len(values) for value in values)


def _spread(levels: Sequence[ParameterLevel]) -> float:
    means = [level.mean for level in levels if level.mean is not None]
    return max(means) - min(means) if means else 0.0


def _steps(name: str, order: Sequence[Value], points: Mapping[Point, float]) -> list[Step]:
    first, *other_values = order
    of_level: dict[Identity, dict[Point, float]] = {identity(level): {} for level in order}
    # The parameter's index, which is the same in nearly every point.
    at = 0
    for point, value in points.items():
        if at >= len(point) or point[at][0] != name:
            places = (index for index, (other, _) in enumerate(point) if other == name)
            at = next(places, len(point))
        if at < len(point):
            of_level[point[at][1]][point[:at] + point[at + 1 :]] = value
    steps = []
    for level in other_values:
        values = of_level[identity(level)]
        at_first = of_level[identity(first)].items()
        gains = [values[rest] - value for rest, value in at_first if rest in values]
        if gains:
            steps.append(Step(level, len(gains), _mean(gains), min(gains), max(gains)))
    return steps


def _bins(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return the smallest and largest value of each of four bins.

    The bins have equally many trials, as far as that is possible with equal values in the same bin.
    """
    ranked = sorted(values)
    lowest = sorted({ranked[at * len(ranked) // BINS] for at in range(BINS)})
    # A bin ends where the next one begins.
    ends = [bisect_left(ranked, low) for low in lowest[1:]]
    ends.append(len(ranked))
    return [(low, ranked[end - 1]) for low, end in zip(lowest, ends, strict=True)]


def spearman(points: Sequence[tuple[float, float]]) -> float | None:
    """Return Spearman's coefficient: Pearson's correlation of the ranks.

    Equal values share their mean rank. None if one side never changes.
    """
    if len(points) < 2:
        return None
    first = _ranks([x for x, _ in points])
    second = _ranks([y for _, y in points])
    if len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return statistics.correlation(first, second)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for index in order[at : end + 1]:
            ranks[index] = (at + end) / 2
        at = end + 1
    return ranks
