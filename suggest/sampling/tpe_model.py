"""The model behind `tpe`: Optuna's estimator, fitted to a window of trials and asked group by group.

It imports NumPy and neither Optuna nor SciPy. A batch is fitted once: its good trials stay the same, so all its
candidates are drawn together; the running trials, which each point of it joins, are what changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from suggest.sampling import parzen
from suggest.sampling.columns import Columns, decode, dimension
from suggest.sampling.frame import Dimension, Frame, Points, points
from suggest.sampling.normal import Floats, Indexes
from suggest.sampling.parzen import Mixture
from suggest.sampling.sampler import Wanted, generator
from suggest.sampling.split import good_and_other
from suggest.sampling.tpe import LIARS, TpeSettings, groups
from suggest.space import Assignment, Value
from suggest.study import Direction, StudySpec
from suggest.trial import Trial

TOGETHER = 2048  # candidates that are drawn at a time


class Model:
    def __init__(self, spec: StudySpec, seed: int, settings: TpeSettings) -> None:
        self._space = spec.space
        self._seed = seed
        self._settings = settings
        modelled = [p for p in spec.space.parameters if p.domain.count != 1]
        self._place = {p.name: k for k, p in enumerate(modelled)}
        self._dimensions = {p.name: dimension(p.domain) for p in modelled}
        self._groups = tuple(groups(spec.space))
        self._columns = Columns(modelled, -1.0 if spec.objective.direction is Direction.MAXIMIZE else 1.0)

    def propose(self, learnt: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[Wanted]) -> list[Assignment]:
        # Far from all trials densities underflow to zero, which is meant and which NumPy would warn of.
        with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
            batch = self.fit(learnt, running)
            points: list[Assignment] = []
            for place, one in enumerate(wanted):
                point = self._point(batch, wanted[place:], one)
                points.append(point)
                if self._settings.constant_liar and place + 1 < len(wanted):
                    batch.pend(one.number, self._columns.encoded(point))
            return points

    def fit(self, learnt: Iterable[Trial], running: Iterable[Trial]) -> Batch:
        finished = list(learnt)
        liars = list(running) if self._settings.constant_liar else []
        values, ranks, pending = self._columns.read(finished, liars)
        good, other = good_and_other(ranks)
        numbers = np.array([t.number for t in finished], dtype=np.intp)
        batch = Batch(Known(numbers[good], values[:, good]), Known(numbers[other], values[:, other]))
        if self._settings.constant_liar:
            batch.liars = Known(np.array([t.number for t in liars], dtype=np.intp), pending)
        return batch

    def group(self, batch: Batch, names: tuple[str, ...]) -> Group:
        """The parameters that are drawn together, as the batch knows them."""
        group = batch.groups.get(names)
        if group is None:
            rows = np.array([self._place[name] for name in names], dtype=np.intp)
            group = batch.groups[names] = Group(batch, rows, [self._dimensions[name] for name in names])
        return group

    def _point(self, batch: Batch, wanted: Sequence[Wanted], one: Wanted) -> Assignment:
        values: dict[str, Value] = {}
        for group in self._groups:
            if not group[0].active(values):
                continue
            free: list[str] = []
            for parameter in group:
                name = parameter.name
                if name in one.fixed:
                    values[name] = one.fixed[name]
                elif name in self._dimensions:
                    free.append(name)
                else:
                    values[name] = parameter.domain.at(0)
            together = [tuple(free)] if self._settings.multivariate else [(name,) for name in free]
            for names in together:
                if names:
                    chosen = self._draw(batch, names, wanted)
                    for name, number in zip(names, chosen, strict=True):
                        values[name] = decode(self._space.by_name[name].domain, number)
        return {p.name: values[p.name] for p in self._space.parameters if p.name in values}

    def _draw(self, batch: Batch, names: tuple[str, ...], wanted: Sequence[Wanted]) -> list[float]:
        """The most promising of the first wanted trial's candidates."""
        group, count = self.group(batch, names), self._settings.candidates
        number = wanted[0].number
        if not group.drawn(number):
            block = [one.number for one in wanted[: max(1, TOGETHER // count)]]
            group.draw(block, np.concatenate([self._quantiles(n, names) for n in block], axis=1))
        return group.best(number)

    def _quantiles(self, number: int, names: tuple[str, ...]) -> Floats:
        """(names + 1, candidates), each of the 2^53 evenly spaced values in [0, 1)."""
        rows, count = len(names) + 1, self._settings.candidates
        words = generator(self._seed, number, f"tpe {' '.join(names)}").randbytes(8 * rows * count)
        numbers = np.frombuffer(words, dtype="<u8").astype(np.uint64) >> np.uint64(11)
        return (numbers * np.float64(2.0**-53)).reshape(rows, count)


@dataclass(frozen=True, slots=True)
class Known:
    """Trials by their numbers, rising, and their values: (parameters, trials)."""

    numbers: Indexes
    values: Floats

    def having(self, rows: Indexes) -> Known:
        """Values of these parameters, of the trials that have them all."""
        mine = self.values[rows]
        there = ~np.isnan(mine).any(axis=0)
        return Known(self.numbers[there], mine[:, there])

    def with_one(self, number: int, values: list[float]) -> Known:
        at = int(np.searchsorted(self.numbers, number))
        one = np.array(values)[:, None]
        return Known(
            np.concatenate([self.numbers[:at], [number], self.numbers[at:]]),  # np.insert takes ten times as long
            np.concatenate([self.values[:, :at], one, self.values[:, at:]], axis=1),
        )

    def and_those(self, more: Known) -> Known:
        numbers = np.concatenate([self.numbers, more.numbers])
        values = np.concatenate([self.values, more.values], axis=1)
        if not self.numbers.size or not more.numbers.size or self.numbers[-1] < more.numbers[0]:
            return Known(numbers, values)
        order = np.argsort(numbers)
        return Known(numbers[order], values[:, order])


class Batch:
    """What a proposal is fitted to: the good trials, and the others, running ones among them."""

    def __init__(self, good: Known, finished: Known) -> None:
        self.good = good
        self.groups: dict[tuple[str, ...], Group] = {}
        self.liars: Known | None = None
        self.finished = finished

    def pend(self, number: int, values: list[float]) -> None:
        """One more running trial, in place of the oldest where there are many."""
        assert self.liars is not None
        liars = self.liars.with_one(number, values)
        self.liars = Known(liars.numbers[-LIARS:], liars.values[:, -LIARS:])


class Group:
    """Parameters that are modelled together: how dense the good trials are where, and how dense the others."""

    def __init__(self, batch: Batch, rows: Indexes, dimensions: list[Dimension]) -> None:
        self._batch = batch
        self._rows = rows
        self.frame = Frame(dimensions)
        good = batch.good.having(rows)
        self.good = parzen.fit(self.frame, good.values, good.numbers)
        self._finished = batch.finished.having(rows)
        self._others: Mixture | None = None
        self._tables: list[Floats] | None = None  # of the others, at what was drawn together last
        self._drawn: Points | None = None
        self._density: Floats | None = None
        self._places: dict[int, slice] = {}

    def known(self) -> Known:
        """The trials that are not good ones, as they are now."""
        liars = self._batch.liars
        return self._finished if liars is None else self._finished.and_those(liars.having(self._rows))

    def others(self) -> Mixture:
        """As they are now."""
        known = self.known()
        self._others = parzen.fit(self.frame, known.values, known.numbers, before=self._others)
        return self._others

    def draw(self, numbers: Sequence[int], quantiles: Floats) -> None:
        """Candidates for these trials, equally many for each."""
        at = self._drawn = points(self.frame, parzen.draw(self.frame, self.good, quantiles))
        self._density = parzen.log_density(self.frame, self.good, at, parzen.masses(self.good, at))
        self._tables = None
        each = quantiles.shape[1] // len(numbers)
        self._places = {number: slice(k * each, (k + 1) * each) for k, number in enumerate(numbers)}

    def drawn(self, number: int) -> bool:
        return number in self._places

    def best(self, number: int) -> list[float]:
        """The candidate of this trial, which was drawn, that has most good trials near it for the others there."""
        assert self._drawn is not None
        assert self._density is not None
        here = self._places[number]
        others = self.others()
        self._tables = parzen.masses(others, self._drawn, self._tables)
        at = self._drawn.part(here)
        promise = self._density[here] - parzen.log_density(self.frame, others, at, self._tables)
        best: list[float] = at.numbers[:, np.argmax(promise)].tolist()
        return best
