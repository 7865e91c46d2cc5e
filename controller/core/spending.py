"""What attempts use: GPU-hours, and money by the prices of what they request.

An attempt counts from its start to its end, whatever its end: retries and pruned attempts too.
While it waits, it counts nothing. What it requests, and its price, are recorded when it is created,
so that a later revision changes neither. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from controller.core.model import Attempt

HOUR_S = 3600.0
GIB = float(1 << 30)
MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Spent:
    """GPU-hours and money of attempts; as a rate, of one hour."""

    gpu_hours: float = 0.0
    cost: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.gpu_hours + other.gpu_hours, self.cost + other.cost)

    def at_least(self, other: Spent) -> Spent:
        return Spent(max(self.gpu_hours, other.gpu_hours), max(self.cost, other.cost))

    def times(self, factor: float) -> Spent:
        return Spent(self.gpu_hours * factor, self.cost * factor)


NOTHING_SPENT = Spent()


def rate_of(attempt: Attempt) -> Spent:
    """Return what an hour of the attempt uses."""
    return Spent(attempt.gpus, attempt.price_per_hour)


def spent_by(attempt: Attempt, *, now: datetime) -> Spent:
    """Return what the attempt has used until `now`, or until its end."""
    if not (attempt.gpus or attempt.price_per_hour):
        return NOTHING_SPENT
    return rate_of(attempt).times(attempt.ran_s(now) / HOUR_S)


def spent_by_all(attempts: Iterable[Attempt], *, now: datetime) -> Spent:
    return sum((spent_by(attempt, now=now) for attempt in attempts), NOTHING_SPENT)


def month_of(time: datetime) -> str:
    """Return the month of a time in UTC, such as 2026-11."""
    return f"{time.astimezone(UTC):%Y-%m}"


def month_begin(time: datetime) -> datetime:
    """Return when the month of a time began, in UTC."""
    return time.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def next_month(time: datetime) -> datetime:
    """Return when the month of a time ends, in UTC."""
    return (month_begin(time) + timedelta(days=31)).replace(day=1)


def spent_by_month(attempt: Attempt, *, now: datetime) -> Iterator[tuple[str, Spent]]:
    """Yield what the attempt has used from its latest start to its end, or `now`, in each month."""
    end = attempt.end_time or now
    begin = min(attempt.start_time or end, end)
    while True:
        until = min(next_month(begin), end)
        ran_s = (until - begin).total_seconds()
        yield month_of(begin), rate_of(attempt).times(ran_s / HOUR_S)
        if until == end:
            return
        begin = until


def price_per_hour(prices: Mapping[str, float], requested: Mapping[str, float]) -> float:
    """Return the price of an hour.

    Args:
        prices: Of an hour of one unit of each resource, and of one GiB of memory. Resources without
            a price cost nothing.
        requested: The amounts by resource; memory in bytes.
    """
    return sum(
        price * requested.get(name, 0.0) / (GIB if name == MEMORY else 1.0)
        for name, price in prices.items()
    )
