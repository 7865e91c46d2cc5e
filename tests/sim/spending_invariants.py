"""Invariants of budgets of GPU-hours and money, which are counted here from the stored attempts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from controller.core.model import Attempt, Experiment, ExperimentSpec
from tests.sim.invariant import InvariantViolation

GPUS = 2
# One unit of money for each second of an attempt.
CORES, PRICES = 1.0, {"cpu": 3600.0}


def used(attempts: Sequence[Attempt], now: datetime) -> tuple[float, float]:
    """Return the GPU-hours and the money of attempts that all request the same."""
    seconds = 0.0
    for attempt in attempts:
        seconds += attempt.earlier_s
        if attempt.start_time is not None:
            seconds += ((attempt.end_time or now) - attempt.start_time).total_seconds()
    return GPUS * seconds / 3600, seconds


def is_used_up(spec: ExperimentSpec, attempts: Sequence[Attempt], now: datetime) -> bool:
    gpu_hours, cost = used(attempts, now)
    budget = spec.budget
    return (budget.gpu_hours is not None and gpu_hours >= budget.gpu_hours - 1e-9) or (
        budget.cost is not None and cost >= budget.cost - 1e-6
    )


def check_begins_within_budget(
    spec: ExperimentSpec, begun: Sequence[Attempt], before: Sequence[Attempt], now: datetime
) -> None:
    gpu_hours, cost = used(before, now)
    budget = spec.budget
    for name, limit, so_far in (
        ("GPU-hours", budget.gpu_hours, gpu_hours),
        ("units of money", budget.cost, cost),
    ):
        if limit is not None and so_far > limit + 1e-6:
            raise InvariantViolation(
                f"{so_far} {name} are used, the budget is {limit}, and these begin: {begun}"
            )


def check_sum(told: Experiment, attempts: Sequence[Attempt], now: datetime) -> None:
    """Check what the experiment says that it has used."""
    if not told.spec.is_metered:
        return
    gpu_hours, cost = used(attempts, now)
    if not math.isclose(told.gpu_hours, gpu_hours, abs_tol=1e-6):
        raise InvariantViolation(f"{gpu_hours} GPU-hours were used, told as {told.gpu_hours}")
    if not math.isclose(told.cost, cost, abs_tol=1e-6):
        raise InvariantViolation(f"{cost} units of money were used, told as {told.cost}")
