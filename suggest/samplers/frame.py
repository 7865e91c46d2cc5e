"""The dimensions that a model and its candidates share: scales, bins and places.

Pure functions of arrays. A point is a column of numbers, one per dimension; stepped values and choices are encoded as
their index. A place is a position within the dimension's span, from 0 to 1 on its scale. An integer is a bin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from suggest.samplers.normal import Floats, Indexes

# The largest width of a narrow bin, as a share of the span. Kernels are at least a hundredth of the span wide, so such
# a bin covers at most a quarter of a kernel.
NARROW = 0.0025


@dataclass(frozen=True, slots=True)
class Dimension:
    """The real numbers from `first` to `last`, or with `whole` the integers; with `choice`, they are unordered."""

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
    log_unit: the log of the volume of the continuous dimensions.
    """

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        numeric = [d for d in dimensions if not d.choice]
        self.size = len(dimensions)
        self.numeric = np.array([k for k, d in enumerate(dimensions) if not d.choice], dtype=np.intp)
        self.choices = [(k, d.last + 1.0) for k, d in enumerate(dimensions) if d.choice]
        self.first = np.array([d.first for d in numeric]).reshape(-1, 1)
        self.last = np.array([d.last for d in numeric]).reshape(-1, 1)
        self.log = np.array([k for k, d in enumerate(numeric) if d.log], dtype=np.intp)
        self.whole = np.array([k for k, d in enumerate(numeric) if d.whole], dtype=np.intp)
        self.whole_log = np.array([d.log for d in numeric if d.whole], dtype=np.bool_)
        half = np.array([0.5 if d.whole else 0.0 for d in numeric]).reshape(-1, 1)
        self.low = self.scaled(self.first - half)
        span = self.scaled(self.last + half) - self.low
        self.span = np.where(span > 0, span, 1.0)  # neighboring doubles may have the same logarithm
        self.log_unit = float(np.log(self.span[[k for k, d in enumerate(numeric) if not d.whole]]).sum())

    def scaled(self, numbers: Floats) -> Floats:
        """Return the numeric rows on their dimensions' scales. numbers: (numeric, points)."""
        if self.log.size:
            numbers = numbers.copy()
            numbers[self.log] = np.log(numbers[self.log])
        return numbers


@dataclass(frozen=True, slots=True)
class Bins:
    """The bins of one dimension that contain candidates.

    row: the position of the dimension among the numeric ones.
    wide, narrow: (2, bins), the left and right ends of the distinct wide and narrow bins.
    wide_place, narrow_place: (candidates,), the index of each candidate's bin among those; -1 for none of them.
    """

    row: int
    wide: Floats
    narrow: Floats
    wide_place: Indexes
    narrow_place: Indexes

    def part(self, here: slice) -> Bins:
        return Bins(self.row, self.wide, self.narrow, self.wide_place[here], self.narrow_place[here])


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
        return CandidatePoints(self.numbers[:, here], self.features[here], self.log_width[here], bins)


def points(frame: Frame, numbers: Floats) -> CandidatePoints:
    """Return the candidates with their features. numbers: (dimensions, candidates)."""
    numeric = numbers[frame.numeric]
    places = (frame.scaled(numeric) - frame.low) / frame.span
    features = np.concatenate([places * places, places, np.ones_like(places)])
    log_width = np.zeros(numbers.shape[1])
    bins: list[Bins] = []
    for row, log in zip(frame.whole.tolist(), frame.whole_log.tolist(), strict=True):
        values, of = np.unique(numeric[row], return_inverse=True)
        ends = np.stack([values - 0.5, values + 0.5])
        ends = ((np.log(ends) if log else ends) - frame.low[row]) / frame.span[row]
        # Not right - left: with a billion bins, these two agree in most of their digits.
        width = (2.0 * np.arctanh(0.5 / values) if log else np.ones_like(values)) / frame.span[row]
        wide = width > NARROW
        middle = np.where(wide, 0.0, 0.5 * (ends[0] + ends[1]))[of]
        features[row :: len(numeric)] = middle * middle, middle, np.where(wide, 0.0, 1.0)[of]
        log_width += np.where(wide, 0.0, np.log(width))[of]
        wide_place, narrow_place = np.where(wide, np.cumsum(wide) - 1, -1), np.where(wide, -1, np.cumsum(~wide) - 1)
        bins.append(Bins(row, ends[:, wide], ends[:, ~wide], wide_place[of], narrow_place[of]))
    return CandidatePoints(numbers, np.ascontiguousarray(features.T), log_width, tuple(bins))
