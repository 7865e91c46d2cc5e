"""The model behind `cmaes`: CMA-ES with margin, by the package `cmaes`, replayed from the trials.

Hansen 2016, "The CMA Evolution Strategy: A Tutorial"; Hamano et al. 2022 for integers, each of which keeps a minimum
probability, the margin; Nomura et al. 2021, "Warm starting CMA-ES for hyperparameter optimization". The generations are
those of `generations`, over succeeded trials; the memory is the optimizer. Trial n is drawn from the current
distribution with the random numbers of (study seed, n). After convergence the search restarts from a random mean.

The optimizer learns from points as they were before rounding to integers, but a trial has only the rounded point. The
model therefore repeats the trial's draw from the recent distributions, and takes the draw that gives the trial's point.
If none does, because another client proposed the trial or it was drawn long ago, it takes the rounded point.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from cmaes import CMAwM, get_warm_start_mgd

from suggest import deadline
from suggest.domain import number
from suggest.samplers.cmaes import CmaEsSettings
from suggest.samplers.generations import Generations
from suggest.samplers.normal import Floats
from suggest.samplers.quantiles import by_index, fraction_of, quantile
from suggest.samplers.sampler import PointRequest, generator
from suggest.space import Assignment, Choice, Domain, Value
from suggest.study import StudySpec
from suggest.trial import Trial

_RECENT = 3  # the latest distributions, from which a trial may have been drawn
_GOOD_SHARE = 0.1  # of the earlier trials, those that a warm start follows
_LEAST_EARLIER = 10  # trials of which that share is one
# The least width of a warm start, as a share of each range. The paper has 0.1, for trials of a similar problem. These
# are of the same one.
_WIDTH = 0.05
_STEPS = 1000  # integers with more values than this have no margin: they are treated as continuous


class CmaEsModel:
    def __init__(self, spec: StudySpec, seed: int, settings: CmaEsSettings) -> None:
        self._space = spec.space
        self._seed = seed
        self._settings = settings
        self._sign = spec.objective.direction.sign
        self._axes = [_Coordinate(p.name, p.domain) for p in spec.space.parameters if p.domain.count != 1]
        default_size = 4 + math.floor(3 * math.log(max(1, len(self._axes))))  # Hansen 2016, equation 48
        self._size = max(4, settings.population_size) if settings.population_size else default_size
        self._earlier: list[Trial] = []  # which decide where the search starts
        self._generations = self._new_generations()

    def propose(
        self, learnt: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        if not self._axes:
            return [self._point(one, {}) for one in wanted]
        names = {axis.name for axis in self._axes}
        known = [t for t in learnt if names <= t.parameters.keys()]
        own = [t for t in known if t.number >= self._settings.warm_start]
        earlier = known[: len(known) - len(own)]
        if [t.number for t in earlier] != [t.number for t in self._earlier]:
            self._earlier = earlier
            self._generations = self._new_generations()
        _, optimizer = self._generations.replay(own)
        points: list[Assignment] = []
        for one in wanted:
            deadline.check()
            values, _ = self._drawn(optimizer, one)
            points.append(self._point(one, values))
        return points

    def _point(self, one: PointRequest, drawn: Mapping[str, Value]) -> Assignment:
        found = {p.name: drawn[p.name] if p.name in drawn else p.domain.at(0) for p in self._space.parameters}
        return {name: one.fixed.get(name, value) for name, value in found.items()}

    def _drawn(self, optimizer: CMAwM, one: PointRequest) -> tuple[dict[str, Value], Floats]:
        """Return the drawn values, and the draw before rounding. Changes only the optimizer's random source."""
        optimizer.reseed_rng(one.source(self._seed, "cmaes").getrandbits(32))
        rounded, raw = optimizer.ask()
        return {axis.name: axis.value(x) for axis, x in zip(self._axes, rounded.tolist(), strict=True)}, raw

    def _updated(self, generation: int, trials: Sequence[Trial], optimizers: Mapping[int, CMAwM]) -> CMAwM:
        """Return the optimizer after a generation. `optimizers` are the recent ones, by their generation."""
        recent = [optimizers[k] for k in range(generation, generation - _RECENT, -1) if k in optimizers]
        solutions = [(self._raw(t, recent), self._sign * (t.value or 0.0)) for t in trials]
        optimizer = copy.deepcopy(optimizers[generation])
        optimizer.tell(solutions)
        return self._new_optimizer(generation + 1) if optimizer.should_stop() else optimizer

    def _raw(self, trial: Trial, recent: Sequence[CMAwM]) -> Floats:
        """Return the trial's point as it was drawn, before rounding. Shape: (axes,)."""
        for optimizer in recent:
            values, raw = self._drawn(optimizer, PointRequest(trial.number, {}))
            if all(trial.parameters[name] == value for name, value in values.items()):
                return raw
        return np.array([axis.place(trial.parameters[axis.name]) for axis in self._axes])

    def _new_generations(self) -> Generations[Trial, CMAwM]:
        return Generations(self._size, lambda: self._new_optimizer(0), self._updated, recent=_RECENT)

    def _new_optimizer(self, generation: int) -> CMAwM:
        """Return a new optimizer. One after a convergence starts at a random point, the first one in the middle.

        With a warm start, the first one starts with the distribution of the best earlier trials.
        """
        rng = generator(self._seed, generation, "cmaes restart")
        mean = np.array([0.5 if not generation else rng.random() for _ in self._axes])
        sigma, covariance = self._settings.sigma, None
        if not generation and len(self._earlier) >= _LEAST_EARLIER:
            places = [np.array([axis.place(t.parameters[axis.name]) for axis in self._axes]) for t in self._earlier]
            losses = [self._sign * (t.value or 0.0) for t in self._earlier]
            found = list(zip(places, losses, strict=True))
            mean, sigma, covariance = get_warm_start_mgd(found, gamma=_GOOD_SHARE, alpha=_WIDTH)
        return CMAwM(
            mean=mean,
            sigma=sigma,
            cov=covariance,
            bounds=np.tile([0.0, 1.0], (len(self._axes), 1)),
            steps=np.array([axis.step for axis in self._axes]),
            n_max_resampling=10 * len(self._axes),
            seed=0,
            population_size=self._size,
        )


class _Coordinate:
    """One parameter as a number from 0 to 1, on its scale.

    `step` is the distance between neighboring values, or 0 if there are so many that they count as continuous.
    """

    def __init__(self, name: str, domain: Domain) -> None:
        self.name = name
        self._domain = domain
        self._last = domain.count - 1 if by_index(domain) and domain.count is not None else None
        self.step = 1 / self._last if self._last is not None and self._last < _STEPS else 0.0

    def value(self, place: float) -> Value:
        place = min(max(place, 0.0), 1.0)
        if self._last is not None:
            return self._domain.at(round(place * self._last))
        assert not isinstance(self._domain, Choice)  # a choice is by index
        return quantile(self._domain, place)

    def place(self, value: Value) -> float:
        """Return the place of a value, clipped to the range if the value lies outside."""
        domain = self._domain
        assert not isinstance(domain, Choice)
        x = number(value)
        assert x is not None  # trials with values of other types never get here
        if self._last is None:
            return fraction_of(domain, x)
        low, high = domain.min, domain.max
        return (min(max(x, low), high) - low) / (high - low) if high > low else 0.5
