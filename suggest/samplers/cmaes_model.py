"""The model behind `cmaes`: CMA-ES with margin, by the package `cmaes`, replayed from the trials.

Hansen 2016, "The CMA Evolution Strategy: A Tutorial"; Hamano et al. 2022 for integers, each of
which keeps a minimum probability, the margin; Hamano et al. 2025, "CatCMA with margin", for spaces
with choices; Nomura et al. 2021, "Warm starting CMA-ES for hyperparameter optimization". The
generations are those of `generations`, over succeeded trials; the memory is the optimizer. Trial n
is drawn from the current distribution with the random numbers of (study seed, n). After convergence
the search restarts from a random mean with a larger population (IPOP: Auger and Hansen 2005).

The optimizer learns from points as they were before rounding to integers, but a trial has only the
rounded point. The model therefore repeats the trial's draw from the recent distributions, and takes
the draw that gives the trial's point. If none does, because another client proposed the trial or it
was drawn long ago, it takes the rounded point.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from cmaes import CatCMAwM, CMAwM, get_warm_start_mgd

from suggest import deadline
from suggest.domain import number
from suggest.proposal import PointRequest, generator
from suggest.samplers.cmaes import CmaEsSettings
from suggest.samplers.generations import Generations
from suggest.samplers.normal import Floats
from suggest.samplers.quantiles import by_index, fraction_of, quantile
from suggest.space import Assignment, Choice, Float, Int, Value
from suggest.study import StudySpec
from suggest.trial import Trial

# The latest distributions, from which a trial may have been drawn.
_RECENT = 3
# The share of the earlier trials, the best ones, that a warm start follows.
_GOOD_SHARE = 0.1
_LEAST_EARLIER = 10  # trials, so that this share is at least one
# The least width of a warm start, as a share of each range. The paper has 0.1, for trials of a
# similar problem. These are of the same one.
_WIDTH = 0.05
# The range of losses of a search that has converged.
_FLAT = 1e-12
# Integers with more values than this have no margin: they are treated as continuous.
_STEPS = 1000


class Optimizer(Protocol):
    """What the model uses of a search distribution. Rows have a column for each axis."""

    @property
    def population_size(self) -> int: ...

    def reseed_rng(self, seed: int) -> None: ...

    def ask(self) -> tuple[Floats, Floats]:
        """Return a drawn row, and the row before rounding."""
        ...

    def tell(self, solutions: list[tuple[Floats, float]]) -> None:
        """Learn from a generation. Rows are as they were before rounding."""
        ...

    def should_stop(self) -> bool: ...


class CmaEsModel:
    def __init__(self, spec: StudySpec, seed: int, settings: CmaEsSettings) -> None:
        self._space = spec.space
        self._seed = seed
        self._settings = settings
        self._sign = spec.objective.direction.sign
        searched = [p for p in spec.space.parameters if p.domain.count != 1]
        numbers = [_Number(p.name, p.domain) for p in searched if not isinstance(p.domain, Choice)]
        self._choices = [
            _Category(p.name, p.domain) for p in searched if isinstance(p.domain, Choice)
        ]
        if self._choices:
            # CatCMA has continuous axes first.
            numbers.sort(key=lambda axis: axis.step > 0)
        self._numbers = numbers
        self._axes: list[_Number | _Category] = [*numbers, *self._choices]
        # Hansen 2016, equation 48.
        default_size = 4 + math.floor(3 * math.log(max(1, len(self._axes))))
        self._size = max(4, settings.population_size) if settings.population_size else default_size
        self._earlier: list[Trial] = []  # which decide where the search starts
        self._generations = self._new_generations()

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        if not self._axes:
            return [self._point(one, {}) for one in wanted]
        known = [t for t in learned if all(axis.has(t.parameters) for axis in self._axes)]
        own = [t for t in known if t.number >= self._settings.warm_start]
        earlier = known[: len(known) - len(own)]
        if [t.number for t in earlier] != [t.number for t in self._earlier]:
            self._earlier = earlier
            self._generations = self._new_generations()
        _, optimizer = self._generations.replay(own)
        points: list[Assignment] = []
        for one in wanted:
            deadline.check()
            row, _ = self._draw(optimizer, one)
            points.append(self._point(one, self._values(row)))
        return points

    def _point(self, one: PointRequest, drawn: Mapping[str, Value]) -> Assignment:
        found = {
            p.name: drawn[p.name] if p.name in drawn else p.domain.at(0)
            for p in self._space.parameters
        }
        return {name: one.fixed.get(name, value) for name, value in found.items()}

    def _draw(self, optimizer: Optimizer, one: PointRequest) -> tuple[Floats, Floats]:
        """Return the drawn row, and the row before rounding.

        Changes only the optimizer's random source.
        """
        optimizer.reseed_rng(one.source(self._seed, "cmaes").getrandbits(32))
        return optimizer.ask()

    def _values(self, row: Floats) -> dict[str, Value]:
        return {
            axis.name: axis.value(place)
            for axis, place in zip(self._axes, row.tolist(), strict=True)
        }

    def _updated(
        self, generation: int, trials: Sequence[Trial], optimizers: Mapping[int, Optimizer]
    ) -> Optimizer:
        """Return the optimizer after a generation.

        `optimizers` are the recent ones, by their generation.
        """
        recent = [
            optimizers[k] for k in range(generation, generation - _RECENT, -1) if k in optimizers
        ]
        solutions = [(self._raw(t, recent), self._sign * (t.value or 0.0)) for t in trials]
        optimizer = copy.deepcopy(optimizers[generation])
        optimizer.tell(solutions)
        if not optimizer.should_stop():
            return optimizer
        return self._new_optimizer(
            generation + 1, optimizer.population_size * self._settings.population_growth
        )

    def _raw(self, trial: Trial, recent: Sequence[Optimizer]) -> Floats:
        """Return the trial's row as it was drawn, before rounding."""
        places = self._places(trial.parameters)
        for optimizer in recent:
            row, raw = self._draw(optimizer, PointRequest(trial.number, {}))
            if np.array_equal(self._places(self._values(row)), places):
                return raw
        return places

    def _places(self, point: Assignment) -> Floats:
        return np.array([axis.place(point[axis.name]) for axis in self._axes])

    def _new_generations(self) -> Generations[Trial, Optimizer]:
        return Generations(
            lambda optimizer: optimizer.population_size,
            lambda: self._new_optimizer(0, self._size),
            self._updated,
            recent=_RECENT,
        )

    def _new_optimizer(self, generation: int, size: int) -> Optimizer:
        """Return a new optimizer.

        One after a convergence starts at a random point, the first one in the middle.

        With a warm start, the first one starts with the distribution of the best earlier trials.
        """
        rng = generator(self._seed, generation, "cmaes restart")
        mean = np.array([0.5 if not generation else rng.random() for _ in self._numbers])
        sigma, covariance, shares = self._settings.sigma, None, None
        if not generation and len(self._earlier) >= _LEAST_EARLIER:
            rows = np.array([self._places(t.parameters) for t in self._earlier])
            losses = [self._sign * (t.value or 0.0) for t in self._earlier]
            count = len(self._numbers)
            found = list(zip(rows[:, :count], losses, strict=True))
            mean, sigma, covariance = get_warm_start_mgd(found, gamma=_GOOD_SHARE, alpha=_WIDTH)
            best = np.argsort(losses, kind="stable")[: math.ceil(_GOOD_SHARE * len(losses))]
            shares = [axis.shares(rows[best, count + k]) for k, axis in enumerate(self._choices)]
        steps = np.array([axis.step for axis in self._numbers])
        if self._choices:
            counts = [axis.count for axis in self._choices]
            return _MixedOptimizer(
                steps, counts, mean, sigma, covariance, shares, population_size=size
            )
        numbers_only: Optimizer = CMAwM(
            mean=mean,
            sigma=sigma,
            cov=covariance,
            bounds=np.tile([0.0, 1.0], (len(mean), 1)),
            steps=steps,
            n_max_resampling=10 * len(mean),
            seed=0,
            population_size=size,
        )
        return numbers_only


