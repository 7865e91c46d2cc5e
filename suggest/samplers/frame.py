"""The dimensions that a model and its candidates share: scales, bins and places.

Pure functions of arrays. A point is a column of numbers, one per dimension; stepped values and
choices are encoded as their index. A place is a position within the dimension's span, from 0 to 1
on its scale. An integer is a bin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from suggest.samplers.normal import Floats, Indexes

# The largest width of a narrow bin, as a share of the span. Kernels are at least a hundredth of the
# span wide, so such a bin covers at most a quarter of a kernel.
NARROW = 0.0025
MOST_SHAPES = 1024  # bins of a dimension whose shapes are kept


@dataclass(frozen=True, slots=True)
class Dimension:
    """The real numbers from `first` to `last`, or with `whole` the integers.

    With `choice`, they are unordered.
    """

    first: float
    last: float
    log: bool = False
    whole: bool = False
    choice: bool = False


class Frame:
    """The dimensions that are modeled together, with everything that depends on them alone.

    numeric: the indexes of the dimensions that are not choices.
    choices: (index, number of choices) of the others.
    first, last, low, span: (numeric, 1); `low` and `span` are on the dimension's scale.
    log, whole: positions among the numeric dimensions.
    bins: the position and the scale of each whole dimension.
    log_unit: the log of the volume of the continuous dimensions.
    """

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        self.size = len(dimensions)
        numeric = [d for d in dimensions if not d.choice]
        indexes = [k for k, d in enumerate(dimensions) if not d.choice]
        self.numeric = np.array(indexes, dtype=np.intp)
        self.choices = [(k, d.last + 1.0) for k, d in enumerate(dimensions) if d.choice]
        self.first = np.array([d.first for d in numeric]).reshape(-1, 1)
        self.last = np.array([d.last for d in numeric]).reshape(-1, 1)
        self.log = np.array([k for k, d in enumerate(numeric) if d.log], dtype=np.intp)
        self.whole = np.array([k for k, d in enumerate(numeric) if d.whole], dtype=np.intp)
        half = np.array([0.5 if d.whole else 0.0 for d in numeric]).reshape(-1, 1)
        self.low = self.scaled(self.first - half)
        span = self.scaled(self.last + half) - self.low
        # Neighboring doubles may have the same logarithm.
        self.span = np.where(span > 0, span, 1.0)
        self.bins = []
        for k, d in enumerate(numeric):
            if d.whole:
                low, length = float(self.low[k, 0]), float(self.span[k, 0])
                self.bins.append((k, BinScale(d.first, d.last, low, length, d.log)))
        continuous = [k for k, d in enumerate(numeric) if not d.whole]
        self.log_unit = float(np.log(self.span[continuous]).sum())

    def scaled(self, numbers: Floats) -> Floats:
        """Return the numeric rows on their dimensions' scales. numbers: (numeric, points)."""
        if self.log.size:
            numbers = numbers.copy()
            numbers[self.log] = np.log(numbers[self.log])
        return numbers

    def numbers_at(self, places: Floats) -> Floats:
        """Return the numbers of the numeric dimensions at these places, moved into the span."""
        numbers = self.low + np.minimum(np.maximum(places, 0.0), 1.0) * self.span
        numbers[self.log] = np.exp(numbers[self.log])
        numbers[self.whole] = np.rint(numbers[self.whole])
        within: Floats = np.minimum(np.maximum(numbers, self.first), self.last)
        return within


@dataclass(frozen=True, slots=True)
class BinScale:
    """The scale of a whole dimension, whose integers are bins from `first` to `last`.

    See `Frame` for the others.
    """

    first: float
    last: float
    low: float
    span: float
    log: bool


@dataclass(frozen=True, slots=True)
class BinShapes:
    """The shapes of some bins of a dimension.

    ends: (2, bins), the left and right ends.
    columns: (4, bins): the middle², the middle and 1, all 0 for a wide bin, and the log of the
        width of a narrow bin.
    wide: whether each bin is wide.
    """

    ends: Floats
    columns: Floats
    wide: list[bool]


