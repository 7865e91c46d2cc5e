"""The points of a space as rows of places, for the Gaussian process:
features, candidates and moves.

A place is a share of a number's span on its scale, 0 to 1, or the index of a choice; NaN where the
parameter is inactive. Features embed rows in a Euclidean space, so that any distance of them makes
a valid kernel: a number is itself, a number that may be inactive lies on an arc around the place of
all inactive ones (Swersky et al. 2014, Raiders of the lost architecture), and each choice is a
corner of a simplex.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from suggest.domain import decode
from suggest.samplers.columns import dimension, encode
from suggest.samplers.frame import Dimension
from suggest.samplers.normal import Flags, Floats, Indexes
from suggest.space import Assignment, Domain, Parameter, Space, Value

# The angle of the arc that a span covers, in radians. The radius 1 / ARC keeps the distance between
# neighbors that of their places.
ARC = 2.5
# A number with more values is moved like a continuous one, and rounded.
FEW = 40
# A choice with more values has a corner for each value that trials have, and one for all others.
CORNERS = 64
MIDDLE = 0.5
# Of a range from 0, the share below which the logarithmic scale does not tell numbers apart.
ZERO = 1e-4


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter of more than one value."""

    parameter: Parameter
    dimension: Dimension
    low: float
    span: float
    # Added to numbers before their logarithm is taken.
    shift: float
    log: bool

    @property
    def name(self) -> str:
        return self.parameter.name

    @property
    def domain(self) -> Domain:
        return self.parameter.domain

    @property
    def count(self) -> float:
        """Return the number of its values."""
        if self.dimension.whole:
            return self.dimension.last - self.dimension.first + 1.0
        return math.inf

    def places(self, numbers: Floats) -> Floats:
        """Return the places of numbers as `columns.encode` makes them."""
        if self.dimension.choice:
            return numbers
        scaled = np.log(numbers + self.shift) if self.log else numbers
        return np.clip((scaled - self.low) / self.span, 0.0, 1.0)

    def numbers(self, places: Floats) -> Floats:
        """Return the nearest members of the domain."""
        if self.dimension.choice:
            return places
        numbers = self.low + places * self.span
        if self.log:
            numbers = np.exp(numbers) - self.shift
        if self.dimension.whole:
            numbers = np.rint(numbers)
        return np.clip(numbers, self.dimension.first, self.dimension.last)

    def snapped(self, places: Floats) -> Floats:
        if self.dimension.whole and not self.dimension.choice:
            return self.places(self.numbers(places))
        return places


def _axis(parameter: Parameter, *, as_log: bool) -> Axis:
    d = dimension(parameter.domain)
    log = d.log or as_log
    half = 0.5 if d.whole and not d.choice else 0.0
    low, high = d.first - half, d.last + half
    shift = 0.0
    if log:
        if d.first == 0:
            shift = 1.0 if d.whole else ZERO * d.last
        low, high = math.log(low + shift), math.log(high + shift)
    span = high - low
    # Neighboring doubles may have the same logarithm.
    return Axis(parameter, d, low, span if span > 0 else 1.0, shift, log)


def _shares_moved(size: int) -> tuple[float, float]:
    """Return the shares of this number of axes that change where few change, and where many do."""
    if size > 20:
        # All at once is a jump to nowhere.
        return 5.0 / size, 20.0 / size
    few = max(2.0, size / 4.0) / size if size > 1 else 1.0
    return min(few, 1.0), 1.0


@dataclass(frozen=True, slots=True)
class _Corners:
    """The corners of a choice: one for each of `values` and, with `others`, one for all others."""

    axis: int
    values: Floats
    others: bool

    @classmethod
    def of(cls, axis: int, count: float, known: Floats) -> _Corners:
        """`known` are the places that trials have, NaN where they have none."""
        if count <= CORNERS:
            return cls(axis, np.arange(count), False)
        return cls(axis, np.unique(known[~np.isnan(known)]), True)

    def features(self, places: Floats) -> Floats:
        """Return the columns of places, (rows,)."""
        same = places[:, None] == self.values[None]
        if self.others:
            other = ~same.any(axis=1) & ~np.isnan(places)
            same = np.concatenate([same, other[:, None]], axis=1)
        return np.where(same, math.sqrt(0.5), 0.0)


