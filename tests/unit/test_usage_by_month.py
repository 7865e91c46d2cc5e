"""What an attempt has used in each calendar month, and what a TenantBudget says of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

import pytest

from controller.core.model import Attempt, AttemptState
from controller.core.spending import Spent, month_of, next_month, spent_by_month
from controller.operator.tenant_budgets import (
    MonthlyLimits,
    TenantBudget,
    limits_reached,
    status_of,
)

NEW = Attempt(0, 1, gpus=2.0, price_per_hour=3.0)
EVE = datetime(2026, 11, 30, 23, tzinfo=UTC)


def ran(start: datetime, end: datetime) -> Attempt:
    return replace(NEW, state=AttemptState.SUCCEEDED, start_time=start, end_time=end)


def used(attempt: Attempt, now: datetime = EVE) -> dict[str, Spent]:
    return dict(spent_by_month(attempt, now=now))


def test_an_attempt_counts_in_each_month_for_the_time_that_it_ran_there() -> None:
    over_new_year = ran(datetime(2026, 11, 30, 22, tzinfo=UTC), datetime(2027, 1, 1, 3, tzinfo=UTC))
    assert used(over_new_year) == {
        "2026-11": Spent(4, 6),
        "2026-12": Spent(2 * 31 * 24, 3 * 31 * 24),
        "2027-01": Spent(6, 9),
    }


def test_an_attempt_that_runs_counts_until_now() -> None:
    running = replace(NEW, state=AttemptState.RUNNING, start_time=EVE)
    assert used(running, EVE + timedelta(hours=3)) == {
        "2026-11": Spent(2, 3),
        "2026-12": Spent(4, 6),
    }


def test_the_end_of_a_month_belongs_to_it() -> None:
    assert used(ran(EVE, EVE + timedelta(hours=1))) == {"2026-11": Spent(2, 3)}


def test_what_waits_uses_nothing_and_an_end_before_the_start_neither() -> None:
    assert used(NEW) == {"2026-11": Spent(0, 0)}
    assert used(ran(EVE, EVE - timedelta(minutes=5))) == {"2026-11": Spent(0, 0)}
    starts_later = replace(NEW, state=AttemptState.RUNNING, start_time=EVE + timedelta(minutes=5))
    assert used(starts_later) == {"2026-11": Spent(0, 0)}


def test_time_before_a_queue_took_its_place_back_is_in_the_ledger_already() -> None:
    attempt = replace(ran(EVE, EVE + timedelta(hours=2)), earlier_s=3600)
    assert used(attempt) == {"2026-11": Spent(2, 3), "2026-12": Spent(2, 3)}


def test_months_are_those_of_utc() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert month_of(datetime(2026, 12, 1, 3, tzinfo=tokyo)) == "2026-11"
    assert next_month(datetime(2027, 1, 31, 12, tzinfo=UTC)) == datetime(2027, 2, 1, tzinfo=UTC)
    assert next_month(datetime(2028, 2, 29, tzinfo=UTC)) == datetime(2028, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("spent", "state"),
    [(Spent(9.99, 0), "within"), (Spent(10, 0), "spent"), (Spent(0, 5), "spent")],
)
def test_a_budget_is_used_up_at_one_of_its_limits(spent: Spent, state: str) -> None:
    assert said(spent)["state"] == state


def said(spent: Spent, now: datetime = EVE, **changes: object) -> dict[str, Any]:
    """Return the status of a budget of 10 GPU-hours and 5 of cost."""
    about = {"name": "vision", "generation": 3}
    budget = {"metadata": about, "spec": {"gpuHours": 10, "cost": 5}, **changes}
    return status_of(cast("TenantBudget", budget), spent, now)


def test_a_budget_says_what_is_used_up_and_until_when() -> None:
    assert said(Spent(10.25, 6)) == {
        "month": "2026-11",
        "state": "spent",
        "gpuHours": 10.25,
        "cost": 6,
        "observedGeneration": 3,
        "reason": "10.25 of 10 GPU-hours and 6 of 5 of cost of 2026-11 are used; until "
        "2026-12-01 (UTC), or a higher TenantBudget",
    }


def test_a_new_month_begins_with_nothing_used() -> None:
    status = said(Spent(), next_month(EVE))
    assert (status["month"], status["state"]) == ("2026-12", "within")


LIMITS = {"gpuHours": 10, "cost": 5, "overrun": "stop"}


JUST_BELOW = Spent(9.999, 3)


def held(stopped: Spent, used: Spent = JUST_BELOW, **limits: object) -> dict[str, Any]:
    """Return the status of a budget for which attempts were stopped in this month."""
    budget = {"metadata": {"name": "vision", "generation": 3}, "spec": {**LIMITS, **limits}}
    return status_of(cast("TenantBudget", budget), used, EVE, stopped)


def test_a_limit_that_has_stopped_attempts_stays_reached_although_they_used_less() -> None:
    status = held(Spent(10, 0))
    assert (status["state"], status["gpuHours"]) == ("spent", 9.999)
    assert status["reason"] == (
        "attempts were stopped at the limit of 10 GPU-hours of 2026-11; until 2026-12-01 (UTC), "
        "or a higher TenantBudget"
    )
    assert "limit of 10 GPU-hours and 5 of cost of 2026-11;" in held(Spent(10, 5))["reason"]
    assert held(Spent(10, 0), overrun="finish")["state"] == "within"


@pytest.mark.parametrize(("limit", "state"), [(8, "spent"), (10, "spent"), (11, "within")])
def test_such_a_limit_holds_until_it_is_raised(limit: float, state: str) -> None:
    assert held(Spent(10, 0), Spent(7, 0), gpuHours=limit)["state"] == state


def test_what_is_used_up_is_said_rather_than_what_was_stopped() -> None:
    assert held(Spent(10, 0), Spent(10.2, 1))["reason"].startswith("10.2 of 10 GPU-hours of ")


@pytest.mark.parametrize(
    ("used", "reached"),
    [(Spent(9, 4), Spent()), (Spent(10, 4), Spent(10, 0)), (Spent(12, 7), Spent(10, 5))],
)
def test_a_limit_that_is_reached_is_noted_as_it_is(used: Spent, reached: Spent) -> None:
    assert limits_reached(cast("MonthlyLimits", LIMITS), used) == reached
    assert limits_reached({"cost": 5}, used).gpu_hours == 0