class _MixedOptimizer:
    """CatCMA with margin.

    Columns of rows: continuous numbers, stepped ones, and choices as indexes.
    """

    def __init__(
        self,
        steps: Floats,
        counts: Sequence[int],
        mean: Floats,
        sigma: float,
        covariance: Floats | None,
        shares: Sequence[Floats] | None,
        *,
        population_size: int,
    ) -> None:
        """steps: of the numbers.

        0 for continuous ones. shares: how probable each value of the choices is at first.
        """
        self._numbers = len(steps)
        self._width = max(counts)
        stepped = [np.linspace(0.0, 1.0, round(1 / step) + 1).tolist() for step in steps if step]
        probable = None
        if shares is not None:
            probable = np.array([np.pad(each, (0, self._width - len(each))) for each in shares])
        self._search = CatCMAwM(
            x_space=[[0.0, 1.0]] * (len(steps) - len(stepped)) or None,
            z_space=stepped or None,
            c_space=list(counts),
            population_size=population_size,
            mean=mean,
            sigma=sigma,
            cov=np.eye(len(mean)) if covariance is None else covariance,
            cat_param=probable,
            seed=0,
        )
        # Hansen 2016, appendix B.3.
        generations = 10 + math.ceil(30 * len(steps) / population_size)
        # The best and the worst loss of each.
        self._extremes: deque[float] = deque(maxlen=2 * generations)

    @property
    def population_size(self) -> int:
        found: int = self._search.population_size
        return found

    def reseed_rng(self, seed: int) -> None:
        self._search.reseed_rng(seed)

    def ask(self) -> tuple[Floats, Floats]:
        drawn = self._search.ask()
        assert drawn.c is not None
        # The package gives and takes the row before rounding under this name only.
        chosen = np.argmax(drawn.c, axis=1)
        rounded = [part for part in (drawn.x, drawn.z) if part is not None]
        return np.concatenate([*rounded, chosen]), np.concatenate([drawn._v_raw, chosen])

    def tell(self, solutions: list[tuple[Floats, float]]) -> None:
        """Learn from the ranks of the losses alone.

        Huge and equal losses would make penalties at the bounds NaN.
        """
        ranked = sorted(solutions, key=lambda one: one[1])
        self._extremes += (ranked[0][1], ranked[-1][1])
        self._search.tell(
            [(self._solution(row), float(rank)) for rank, (row, _) in enumerate(ranked)]
        )

    def _solution(self, row: Floats) -> CatCMAwM.Solution:
        chosen = row[self._numbers :, None] == np.arange(self._width)
        return CatCMAwM.Solution(c=chosen, _v_raw=row[: self._numbers])

    def should_stop(self) -> bool:
        losses = self._extremes
        flat = len(losses) == losses.maxlen and max(losses) - min(losses) < _FLAT
        return flat or self._search.should_stop()