class Places:
    """The axes of a space, in an order in which parents come first.

    as_log: the names of numbers whose places are on a logarithmic scale, whatever they declare.
    """

    def __init__(self, space: Space, *, as_log: Collection[str] = ()) -> None:
        self._space = space
        varied = [p for p in space.ordered if p.domain.count != 1]
        self.axes = tuple(_axis(p, as_log=p.name in as_log) for p in varied)
        self.size = len(self.axes)
        self.choice = np.array([axis.dimension.choice for axis in self.axes], dtype=np.bool_)
        many = np.array([axis.count > FEW for axis in self.axes], dtype=np.bool_)
        self.smooth = many & ~self.choice
        self.optional = np.array([bool(axis.parameter.when) for axis in self.axes], dtype=np.bool_)
        self._row = {axis.name: k for k, axis in enumerate(self.axes)}
        # For each axis with conditions: the parents' axes and the places that make it active.
        self._conditions = [self._parents(axis.parameter) for axis in self.axes]

    def _parents(self, parameter: Parameter) -> list[tuple[int, Floats]] | None:
        """Return the parents' axes and places.

        None if the parameter is never active, because a parent's only value does not activate it.
        """
        parents: list[tuple[int, Floats]] = []
        for condition in parameter.when:
            parent = self._space.by_name[condition.parameter]
            if parent.name in self._row:
                k = self._row[parent.name]
                numbers = np.array([encode(parent.domain, v) for v in condition.values])
                members = numbers[~np.isnan(numbers)]
                parents.append((k, self.axes[k].places(members)))
                continue
            above = self._parents(parent)
            if above is None or not condition.holds({parent.name: parent.domain.at(0)}):
                return None
            parents.extend(above)
        return parents

    def encoded(self, points: Sequence[Assignment]) -> Floats:
        """Return the rows of points: (points, axes)."""
        rows = np.full((len(points), self.size), np.nan)
        for k, axis in enumerate(self.axes):
            name, domain = axis.name, axis.domain
            rows[:, k] = [encode(domain, p[name]) if name in p else np.nan for p in points]
            rows[:, k] = axis.places(rows[:, k])
        return rows

    def decoded(self, row: Floats, fixed: Assignment) -> Assignment:
        """Return the point of a row, with the values of `fixed`."""

        def value_of(parameter: Parameter) -> Value:
            name = parameter.name
            if name in fixed:
                return fixed[name]
            if name not in self._row:
                return parameter.domain.at(0)
            k = self._row[name]
            place = row[k : k + 1]
            if math.isnan(row[k]):
                place = np.array([0.0 if self.choice[k] else MIDDLE])
            return decode(parameter.domain, float(self.axes[k].numbers(place)[0]))

        return self._space.point(value_of)

    def active(self, rows: Floats) -> Flags:
        """Return which places are active in each row."""
        on = np.ones(rows.shape, dtype=np.bool_)
        for k, parents in enumerate(self._conditions):
            if parents is None:
                on[:, k] = False
                continue
            for parent, places in parents:
                distances = np.abs(rows[:, parent, None] - places[None])
                holds = (distances < 1e-9).any(axis=1)
                on[:, k] &= on[:, parent] & holds
        return on

    def completed(self, rows: Floats, quantiles: Floats) -> Floats:
        """Complete rows in place, and return them.

        Numbers move to members of their domains, inactive places become NaN, and active places that
        are NaN are drawn.
        """
        for k, axis in enumerate(self.axes):
            rows[:, k] = axis.snapped(rows[:, k])
        # One pass for each level of conditions.
        while True:
            on = self.active(rows)
            rows[~on] = np.nan
            new = on & np.isnan(rows)
            if not new.any():
                return rows
            rows[new] = self.uniform(quantiles)[new]

    def uniform(self, quantiles: Floats) -> Floats:
        """Return places for all axes, uniform on their scales, from quantiles in [0, 1)."""
        rows = quantiles.copy()
        for k, axis in enumerate(self.axes):
            if axis.dimension.choice:
                rows[:, k] = np.floor(rows[:, k] * axis.count)
            else:
                rows[:, k] = axis.snapped(rows[:, k])
        return rows

    def moved(self, rows: Floats, rng: np.random.Generator) -> Floats:
        """Return rows with a few or all places changed, at a random scale for each row."""
        count, size = rows.shape
        rows = rows.copy()
        few, many = _shares_moved(size)
        share = np.where(rng.random(count) < 0.5, many, few)
        move = rng.random((count, size)) < share[:, None]
        move[np.arange(count), rng.integers(0, size, count)] = True
        length = 10.0 ** rng.uniform(-3.0, -0.5, count)
        steps = rng.standard_normal((count, size)) * length[:, None]
        flip = rng.random((count, size)) < 0.3
        other = rng.random((count, size))
        for k, axis in enumerate(self.axes):
            here = move[:, k]
            if axis.dimension.choice:
                here = here & flip[:, k]
                rows[here, k] = np.floor(other[here, k] * axis.count)
                continue
            step = steps[here, k]
            if not self.smooth[k]:
                step = np.sign(step) * np.maximum(np.abs(step), 0.75 / axis.count)
            # Reflected at the ends.
            place = np.abs(rows[here, k] + step)
            place = np.where(place > 1.0, 2.0 - place, place)
            rows[here, k] = np.clip(place, 0.0, 1.0)
        return rows

    def neighbors(self, row: Floats, free: Flags) -> Floats:
        """Return rows that differ in one axis of few values.

        Numbers differ by up to three steps, and choices take any other value.
        """
        found = []
        for k, axis in enumerate(self.axes):
            if self.smooth[k] or not free[k] or math.isnan(row[k]):
                continue
            here = axis.numbers(row[k : k + 1])[0]
            if axis.dimension.choice:
                others = np.arange(min(axis.count, CORNERS))
            else:
                others = here + np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])
                first, last = axis.dimension.first, axis.dimension.last
                others = others[(others >= first) & (others <= last)]
            for place in axis.places(others[others != here]):
                other = row.copy()
                other[k] = place
                found.append(other)
        return np.array(found).reshape(-1, self.size)


