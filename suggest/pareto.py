"""Several objectives: which points are not dominated, and the volume that they dominate.

Pure functions on losses: the smaller, the better, in each objective. A point dominates another one
if it is at least as good in each objective and better in one.
"""

from __future__ import annotations

from collections.abc import Sequence

Losses = Sequence[float]


def dominates(one: Losses, other: Losses) -> bool:
    return _as_good(one, other) and tuple(one) != tuple(other)


def front(points: Sequence[Losses]) -> list[int]:
    """Return the indexes of the points that no other one dominates, ascending.

    Of equal points only the first counts. The time grows with the number
    of points times that of the front.
    """
    kept: list[int] = []
    # In lexicographic order no point is dominated by a later one.
    for index in sorted(range(len(points)), key=lambda index: (tuple(points[index]), index)):
        if not any(_as_good(points[other], points[index]) for other in reversed(kept)):
            kept.append(index)
    return sorted(kept)


def _as_good(one: Losses, other: Losses) -> bool:
    """Return whether one point is at least as good as the other in each objective."""
    return all(a <= b for a, b in zip(one, other, strict=True))


def compromise(points: Sequence[Losses], weights: Sequence[float]) -> int:
    """Return the index of the point with the smallest weighted sum of losses.

    Of equal points the first counts. Each objective is scaled to [0, 1] between its best and its
    worst value among the points. With equal weights this is the knee of a front: the point farthest
    below the hyperplane through the best points of each objective (Das, 1999).

    Raises:
        ValueError: There are no points.
    """
    scaled = _scaled(points)
    sums = [sum(w * x for w, x in zip(weights, point, strict=True)) for point in scaled]
    return sums.index(min(sums))


def _scaled(points: Sequence[Losses]) -> list[list[float]]:
    """Return the points with each objective scaled to [0, 1]; 0 if it has a single value."""
    sides = [(min(axis), max(axis)) for axis in zip(*points, strict=True)]

    def scaled(x: float, side: tuple[float, float]) -> float:
        low, high = side
        return (x - low) / (high - low) if high > low else 0.0

    return [[scaled(x, side) for x, side in zip(p, sides, strict=True)] for p in points]


def hypervolume(points: Sequence[Losses], reference: Losses) -> float:
    """Return the volume that the points dominate, bounded by the reference point.

    Computed by slices along the last objective (HSO; While et al., 2006). Exact. For two objectives
    the time is that of sorting, and each further objective multiplies it by the number of points.
    """
    inside = [tuple(p) for p in points if all(a < b for a, b in zip(p, reference, strict=True))]
    return _volume([inside[k] for k in front(inside)], tuple(reference))


def dominated_share(points: Sequence[Losses]) -> float:
    """Return the share, from 0 to 1, of the hypervolume that the points dominate.

    The hypervolume lies between the best and the worst value of each objective among all points.

    It needs no reference point, but cannot be compared between studies,
    because each has its own box.
    """
    if not points:
        return 0.0
    return hypervolume(_scaled(points), [1.0] * len(points[0]))


def _volume(points: list[tuple[float, ...]], reference: tuple[float, ...]) -> float:
    """points: none of them dominates another one, and each dominates the reference."""
    if not points:
        return 0.0
    if len(reference) == 1:
        return reference[0] - min(points)[0]
    if len(reference) == 2:
        total, height = 0.0, reference[1]
        for first, second in sorted(points):
            total += (reference[0] - first) * (height - second)
            height = second
        return total
    ordered = sorted(points, key=lambda p: p[-1])
    total = 0.0
    begins = [point[-1] for point in ordered]
    ends = [*begins[1:], reference[-1]]
    for count, (begin, end) in enumerate(zip(begins, ends, strict=True), start=1):
        if end > begin:
            slab = [point[:-1] for point in ordered[:count]]
            base = _volume([slab[k] for k in front(slab)], reference[:-1])
            total += base * (end - begin)
    return total
