"""The model behind `tpe`: Optuna's estimator, fitted to a window of trials,
and sampled group by group.

Imports NumPy, but neither Optuna nor SciPy. For a batch of requests, the model is fitted once, and
all candidates are drawn and evaluated together. Each point of the batch is then added to the
running trials as one more kernel, without fitting the others again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from suggest import deadline
from suggest.domain import decode
from suggest.proposal import PointRequest
from suggest.samplers import parzen
from suggest.samplers.columns import Columns, dimension, encode
from suggest.samplers.frame import CandidatePoints, Frame, points
from suggest.samplers.normal import Floats, Indexes, log_mass
from suggest.samplers.parzen import (
    Masses,
    Mixture,
    MixtureSampler,
    add_bins,
    add_choices,
    coefficients,
    correction,
    narrowest,
)
from suggest.samplers.running import LIARS
from suggest.samplers.split import by_fronts, good_and_other, good_count
from suggest.samplers.tpe import OwnSettings, decided, groups
from suggest.space import Assignment, Value
from suggest.study import StudySpec
from suggest.trial import Trial

# Requests of a batch that are drawn with one fit.
TOGETHER = 64


class TpeModel:
    def __init__(self, spec: StudySpec, seed: int, settings: OwnSettings) -> None:
        self._criteria = spec.criteria
        self._space = spec.space
        self._seed = seed
        self._settings = settings
        modeled = [p for p in spec.space.parameters if p.domain.count != 1]
        self._place = {p.name: k for k, p in enumerate(modeled)}
        self._dimensions = {p.name: dimension(p.domain) for p in modeled}
        self._groups = tuple(groups(spec.space))
        # The groups of requests without fixed values. What is fitted for other groups is not kept,
        # because a client can fix any subset of the parameters, and nothing would limit the memory.
        self._unfixed: set[tuple[str, ...]] = {(name,) for name in self._dimensions}
        for group in self._groups:
            self._unfixed.add(tuple(p.name for p in group if p.name in self._dimensions))
        # What is fitted to the good trials, after their numbers as bytes.
        self._good: dict[tuple[str, ...], tuple[bytes, MixtureSampler]] = {}
        self._columns = Columns(modeled, spec.criteria)

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        # Densities far from all trials underflow to zero. This is intended,
        # but NumPy would warn about it.
        with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
            batch = self.fit(learned, running)
            points: list[Assignment] = []
            for index, one in enumerate(wanted):
                if index:
                    deadline.check()
                numbers: dict[str, float] = {}
                points.append(self._point(batch, wanted[index:], numbers))
                if self._settings.constant_liar and index + 1 < len(wanted):
                    batch.add_pending(one, [numbers.get(name, np.nan) for name in self._place])
            return points

    def fit(self, learned: Iterable[Trial], running: Iterable[Trial]) -> Batch:
        share = self._settings.good_share
        finished = list(learned)
        liars = list(running) if self._settings.constant_liar else []
        values, ranks, pending = self._columns.read(finished, liars)
        if len(self._criteria.objectives) > 1:
            ranks = by_fronts(ranks, self._losses(finished), good_count(len(finished), share))
        good, other = good_and_other(ranks, share)
        numbers = np.array([trial.number for trial in finished], dtype=np.intp)
        avoided = None
        if self._settings.constant_liar:
            avoided = Known(np.array([trial.number for trial in liars], dtype=np.intp), pending)
        others = Others(Known(numbers[other], values[:, other]), avoided)
        return Batch(Known(numbers[good], values[:, good]), others)

    def _losses(self, finished: Sequence[Trial]) -> Floats:
        """Return the losses of all objectives, (objectives, trials); infinite if there is none."""
        losses = np.full((len(self._criteria.objectives), len(finished)), np.inf)
        for index, trial in enumerate(finished):
            if found := self._criteria.losses(trial):
                losses[:, index] = found
        return losses

    def group(self, batch: Batch, names: tuple[str, ...]) -> ParameterGroup:
        """Return the group of these parameters, drawn together, as fitted for the batch."""
        group = batch.groups.get(names)
        if group is None:
            rows = self._rows(names)
            good = self._fitted_to_good(batch, names, rows)
            group = batch.groups[names] = ParameterGroup(batch.others, rows, good)
        return group

    def _fitted_to_good(
        self, batch: Batch, names: tuple[str, ...], rows: Indexes
    ) -> MixtureSampler:
        """Return what is fitted to the good trials, which rarely change in long studies."""
        which = batch.good.numbers.tobytes()
        kept, fitted = self._good.get(names, (None, None))
        if fitted is not None and kept == which:
            return fitted
        frame = Frame([self._dimensions[name] for name in names])
        values = batch.good.with_all(rows).values
        fitted = MixtureSampler(
            frame, parzen.fit(frame, values, sharpness=self._settings.sharpness)
        )
        if names in self._unfixed:
            self._good[names] = which, fitted
        return fitted

    def _point(
        self, batch: Batch, wanted: Sequence[PointRequest], numbers: dict[str, float]
    ) -> Assignment:
        """Return a point for the first request, and fill `numbers` with its encoded values."""
        one = wanted[0]
        # Along a Pareto front, some parameters depend on each other and others do not. Neither
        # kind of model fits both, so with several objectives they alternate.
        alternates = len(self._criteria.objectives) > 1 and one.number % 2 == 1
        jointly = self._settings.multivariate and not alternates
        values: dict[str, Value] = {}
        for group in self._groups:
            if not group[0].active(values):
                continue
            fixed, free = decided(group, one.fixed, self._dimensions)
            values |= fixed
            for name in fixed.keys() & self._dimensions.keys():
                numbers[name] = encode(self._space.by_name[name].domain, fixed[name])
            together = [tuple(free)] if jointly and free else [(name,) for name in free]
            for names in together:
                drawn = self._draw(batch, names, wanted)
                for name, number in zip(names, drawn, strict=True):
                    numbers[name] = number
                    values[name] = decode(self._space.by_name[name].domain, number)
        return self._space.in_order(values)

    def _rows(self, names: tuple[str, ...]) -> Indexes:
        return np.array([self._place[name] for name in names], dtype=np.intp)

    def _draw(
        self, batch: Batch, names: tuple[str, ...], wanted: Sequence[PointRequest]
    ) -> list[float]:
        """Return the best candidate of the first request.

        The candidates of the block are drawn when its first request needs them.
        """
        group = self.group(batch, names)
        one = wanted[0]
        if not group.has(one):
            block = wanted[:TOGETHER]
            quantiles = np.concatenate([self._quantiles(each, names) for each in block], axis=1)
            group.draw(block, quantiles)
        return group.best(one)

    def _quantiles(self, one: PointRequest, names: tuple[str, ...]) -> Floats:
        """Return random numbers in [0, 1), with 53 bits: (names + 1, candidates)."""
        rows, count = len(names) + 1, self._settings.candidates
        source = one.source(self._seed, f"tpe {' '.join(names)}")
        words = np.frombuffer(source.randbytes(8 * rows * count), dtype="<u8")
        numbers = words.astype(np.uint64) >> np.uint64(11)
        return (numbers * np.float64(2.0**-53)).reshape(rows, count)


@dataclass(frozen=True, slots=True)
class Known:
    """Trials in ascending order of their numbers, and their values: (parameters, trials)."""

    numbers: Indexes
    values: Floats

    def with_all(self, rows: Indexes) -> Known:
        """Return the values of these parameters, for the trials that have all of them."""
        values = self.values[rows]
        absent = np.isnan(values)
        if not absent.any():
            return Known(self.numbers, values)
        complete = ~absent.any(axis=0)
        return Known(self.numbers[complete], values[:, complete])

    def merged(self, more: Known) -> Known:
        if not more.numbers.size:
            return self
        numbers = np.concatenate([self.numbers, more.numbers])
        values = np.concatenate([self.values, more.values], axis=1)
        if not self.numbers.size or self.numbers[-1] < more.numbers[0]:
            return Known(numbers, values)
        order = np.argsort(numbers)
        return Known(numbers[order], values[:, order])


class Others:
    """The trials that are not good, including running ones.

    `running` is None if running trials are ignored.
    """

    def __init__(self, finished: Known, running: Known | None) -> None:
        self.finished = finished
        self.running = running
        # Added to `running` when it is next needed.
        self._pending: list[tuple[int, list[float]]] = []

    def add_pending(self, number: int, values: list[float]) -> None:
        """Add a running trial. If there are more than LIARS, the oldest one is dropped."""
        self._pending.append((number, values))

    def known(self, rows: Indexes) -> Known:
        """Return the current trials that have all of these parameters."""
        if self._pending and self.running is not None:
            numbers, values = zip(*self._pending, strict=True)
            self._pending.clear()
            pending = Known(np.array(numbers, dtype=np.intp), np.array(values).T)
            running = self.running.merged(pending)
            self.running = Known(running.numbers[-LIARS:], running.values[:, -LIARS:])
        finished = self.finished.with_all(rows)
        return finished if self.running is None else finished.merged(self.running.with_all(rows))


class Batch:
    """The trials that the proposals of one call are fitted to, and the groups fitted so far."""

    def __init__(self, good: Known, others: Others) -> None:
        self.good = good
        self.others = others
        self.groups: dict[tuple[str, ...], ParameterGroup] = {}

    def add_pending(self, one: PointRequest, values: list[float]) -> None:
        """Add the point of an earlier request as a running trial."""
        self.others.add_pending(one.number, values)
        column = np.array(values)
        for group in self.groups.values():
            # A group without candidates for this request is fitted again before its next draw.
            if group.has(one):
                group.add_pending(column)


class ParameterGroup:
    """Parameters modeled together, with the densities of the good trials and of the others.

    It has no reference to its batch, because cycles are freed by the garbage collector only: it
    would free thousands of them at once, and delay every call.
    """

    def __init__(self, others: Others, rows: Indexes, good: MixtureSampler) -> None:
        self._trials = others
        self._rows = rows
        self.frame = good.frame
        self.good = good
        self._places: dict[tuple[int, int], slice] = {}
        self._pending: Pending | None = None  # created for batches only

    def known(self) -> Known:
        """Return the current trials that are not good."""
        return self._trials.known(self._rows)

    def others(self) -> Mixture:
        """Return a mixture fitted to the current trials that are not good."""
        return parzen.fit(self.frame, self.known().values, sharpness=self.good.mixture.sharpness)

    def draw(self, wanted: Sequence[PointRequest], quantiles: Floats) -> None:
        """Draw candidates, the same number for each request, and compute both densities at them."""
        each = quantiles.shape[1] // len(wanted)
        self._places = {one.key: slice(k * each, (k + 1) * each) for k, one in enumerate(wanted)}
        others = self.others()
        self.drawn = points(self.frame, self.good.draw(quantiles))
        mixtures = [self.good.mixture, others]
        self._good, self._others = parzen.log_densities(self.frame, mixtures, self.drawn)
        self._pending = None
        self._new_pending = partial(Pending, self.frame, others, self.drawn, room=len(wanted))

    def has(self, one: PointRequest) -> bool:
        """Return whether there are candidates for this request."""
        return one.key in self._places

    def add_pending(self, values: Floats) -> None:
        """Add the point of an earlier request to the others, so that the next points avoid it."""
        point = values[self._rows]
        if self._places and not np.isnan(point).any():
            if self._pending is None:
                self._pending = self._new_pending()
            self._pending.add(point)

    def others_near(self, here: slice) -> Floats:
        """Return the log density of the others and the batch's own points at these candidates."""
        others = self._others[here]
        return others if self._pending is None else self._pending.log_density(here, others)

    def best(self, one: PointRequest) -> list[float]:
        """Return this request's candidate with the largest ratio of good to other density."""
        here = self._places[one.key]
        promise = self._good[here] - self.others_near(here)
        candidates = self.drawn.numbers[:, here]
        best: list[float] = candidates[:, np.argmax(promise)].tolist()
        return best


