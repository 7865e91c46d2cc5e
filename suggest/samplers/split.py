"""Which trials TPE counts as good, and their weights: Optuna's rules, on arrays.

Pure functions. Arrays are in the order of the trial numbers.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from suggest import pareto
from suggest.samplers.normal import Flags, Floats, Indexes
from suggest.study import Criteria
from suggest.trial import Trial, TrialState

MOST_GOOD = 25
# objectives; computing a hypervolume takes too long with more.
MOST_MEASURED = 4
# How many of the most recent trials have the full weight.
AS_RECENT = 25


def rank(trial: Trial, criteria: Criteria) -> tuple[float, float, float]:
    """Return the trial's sort key: the trials with the smallest keys are good.

    Equal keys are ordered by number.

    Optuna's order: succeeded trials come first, by their first loss; then pruned trials, those with
    more steps first; then trials that were pruned without a value; last the trials that break a
    constraint, by how much they break it.
    """
    sign = criteria.objectives[0].direction.sign
    if trial.state is TrialState.SUCCEEDED:
        loss = 0.0 if trial.value is None else sign * trial.value
        violation = criteria.violation(trial)
        return (0.0, loss, 0.0) if violation == 0 else (2.0, violation, loss)
    if trial.value is None or trial.step is None:
        return 1.0, 1.0, 0.0
    return 1.0, -float(trial.step), sign * trial.value


def nondomination_ranks(losses: Floats) -> Indexes:
    """Return how many fronts precede each trial's, (trials,). losses: (objectives, trials)."""
    at_least: Flags = np.all(losses[:, :, None] <= losses[:, None, :], axis=0)
    dominates: Flags = at_least & ~at_least.T
    found = np.full(losses.shape[1], -1, dtype=np.intp)
    for level in range(losses.shape[1]):
        open_ = found < 0
        if not open_.any():
            break
        beaten: Flags = np.any(dominates[open_], axis=0)
        found[open_ & ~beaten] = level
    return found


def by_fronts(ranks: Floats, losses: Floats, good: int) -> Floats:
    """Return the keys of `rank` with succeeded trials ordered by several objectives instead of one.

    Trials are ordered front by front. If only a part of a front belongs to the `good` best trials,
    its trials are ordered by greedy hypervolume subset selection (Ozaki et al., 2022).

    Args:
        ranks: (3, trials).
        losses: (objectives, trials).
        good: How many trials are good.
    """
    found = ranks.copy()
    kept = np.flatnonzero(ranks[0] == 0.0)
    levels = nondomination_ranks(losses[:, kept])
    found[1, kept], found[2, kept] = levels, 0.0
    before = 0
    for level in range(int(levels.max(initial=-1)) + 1):
        members = kept[levels == level]
        if before < good < before + len(members):
            for rank, k in enumerate(most_spread(losses[:, members], good - before)):
                found[2, members[k]] = rank - len(members)
        before += len(members)
    return found


def most_spread(losses: Floats, count: int) -> list[int]:
    """Return the indexes of `count` points, chosen greedily by the hypervolume that they add.

    With more than MOST_MEASURED objectives, they are those
    with the smallest sum of normalized losses.

    losses: (objectives, points).
    """
    low, high = losses.min(axis=1, keepdims=True), losses.max(axis=1, keepdims=True)
    normalized = (losses - low) / np.where(high > low, high - low, 1.0)
    if len(losses) > MOST_MEASURED:
        return [int(k) for k in np.argsort(normalized.sum(axis=0), kind="stable")[:count]]
    points = normalized.T.tolist()
    reference = [1.1] * len(losses)
    chosen: list[int] = []
    held = 0.0
    gains = dict.fromkeys(range(len(points)), np.inf)
    for _ in range(min(count, len(points))):
        best, most = -1, -1.0
        # A point's gain only decreases as other points are chosen,
        # so its earlier gain is an upper bound.
        for index in sorted(gains, key=lambda index: -gains[index]):
            if gains[index] <= most:
                break
            gain = pareto.hypervolume([points[k] for k in (*chosen, index)], reference) - held
            gains[index] = gain
            if gain > most:
                best, most = index, gain
        chosen.append(best)
        held += most
        del gains[best]
    return chosen


def good_and_other(ranks: Floats, share: float) -> tuple[Indexes, Indexes]:
    """Return the indexes of the good trials, which are this share of all, and of the others.

    ranks: (3, trials).
    """
    count = ranks.shape[1]
    order = np.lexsort(ranks[::-1])
    good = good_count(count, share)
    order[:good].sort()
    order[good:].sort()
    return order[:good], order[good:]


def good_count(count: int, share: float) -> int:
    return min(math.ceil(share * count), MOST_GOOD)


@functools.lru_cache(maxsize=64)
def shares(count: int) -> Floats:
    """Return the weights of this number of trials, in their order, then of the prior.

    Their sum is 1.
    """
    weights = np.ones(count + 1)
    if count >= AS_RECENT:
        weights[: count - AS_RECENT] = np.linspace(1.0 / count, 1.0, num=count - AS_RECENT)
    weights /= weights.sum()
    # Every caller gets the same array.
    weights.flags.writeable = False
    return weights


@functools.lru_cache(maxsize=64)
def log_shares(count: int) -> Floats:
    found: Floats = np.log(shares(count))
    found.flags.writeable = False
    return found
