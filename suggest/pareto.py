"""Several objectives: which points are not dominated, and the volume that they dominate.

Pure functions on losses: the smaller, the better, in each objective. A point dominates another one
if it is at least as good in each objective and better in one.
"""

from __future__ import annotations

from collections.abc import Sequence

Losses = Sequence[float]


def dominates(one: Losses, other: Losses) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def front(points: Sequence[Losses]) -> list[int]:
    """Return the indexes of the points that no other one dominates, ascending.

    Of equal points only the first counts. The time grows with the number
    of points times that of the front.
    """
    kept: list[int] = []
    # In lexicographic order no point is dominated by a later one.
    for place in sorted(range(len(points)), key=lambda place: (tuple(points[place]), place)):
        point = points[place]
        if not any(
            all(a <= b for a, b in zip(points[other], point, strict=True))
            for other in reversed(kept)
        ):
            kept.append(place)
    return sorted(kept)


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
    return [
        [
            (x - low) / (high - low) if high > low else 0.0
            for x, (low, high) in zip(point, sides, strict=True)
        ]
        for point in points
    ]


def hypervolume(points: Sequence[Losses], reference: Losses) -> float:
    """Return the volume that the points dominate, bounded by the reference point.

    Computed by slices along the last objective (HSO; While et al., 2006). Exact. For two objectives
    the time is that of sorting, and each further objective multiplies it by the number of points.
    """
    inside = [tuple(p) for p in points if all(a < b for a, b in zip(p, reference, strict=True))]
    return _volume([inside[place] for place in front(inside)], tuple(reference))


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
    for place, point in enumerate(ordered):
        end = ordered[place + 1][-1] if place + 1 < len(ordered) else reference[-1]
        if end > point[-1]:
            slab = [p[:-1] for p in ordered[: place + 1]]
            total += _volume([slab[k] for k in front(slab)], reference[:-1]) * (end - point[-1])
    return total
