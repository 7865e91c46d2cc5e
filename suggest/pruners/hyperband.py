"""Hyperband with ASHA: several brackets, each of which begins to stop trials at a different rung.

Li et al. 2018, "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", algorithm
1. Brackets are asynchronous, as in Li et al. 2020. As in Optuna's HyperbandPruner, a hash of the
trial's number chooses its bracket, in proportion to the brackets' budgets, and trials are compared
within their bracket. `asha` explains the role of order.

Without `maxSteps`, the longest succeeded trial determines it, and no trial is
stopped before one has succeeded. If a longer trial succeeds later and adds brackets,
all trials are assigned to brackets again.
"""

from __future__ import annotations

import math
from array import array
from binascii import crc32
from collections.abc import Iterator
from dataclasses import dataclass

from suggest.curves import TrialCurve
from suggest.errors import Problem
from suggest.pruners.asha import COUNTED, AshaSettings, Rungs
from suggest.pruners.pruner import GO_ON, Rule
from suggest.settings import setting
from suggest.study import Objective
from suggest.trial import StopAdvice, TrialState

# Hashed together with the trial's number, in place of the study's name in Optuna.
HASHED = "hyperband"


@dataclass(frozen=True, slots=True)
class HyperbandSettings(AshaSettings):
    max_steps: int = setting(
        0, "steps of a complete trial; 0: those of the longest succeeded trial", min=0
    )
    eta: int = setting(
        3,
        "the best 1/eta of the trials continue at each rung, and the next rung is at eta times the "
        "steps",
        min=2,
    )


def hyperband_problems(settings: HyperbandSettings) -> Iterator[Problem]:
    if 0 < settings.max_steps < settings.min_steps:
        yield Problem("maxSteps", f"{settings.max_steps} is below minSteps, {settings.min_steps}")


class HyperbandPruner:
    def __init__(self, objective: Objective, settings: HyperbandSettings) -> None:
        self._objective = objective
        self._settings = settings
        # The losses of all trials, a few numbers each.
        self._losses: dict[int, array[float]] = {}
        self._brackets: list[Rungs] = []
        self._budgets: list[int] = []
        self._reading = Rungs(objective, settings)  # only reads the losses of curves
        self._most = 0
        if settings.max_steps:
            self._distribute(settings.max_steps)

    def put(self, trial: TrialCurve) -> None:
        number = trial.number
        old = self._losses.pop(number, None) or array("d")
        new = self._reading.losses(trial.curve) if trial.state in COUNTED else array("d")
        if self._brackets:
            self._brackets[self._bracket(number)].replace(old, new)
        if new:
            self._losses[number] = new
        if not self._settings.max_steps and trial.state is TrialState.SUCCEEDED:
            self._distribute(trial.curve.steps[-1] + 1)

    def judge(self, trial: TrialCurve, *, before: int | None) -> StopAdvice:
        if not self._brackets:
            return GO_ON
        bracket = self._bracket(trial.number)
        among = f"trials of bracket {bracket + 1} of {len(self._brackets)}"
        return self._brackets[bracket].judge(trial.curve, before=before, first=bracket, among=among)

    def _distribute(self, steps: int) -> None:
        """Create the brackets for trials of this many steps, if that changes their number."""
        if steps <= self._most:
            return
        self._most = steps
        least, eta = self._settings.min_steps, self._settings.eta
        count = math.floor(math.log(max(steps, least) / least, eta)) + 1
        if count == len(self._brackets):
            return
        self._budgets = bracket_shares(count, eta)
        self._brackets = [Rungs(self._objective, self._settings) for _ in range(count)]
        for number, losses in self._losses.items():
            self._brackets[self._bracket(number)].replace(array("d"), losses)

    def _bracket(self, number: int) -> int:
        return bracket_of(number, self._budgets)


def bracket_shares(count: int, eta: int) -> list[int]:
    """Return the relative share of trials for each of `count` brackets.

    The first one has the most rungs.

    Li et al. 2018, algorithm 1: n = ceil((s_max + 1) / (s + 1) * eta**s) trials begin in bracket s.
    """
    return [math.ceil(count * eta**rungs / (rungs + 1)) for rungs in reversed(range(count))]


def bracket_of(number: int, shares: list[int]) -> int:
    """Return the bracket of a trial: by a hash of its number, in proportion to the shares."""
    left = crc32(f"{HASHED}_{number}".encode()) % sum(shares)
    for bracket, share in enumerate(shares):
        left -= share
        if left < 0:
            return bracket
    raise AssertionError("the sum of the shares is above every remainder")


ENTRIES = (
    Rule(
        "hyperband",
        "Runs asha in several brackets, some of which begin to stop trials later than others.",
        HyperbandSettings,
        HyperbandPruner,
        hyperband_problems,
    ),
)
