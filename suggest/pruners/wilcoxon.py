"""The rule of Wilcoxon's signed-rank test: stop a trial that is worse
than the best one, fold by fold.

For steps that repeat one measurement, such as the folds of a cross-validation or random seeds.
Their order has no meaning, and the same step of two trials is the same fold. The best trial is the
succeeded one with the best mean. As in Optuna's WilcoxonPruner, a trial whose mean is not worse
continues, whatever the test says. Wilcoxon 1945; zeros are split between both sides.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from suggest.curves import Curve, TrialCurve
from suggest.pruners.pruner import GO_ON, Rule
from suggest.settings import setting
from suggest.study import Objective
from suggest.trial import StopAdvice, TrialState

# Up to this number of differences the p-value is exact; with more, it is the normal approximation.
EXACT = 50


@dataclass(frozen=True, slots=True)
class WilcoxonSettings:
    p_threshold: float = setting(
        0.1,
        "a trial stops if the p-value of being no worse than the best trial is lower",
        min=0,
        max=1,
    )
    min_steps: int = setting(
        2, "steps in common with the best trial that a judgment requires", min=2
    )


class WilcoxonPruner:
    def __init__(self, objective: Objective, settings: WilcoxonSettings) -> None:
        self._objective = objective
        self._settings = settings
        self._best: tuple[float, int, Curve] | None = None  # mean loss, number, curve

    def put(self, trial: TrialCurve) -> None:
        if trial.state is not TrialState.SUCCEEDED or not all(
            map(math.isfinite, trial.curve.values)
        ):
            return
        mean = self._objective.direction.sign * _mean(trial.curve.values)
        if self._best is None or (mean, trial.number) < self._best[:2]:
            self._best = mean, trial.number, trial.curve

    def judge(self, trial: TrialCurve, *, before: int | None) -> StopAdvice:
        curve, sign = trial.curve, self._objective.direction.sign
        if self._best is None or not all(map(math.isfinite, curve.values)):
            return GO_ON
        mean, number, best = self._best
        theirs = dict(zip(best.steps, best.values, strict=True))
        worse_by = [
            sign * (v - theirs[s])
            for s, v in zip(curve.steps, curve.values, strict=True)
            if s in theirs
        ]
        if len(worse_by) < self._settings.min_steps or sign * _mean(curve.values) <= mean:
            return GO_ON
        p = signed_rank_p(worse_by)
        if p >= self._settings.p_threshold:
            return GO_ON
        lost = sum(each > 0 for each in worse_by)
        return StopAdvice(
            True,
            f"{self._objective.metric} is worse than that of trial {number}, the best, at {lost} "
            f"of {len(worse_by)} steps (p = {p:.2g} in a signed-rank test, below "
            f"{self._settings.p_threshold:g})",
        )


def _mean(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        # The sum is not a double, but the mean is; this rounds each value.
        return math.fsum(value / len(values) for value in values)


def signed_rank_p(differences: Sequence[float]) -> float:
    """Return the one-sided p-value of Wilcoxon's signed-rank test.

    The alternative is that differences tend to be positive.

    Equals `scipy.stats.wilcoxon(…, alternative="greater", zero_method="zsplit")`, except that SciPy
    approximates the p-value of at most 50 differences with ties, which is exact here.
    """
    # Twice the rank, so that it is whole; the difference.
    ranks: list[tuple[int, float]] = []
    ties = 0
    for _, group in groupby(sorted(differences, key=abs), key=abs):
        tied = list(group)
        ranks += [(2 * len(ranks) + 1 + len(tied), each) for each in tied]
        ties += len(tied) ** 3 - len(tied)
    n, zeros = len(ranks), sum(rank for rank, each in ranks if each == 0)
    positive = sum(rank for rank, each in ranks if each > 0)
    if n > EXACT:
        z = ((positive + zeros / 2) / 2 - n * (n + 1) / 4) / math.sqrt(
            (n * (n + 1) * (2 * n + 1) - ties / 2) / 24
        )
        return 0.5 * math.erfc(z / math.sqrt(2))
    # Count the choices of signs for each sum of positive ranks. The counts are the coefficients of
    # a polynomial, and because they are below 2**50, they fit as 64-bit digits into one integer.
    ways, nonzero = 1, [rank for rank, each in ranks if each != 0]
    for rank in nonzero:
        ways += ways << (64 * rank)
    counted = array("Q", ways.to_bytes(8 * (sum(nonzero) + 1), "little"))
    if sys.byteorder == "big":
        counted.byteswap()
    return sum(counted[positive:]) / 2.0 ** len(nonzero)


ENTRIES = (
    Rule(
        "wilcoxon",
        "Stops a trial that is worse than the best one by a signed-rank test; for steps that are "
        "folds or seeds.",
        WilcoxonSettings,
        WilcoxonPruner,
    ),
)
