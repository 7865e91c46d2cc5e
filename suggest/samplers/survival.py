"""Which members of a population survive a generation: the rules of NSGA-II and NSGA-III.

Pure functions. losses: (members, objectives), smaller is better. violations: (members,),
by how much each member breaks the constraints, 0 if it keeps them. Constraint-domination
(Deb et al. 2002, section VI): a member that satisfies the constraints is better than one
that does not. If both break them, the one with the smaller violation is better. If both
keep them, they are compared by Pareto dominance.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from suggest.samplers.normal import Floats, Indexes
from suggest.samplers.split import nondomination_ranks

# Losses are clipped to this when distances are computed; their order is not affected.
LARGEST = 1e100


def levels(losses: Floats, violations: Floats) -> Indexes:
    """Return how many fronts lie before that of each member, by constraint-domination."""
    found = np.zeros(len(losses), dtype=np.intp)
    kept = violations == 0
    found[kept] = nondomination_ranks(losses[kept].T)
    if not kept.all():
        _, order = np.unique(violations[~kept], return_inverse=True)
        found[~kept] = order + found[kept].max(initial=-1) + 1
    return found


def crowding(losses: Floats) -> Floats:
    """Return the crowding distance of each member of one front (Deb et al. 2002, section III-B)."""
    bounded = np.clip(losses, -LARGEST, LARGEST)
    found = np.zeros(len(losses))
    for column in bounded.T:
        order = np.argsort(column, kind="stable")
        span = column[order[-1]] - column[order[0]]
        found[order[[0, -1]]] = np.inf
        if span > 0:
            found[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / span
    return found


def by_crowding(losses: Floats, violations: Floats, count: int) -> tuple[Indexes, Floats]:
    """Return `count` survivors of NSGA-II, the best first, and their merits (front, -crowding).

    Smaller is better.
    """
    fronts = levels(losses, violations)
    distances = np.zeros(len(losses))
    for level in range(int(fronts.max(initial=-1)) + 1):
        members = np.flatnonzero(fronts == level)
        distances[members] = crowding(losses[members])
    chosen = np.lexsort((-distances, fronts))[:count]
    return chosen, np.stack([fronts[chosen], -distances[chosen]], axis=1)


def by_reference_points(
    losses: Floats, violations: Floats, count: int, rng: np.random.Generator
) -> tuple[Indexes, Floats]:
    """Return `count` survivors of NSGA-III, and their violations as merits.

    Deb and Jain 2014, parts I and II. Members that satisfy the constraints are equal in mating.
    """
    fronts = levels(losses, violations)
    chosen = np.argsort(fronts, kind="stable")
    if len(chosen) > count:
        last = fronts[chosen[count - 1]]
        sure = np.flatnonzero(fronts < last)
        tied = np.flatnonzero(fronts == last)
        missing = count - len(sure)
        if violations[tied[0]] > 0:
            # Equal violations.
            more = tied[:missing]
        else:
            members = losses[np.concatenate([sure, tied])]
            lines = reference_points(losses.shape[1], count)
            near, distance = _associated(members, losses[fronts == 0], lines)
            more = tied[_niched(near, distance, len(sure), missing, rng)]
        chosen = np.concatenate([sure, more])
    return chosen, violations[chosen][:, None]


def _associated(members: Floats, front: Floats, lines: Floats) -> tuple[Indexes, Floats]:
    """Return the nearest reference line of each member, and its distance.

    `front` has the losses of the first front.
    """
    bounded = np.clip(members, -LARGEST, LARGEST)
    ideal = bounded.min(axis=0)
    intercepts = _intercepts(np.clip(front, -LARGEST, LARGEST) - ideal)
    scaled = (bounded - ideal) / intercepts
    lines = lines / np.linalg.norm(lines, axis=1, keepdims=True)
    along = scaled @ lines.T
    lengths = np.einsum("ij,ij->i", scaled, scaled)
    squares = np.maximum(lengths[:, None] - along * along, 0.0)
    near = np.argmin(squares, axis=1)
    distances = np.sqrt(squares[np.arange(len(near)), near])
    return near, distances


def _intercepts(front: Floats) -> Floats:
    """Return where the hyperplane through the extreme points meets each axis, (objectives,).

    If there is no such hyperplane, return the largest loss of the front on each axis.
    """
    size = front.shape[1]
    worst = front.max(axis=0)
    fallback: Floats = np.where(worst > 0, worst, 1.0)
    weights = np.where(np.eye(size) > 0, 1.0, 1e6)
    achievements = (front[None] / fallback * weights[:, None]).max(axis=2)
    extremes = front[np.argmin(achievements, axis=1)] / fallback
    try:
        plane = np.linalg.solve(extremes, np.ones(size))
    except np.linalg.LinAlgError:
        return fallback
    with np.errstate(divide="ignore"):
        found = 1.0 / plane
    is_good = np.isfinite(found) & (found > 1e-6) & (found <= 1e6)
    return found * fallback if is_good.all() else fallback


def _niched(
    near: Indexes, distance: Floats, sure: int, count: int, rng: np.random.Generator
) -> list[int]:
    """Return the indexes of `count` of the members after the first `sure` ones.

    Deb and Jain 2014, algorithm 4.
    """
    niche_counts = np.bincount(near[:sure], minlength=int(near.max()) + 1)
    waiting: dict[int, list[int]] = {}
    for member in np.argsort(distance[sure:], kind="stable").tolist():
        waiting.setdefault(int(near[sure + member]), []).append(member)
    chosen: list[int] = []
    while len(chosen) < count:
        least = min(niche_counts[line] for line in waiting)
        lines = sorted(line for line in waiting if niche_counts[line] == least)
        line = lines[int(rng.integers(len(lines)))]
        members = waiting[line]
        which = 0 if niche_counts[line] == 0 else int(rng.integers(len(members)))
        chosen.append(members.pop(which))
        niche_counts[line] += 1
        if not members:
            del waiting[line]
    return chosen


@functools.lru_cache(maxsize=16)
def reference_points(objectives: int, most: int) -> Floats:
    """Return evenly spaced weights whose sum is 1 (Das and Dennis 1998), (points, objectives).

    The set is the largest one with at most `most` points,
    but has at least one point for each objective.
    """
    divisions = 1
    while objectives > 1 and math.comb(divisions + objectives, objectives - 1) <= most:
        divisions += 1
    size = divisions + objectives - 1
    bars = itertools.combinations(range(size), objectives - 1)
    ends = np.array([(-1, *each, size) for each in bars])
    found: Floats = (np.diff(ends, axis=1) - 1) / divisions
    # Every caller gets the same array.
    found.flags.writeable = False
    return found