def shapes_of(scale: BinScale, values: Floats) -> BinShapes:
    ends = np.stack([values - 0.5, values + 0.5])
    length = np.ones_like(values)
    if scale.log:
        ends = np.log(ends)
        # Not right - left: with a billion bins, these two agree in most of their digits.
        length = 2.0 * np.arctanh(0.5 / values)
    ends = (ends - scale.low) / scale.span
    width = length / scale.span
    wide = width > NARROW
    middle = np.where(wide, 0.0, 0.5 * (ends[0] + ends[1]))
    narrow_width = np.where(wide, 0.0, np.log(width))
    columns = np.stack([middle * middle, middle, np.where(wide, 0.0, 1.0), narrow_width])
    return BinShapes(ends, columns, wide.tolist())


@lru_cache(maxsize=64)
def all_shapes(scale: BinScale) -> BinShapes | None:
    """Return the shapes of all bins of a dimension, or None if there are too many to keep."""
    count = scale.last - scale.first + 1
    if count <= MOST_SHAPES:
        return shapes_of(scale, np.arange(scale.first, scale.last + 1))
    return None


@dataclass(frozen=True, slots=True)
class Bins:
    """The bins of one dimension that contain candidates.

    row: the position of the dimension among the numeric ones.
    wide, narrow: (2, bins), the left and right ends of the distinct wide and narrow bins.
    wide_index, narrow_index: (candidates,), the index of each candidate's bin among those; -1 for
        none of them.
    """

    row: int
    wide: Floats
    narrow: Floats
    wide_index: Indexes
    narrow_index: Indexes

    def part(self, here: slice) -> Bins:
        return Bins(
            self.row, self.wide, self.narrow, self.wide_index[here], self.narrow_index[here]
        )


@dataclass(frozen=True, slots=True)
class CandidatePoints:
    """Candidates, with the parts of their density that do not depend on the mixture.

    numbers: (dimensions, candidates).
    features: (candidates, 3 * numeric): place², place and 1; all three are 0 for a wide bin.
    log_width: (candidates,), the sum of the log widths of the candidate's narrow bins.
    """

    numbers: Floats
    features: Floats
    log_width: Floats
    bins: tuple[Bins, ...]

    def part(self, here: slice) -> CandidatePoints:
        bins = tuple(b.part(here) for b in self.bins)
        return CandidatePoints(
            self.numbers[:, here], self.features[here], self.log_width[here], bins
        )


def points(frame: Frame, numbers: Floats) -> CandidatePoints:
    """Return the candidates with their features. numbers: (dimensions, candidates)."""
    numeric = numbers[frame.numeric]
    places = (frame.scaled(numeric) - frame.low) / frame.span
    features = np.stack([places * places, places, np.ones_like(places)])
    log_width = np.zeros(numbers.shape[1])
    bins: list[Bins] = []
    for row, scale in frame.bins:
        shapes = all_shapes(scale)
        if shapes is None:
            values, of = np.unique(numeric[row], return_inverse=True)
            shapes = shapes_of(scale, values)
        else:
            of = (numeric[row] - scale.first).astype(np.intp)
        columns = shapes.columns[:, of]
        features[:, row] = columns[:3]
        log_width += columns[3]
        bins.append(_bins(row, shapes, of.tolist()))
    flat = features.reshape(-1, numbers.shape[1])
    return CandidatePoints(numbers, np.ascontiguousarray(flat.T), log_width, tuple(bins))


def _bins(row: int, shapes: BinShapes, of: list[int]) -> Bins:
    """Return the distinct bins of candidates.

    `of` is the index of each candidate's bin in `shapes`.
    """
    distinct = sorted(set(of))
    wide = [k for k in distinct if shapes.wide[k]]
    narrow = [k for k in distinct if not shapes.wide[k]]
    return Bins(
        row,
        shapes.ends[:, wide],
        shapes.ends[:, narrow],
        _indexes_in(wide, of),
        _indexes_in(narrow, of),
    )


def _indexes_in(some: list[int], of: list[int]) -> Indexes:
    """Return where each element of `of` is in `some`, -1 where it is not."""
    index = {k: at for at, k in enumerate(some)}
    return np.array([index.get(k, -1) for k in of], dtype=np.intp)