class Pending:
    """Kernels in addition to those of `base`, evaluated at the candidates `at` only.

    Each has the weight of the most recent trial. `room` is the largest number of kernels.
    """

    def __init__(self, frame: Frame, base: Mixture, at: CandidatePoints, *, room: int) -> None:
        self._frame = frame
        self._at = at
        self._count = 0
        self._sharpness = base.sharpness
        rows, self._kernels = base.mu.shape
        # The prior's, and that of the most recent trials.
        self._log_weight = float(base.log_weights[-1])
        self._places: list[list[float]] = np.sort(base.mu[:, :-1], axis=1).tolist()
        self._coefficients = np.empty((3 * rows, room))
        self._codes = np.empty((len(frame.choices), room))
        self._masses = [
            Masses(
                np.zeros((bins.wide.shape[1] + 1, room)), np.ones((bins.narrow.shape[1] + 1, room))
            )
            for bins in at.bins
        ]
        # The first columns are the whole span of each dimension, the others its wide bins.
        whole = np.zeros((2, rows))
        whole[1] = 1.0
        self._edges = np.concatenate([whole, *(bins.wide for bins in at.bins)], axis=1)
        # The dimension of each of these columns.
        of_bins = [np.full(bins.wide.shape[1], bins.row) for bins in at.bins]
        self._rows = np.concatenate([np.arange(rows), *of_bins])

    def add(self, numbers: Floats) -> None:
        """Add a kernel around a point: (dimensions,)."""
        frame, k = self._frame, self._count
        self._count += 1
        self._codes[:, k] = numbers[[index for index, _ in frame.choices]]
        if not frame.numeric.size:
            return
        raw = frame.scaled(numbers[frame.numeric, None])
        mu = ((raw - frame.low) / frame.span)[:, 0]
        sigma = np.array([self._width(row, place) for row, place in enumerate(mu.tolist())])
        ends = (self._edges - mu[self._rows]) / sigma[self._rows]
        masses = log_mass(ends[0], ends[1])
        whole = masses[: mu.size]
        self._coefficients[:, k] = coefficients(mu, sigma, whole)
        done = mu.size
        for bins, table in zip(self._at.bins, self._masses, strict=True):
            count = len(table.wide) - 1
            table.wide[:-1, k] = masses[done : done + count] - whole[bins.row]
            done += count
            if len(table.narrow) > 1:
                more = correction(bins.narrow, mu[bins.row], 1.0 / sigma[bins.row])
                table.narrow[:-1, k] += more

    def _width(self, row: int, place: float) -> float:
        """Return the width of a new kernel: the larger gap to its neighbors, as in `parzen.fit`."""
        places = self._places[row]
        at, count = bisect_left(places, place), len(places)
        left = place - (places[at - 1] if at else 0.0)
        right = (places[at] if at < count else 1.0) - place
        if count and at == 0:
            width = right
        elif count and at == count:
            width = left
        else:
            width = max(left, right)
        places.insert(at, place)
        return min(max(width, narrowest(count + 1, self._sharpness)), 1.0)

    def log_density(self, here: slice, base: Floats) -> Floats:
        """Return the log density, up to a constant, of the mixture with these kernels at `here`.

        `base` is the log density without them.
        """
        count = self._count
        if not count:
            return base
        at = self._at.part(here)
        terms = at.features @ self._coefficients[:, :count]
        # The factors that a new kernel shares with the mixture, relative to the density without it.
        terms += ((self._log_weight + at.log_width - self._frame.log_unit) - base)[:, None]
        for codes, (k, choices) in zip(self._codes, self._frame.choices, strict=True):
            add_choices(codes[:count], self._kernels, choices, at.numbers[k], terms)
        masses = [Masses(each.wide[:, :count], each.narrow[:, :count]) for each in self._masses]
        factor = add_bins(masses, at.bins, terms)
        np.exp(terms, out=terms)
        if factor is not None:
            terms *= factor
        found: Floats = base + np.log1p(terms.sum(axis=1))
        return found