class _Number:
    """A parameter as a number from 0 to 1, on its scale.

    `step` is the distance between neighboring values, or 0 if there are so many
    that they count as continuous.
    """

    def __init__(self, name: str, domain: Float | Int) -> None:
        self.name = name
        self._domain = domain
        self._last = domain.count - 1 if by_index(domain) and domain.count is not None else None
        self.step = 1 / self._last if self._last is not None and self._last < _STEPS else 0.0

    def has(self, point: Assignment) -> bool:
        return self.name in point

    def value(self, place: float) -> Value:
        place = min(max(place, 0.0), 1.0)
        if self._last is not None:
            return self._domain.at(round(place * self._last))
        return quantile(self._domain, place)

    def place(self, value: Value) -> float:
        """Return the place of a value, clipped to the range if the value lies outside."""
        domain = self._domain
        x = number(value)
        # Trials with values of other types never get here.
        assert x is not None
        if self._last is None:
            return fraction_of(domain, x)
        low, high = domain.min, domain.max
        return (min(max(x, low), high) - low) / (high - low) if high > low else 0.5


class _Category:
    """A choice as the index of its value."""

    def __init__(self, name: str, domain: Choice) -> None:
        self.name = name
        self._domain = domain
        self.count = domain.count

    def has(self, point: Assignment) -> bool:
        return self.name in point and self._domain.index_of(point[self.name]) is not None

    def value(self, place: float) -> Value:
        return self._domain.at(round(place))

    def place(self, value: Value) -> float:
        index = self._domain.index_of(value)
        # Other trials are not known.
        assert index is not None
        return float(index)

    def shares(self, places: Floats) -> Floats:
        """Return how often each value occurs, counting each once more: none is improbable."""
        counts = np.bincount(places.astype(np.intp), minlength=self.count) + 1.0
        found: Floats = counts / counts.sum()
        return found