class Features:
    """The embedding of rows, made for the trials that are known.

    Columns belong to axes, whose weight they share.
    """

    def __init__(self, places: Places, known: Floats) -> None:
        number = ~places.choice
        may_lack = places.optional | np.isnan(known).any(axis=0)
        self._plain: Indexes = np.flatnonzero(number & ~may_lack)
        self._arc: Indexes = np.flatnonzero(number & may_lack)
        of = [self._plain, self._arc, self._arc]
        self._corners = []
        for k in np.flatnonzero(places.choice):
            corners = _Corners.of(int(k), places.axes[k].count, known[:, k])
            self._corners.append(corners)
            of.append(np.full(len(corners.values) + corners.others, corners.axis))
        self.axis_of: Indexes = np.concatenate(of).astype(np.intp)  # of each column
        self.axes = places.size

    def of(self, rows: Floats) -> Floats:
        """Return the features: (rows, columns), 0 in the middle of numbers."""
        angle, there = self._angles(rows)
        cosine = np.where(there, np.cos(angle) / ARC, 0.0)
        parts = [rows[:, self._plain] - MIDDLE, cosine, np.sin(angle) / ARC]
        parts += [corners.features(rows[:, corners.axis]) for corners in self._corners]
        return np.concatenate(parts, axis=1)

    def _angles(self, rows: Floats) -> tuple[Floats, Flags]:
        """Return the angles of places on their arcs, 0 if inactive, and which are active."""
        angle = ARC * (rows[:, self._arc] - MIDDLE)
        there = ~np.isnan(angle)
        return np.where(there, angle, 0.0), there

    def pullback(self, rows: Floats, gradients: Floats) -> Floats:
        """Turn gradients by features into gradients by places, (rows, axes).

        They are 0 for choices and for inactive places.
        """
        plain, arc = len(self._plain), len(self._arc)
        found = np.zeros((len(rows), self.axes))
        found[:, self._plain] = gradients[:, :plain]
        angle, there = self._angles(rows)
        by_cosine = gradients[:, plain : plain + arc]
        by_sine = gradients[:, plain + arc : plain + 2 * arc]
        by_angle = np.cos(angle) * by_sine - np.sin(angle) * by_cosine
        found[:, self._arc] = np.where(there, by_angle, 0.0)
        return found
