"""Katib's hyperband: which configurations are trained with more of the resource,
and with how much new ones begin.

In Katib, each training is a trial, so a promoted configuration is another trial, with a larger
resource. Here the trials of a configuration are put together, and `Promotion` decides as it does
for trials of our own that are paused: nothing waits for a rung to fill, so a failed trial and any
number of parallel trials are fine, and there is no end at which nothing can be proposed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from suggest.engine.promotion import Promotion
from suggest.space import Value
from suggest.study import Direction, Fidelity
from suggest.trial import RungResult, Trial, TrialState

Configuration: TypeAlias = tuple[Value, ...]  # a point without its resource


@dataclass(frozen=True, slots=True)
class Training:
    """A trial of Katib's: how much of the resource it trains with, and its value on success."""

    configuration: Configuration
    resource: float
    value: float | None


@dataclass(slots=True)
class _Progress:
    """The trainings of one configuration by level; None while one has no value or if it failed."""

    values: dict[int, float | None] = field(default_factory=dict)

    def trial(self, number: int, levels: tuple[float, ...]) -> Trial:
        """Return the configuration as one trial of several fidelities."""
        level = min(self.values)
        rungs: list[RungResult] = []
        while (value := self.values.get(level)) is not None:
            rungs.append(RungResult(levels[level], value))
            level += 1
        if level == len(levels):
            return Trial(number, TrialState.SUCCEEDED, {}, rungs[-1].value, rungs=tuple(rungs[:-1]))
        state = TrialState.RUNNING if level in self.values else TrialState.PAUSED
        return Trial(number, state, {}, rungs=tuple(rungs))


def next_trainings(
    fidelity: Fidelity, direction: Direction, trainings: Iterable[Training], count: int
) -> list[tuple[Configuration | None, int]]:
    """Return `count` configurations and their resources; None for a new configuration.

    `trainings` are all trials so far, in any order but always the same. A resource that is not one
    of the fidelity's levels does not count, nor do values of a configuration's larger resources
    while a smaller one has none.
    """
    levels = fidelity.levels
    known: dict[Configuration, _Progress] = {}
    for each in trainings:
        if each.resource in levels:
            progress = known.setdefault(each.configuration, _Progress())
            level = levels.index(each.resource)
            if progress.values.get(level) is None:
                progress.values[level] = each.value
    promotion = Promotion(fidelity, direction, brackets=True)
    trials: Mapping[int, Trial] = {
        number: progress.trial(number, levels) for number, progress in enumerate(known.values())
    }
    for trial in trials.values():
        promotion.put(trial)
    configurations = list(known)
    chosen: list[tuple[Configuration | None, int]] = [
        (configurations[number], round(promotion.following(trials[number])))
        for number in promotion.next(count)
    ]
    first = len(known)
    chosen += [(None, round(promotion.first(first + k))) for k in range(count - len(chosen))]
    return chosen
