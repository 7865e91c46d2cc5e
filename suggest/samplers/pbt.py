"""`pbt`: population based training.

Trials continue from the checkpoints of others, some with other parameters.

Jaderberg et al. 2017, "Population Based Training of Neural Networks", with truncation selection: a
trial trains for one interval, and a trial of the next generation continues from its checkpoint with
the same parameters. The worst trials of a generation are replaced: their successors continue from
one of the best, with parameters that are multiplied by 0.8 or 1.2, or drawn again. `population`
decides which trial continues, and `Trial.parent` records it. Clients copy the checkpoints.

While too few trials of a generation have a value to tell the best from the worst, a request gets
fewer points than it asks for, and has to be repeated after another trial has ended.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from suggest.domain import NO_MEMBER, number
from suggest.proposal import PointRequest
from suggest.samplers.family import Family
from suggest.samplers.population import Offspring, PbtPopulation
from suggest.samplers.sampler import Sampler
from suggest.samplers.uniform import draw, draw_point
from suggest.settings import setting
from suggest.space import Assignment, Choice, Domain, Float, Int, Parameter, Space, Value
from suggest.study import StudySpec
from suggest.trial import IMPORTED_FROM, Trial, TrialState
from suggest.workers import Workers

FACTORS = (0.8, 1.2)


@dataclass(frozen=True, slots=True)
class PbtSettings:
    population: int = setting(10, "trials of a generation", min=2, max=1000)
    truncation: float = setting(
        0.2,
        "share of a generation, at least one trial, that is replaced by as many of its best; 0: "
        "none",
        min=0.0,
        max=1.0,
    )
    resample_probability: float = setting(
        0.25,
        "probability that a replaced trial draws a parameter again, not near its parent's",
        min=0.0,
        max=1.0,
    )


class PbtSampler(Sampler):
    def __init__(
        self, spec: StudySpec, seed: int, settings: PbtSettings, *, workers: Workers | None = None
    ) -> None:
        """`workers` are not used: a point takes microseconds."""
        self._space = spec.space
        self._seed = seed
        self._resample_probability = settings.resample_probability
        self._population = PbtPopulation(
            settings.population, settings.truncation, spec.objective.direction
        )
        # The points of the trials from which others may continue, by number.
        self._points: dict[int, Assignment] = {}

    def put(self, trial: Trial) -> None:
        if IMPORTED_FROM in trial.labels:
            # It has no checkpoint here, and may have been trained for longer.
            return
        self._population.put(trial)
        if trial.state is TrialState.SUCCEEDED:
            self._points[trial.number] = trial.parameters
        else:
            self._points.pop(trial.number, None)

    def propose(self, wanted: Sequence[PointRequest]) -> list[Assignment]:
        return [point for _, point in self._offspring(wanted)]

    def parents(self, wanted: Sequence[PointRequest]) -> Mapping[int, int]:
        """Return the parents of the trials that `propose` proposes, by trial, if they have one."""
        pairs = zip(wanted, self._offspring(wanted), strict=False)
        return {one.number: parent for one, (parent, _) in pairs if parent is not None}

    def _offspring(self, wanted: Sequence[PointRequest]) -> list[tuple[int | None, Assignment]]:
        found: list[tuple[int | None, Assignment]] = []
        begun: list[int] = []
        for one in wanted:
            # A person has added it, perhaps with a part of its point.
            if one.number in self._population:
                found.append((None, draw_point(self._space, self._seed, one)))
                continue
            source = one.source(self._seed, "pbt")
            offspring = self._population.next(source)
            if offspring is None:
                break
            found.append((offspring.parent, self._point(one, offspring, source)))
            self._population.put(Trial(one.number, TrialState.RUNNING, {}, parent=offspring.parent))
            begun.append(one.number)
        for trial in begun:
            self._population.drop(trial)
        return found

    def _point(self, one: PointRequest, offspring: Offspring, source: random.Random) -> Assignment:
        if offspring.parent is None:
            return draw_point(self._space, self._seed, one)
        probability = self._resample_probability if offspring.explores else None
        return inherited(
            self._space, self._points[offspring.parent], source, resample_probability=probability
        )


def inherited(
    space: Space, point: Assignment, source: random.Random, *, resample_probability: float | None
) -> Assignment:
    """Return the point of a trial that continues from one with `point`.

    It is the same, unless there is a probability.

    With one, each value is drawn again with this probability, and perturbed
    otherwise. Values that the parent does not have, because its condition did
    not hold or the space has grown since, are drawn.
    """

    def value_of(parameter: Parameter) -> Value:
        domain = parameter.domain
        kept = NO_MEMBER if parameter.name not in point else domain.canonical(point[parameter.name])
        if kept is NO_MEMBER or (
            resample_probability is not None and source.random() < resample_probability
        ):
            return draw(domain, source)
        return kept if resample_probability is None else perturbed(domain, kept, source)

    return space.point(value_of)


def perturbed(domain: Domain, value: Value, source: random.Random) -> Value:
    """Return a number 0.8 or 1.2 times `value`, or the next member of the domain in that direction.

    A choice of numbers moves to one of its neighbors. Other choices have no order, and stay.
    """
    rises = source.random() < 0.5
    if isinstance(domain, Choice):
        return _neighbor(domain, value, rises=rises)
    for factor in FACTORS[::-1] if rises else FACTORS:
        moved = _scaled(domain, value, factor)
        if moved != value:
            return moved
    # No factor changes 0.
    return draw(domain, source)


def _scaled(domain: Float | Int, value: Value, factor: float) -> Value:
    """Return the member nearest to `factor * value`, but not `value` if that side has others."""
    x, index = number(value), domain.index_of(value)
    assert x is not None
    aim = min(max(x * factor, domain.min), domain.max)
    if index is None or domain.count is None:
        return float(aim)
    if aim == x or domain.count == 1:
        return value
    near = round((aim - domain.min) / (domain.max - domain.min) * (domain.count - 1))
    if near == index:
        near += 1 if aim > x else -1
    return domain.at(min(max(near, 0), domain.count - 1))


def _neighbor(domain: Choice, value: Value, *, rises: bool) -> Value:
    ordered = sorted(x for each in domain.values if (x := number(each)) is not None)
    x = number(value)
    if x is None or len(ordered) < len(domain.values) or len(ordered) == 1:
        return value
    index, by = ordered.index(x), 1 if rises else -1
    if not 0 <= index + by < len(ordered):
        by = -by
    return ordered[index + by]


ENTRIES = (
    Family(
        "pbt",
        "Trains generations of trials that continue from the checkpoints of the best (population "
        "based training).",
        PbtSettings,
        PbtSampler,
        waits=True,
        several=False,
    ),
)
