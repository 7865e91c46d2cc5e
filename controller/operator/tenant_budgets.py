"""TenantBudgets: what the attempts of a namespace may use in a calendar month.

A TenantBudget has the name of its namespace, and none in it, so that tenants cannot change theirs.
While a limit is reached, no attempt of the namespace is created; those that run are not stopped.
Attempts that wait say why. Budgets are read again every LOOK_S: a month that begins, and a limit
that was raised, free what waits. While nothing can be read, the last verdicts hold.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypedDict, cast

from controller.core.attempt import RuntimeLost
from controller.core.spending import NOTHING_SPENT, Spent, month_of, next_month
from controller.kube.client import NAMESPACES, KubernetesClient
from controller.kube.custom_resource import TENANT_BUDGETS
from controller.kube.errors import ApiError
from controller.kube.objects import KubernetesObject
from controller.kube.reflector import MissingRights
from controller.operator.experiments import HostedExperiments
from suggest.backoff import Backoff
from suggest.errors import TunerError

LOOK_S = 5.0
_SHOW_S = 60.0  # between two statuses that differ in nothing but what is used
_BACKOFF = Backoff(first_s=0.5, longest_s=15.0, jitter=0.5)
_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409
# States of a TenantBudget.
WITHIN, SPENT, INVALID = "within", "spent", "invalid"
_log = logging.getLogger(__name__)


class MonthlyLimits(TypedDict, total=False):
    """What may be used in a month."""

    gpuHours: float
    cost: float


class TenantBudget(KubernetesObject, total=False):
    spec: MonthlyLimits
    status: dict[str, Any]


@dataclass(slots=True)
class TenantBudgets:
    """The budgets of all namespaces, and what each namespace has used in this month.

    namespaces: those that the controller watches; none: all. has_prices: the platform has prices.
    """

    client: KubernetesClient
    experiments: HostedExperiments
    namespaces: Sequence[str] = ()
    has_prices: bool = False
    used: Mapping[str, Spent] = field(default_factory=dict)
    _spent: dict[str, str] = field(default_factory=dict)
    _shown_s: dict[str, float] = field(default_factory=dict)
    _trouble: str = ""
    _rights: MissingRights = field(default_factory=MissingRights)

    @property
    def spent(self) -> int:
        """Return how many budgets are used up."""
        return len(self._spent)

    def reason_to_wait(self, namespace: str) -> str:
        """Return why no attempt of the namespace may be created; "" if they may."""
        return self._spent.get(namespace, "")

    async def start(self) -> None:
        """Return after the first look, which is tried again until it succeeds."""
        for failures in count():
            if await self._looked():
                return
            await asyncio.sleep(_BACKOFF.pause_s(failures))

    async def follow(self) -> None:
        """Look again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self._looked()

    async def _looked(self) -> bool:
        trouble = ""
        try:
            await self._look()
        except (ApiError, TunerError, RuntimeLost, OSError) as error:
            trouble = str(error)
        except Exception as error:  # a bug must not lift the limits for good
            _log.exception("budgets of tenants")
            trouble = f"{type(error).__name__}: {error}; this is a bug"
        if trouble not in ("", self._trouble):
            _log.warning("the budgets of tenants cannot be read or shown: %s", trouble)
        self._trouble = trouble
        return not trouble

    async def _look(self) -> None:
        budgets = await self._listed()
        now = datetime.now(UTC)
        self.used = self.experiments.used_in_month(now)
        statuses = {
            each["metadata"]["name"]: status_of(
                each["spec"],
                self.used.get(each["metadata"]["name"], NOTHING_SPENT),
                now,
                problem=await self._problem(each),
            )
            for each in budgets
        }
        self._spent = {
            name: f"TenantBudgetSpent: {status['reason']}"
            for name, status in statuses.items()
            if status["state"] == SPENT
        }
        for each in budgets:
            await self._show(each, statuses[each["metadata"]["name"]])

    async def _listed(self) -> list[TenantBudget]:
        """Return all budgets: none without the definition, or without the right to read them."""
        try:
            found, _ = await self.client.list(TENANT_BUDGETS, None)
        except ApiError as error:
            if error.status not in (_FORBIDDEN, _NOT_FOUND):
                raise
            if error.status == _FORBIDDEN:
                self._rights.denied(error, without="the budgets of tenants, which limit nothing")
            return []
        return cast("list[TenantBudget]", found)

    async def _problem(self, budget: TenantBudget) -> str:
        """Return why the budget does not do what it says; "" if it does."""
        name = budget["metadata"]["name"]
        if self.namespaces and name not in self.namespaces:
            return (
                f"metadata.name: the controller does not watch the namespace {name}; add it to the "
                "chart's value controller.watchNamespaces, or delete this budget"
            )
        if "cost" in budget["spec"] and not self.has_prices:
            return (
                "spec.cost: requires prices that tenants cannot change; set the chart's value "
                "controller.prices, or remove it"
            )
        if name in self.used:
            return ""
        try:
            await self.client.get(NAMESPACES, None, name)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                return ""
            return (
                f"metadata.name: there is no namespace {name}; a TenantBudget has the name of its "
                "namespace: create the namespace, or delete this budget"
            )
        return ""

    async def _show(self, budget: TenantBudget, status: dict[str, Any]) -> None:
        """Write the status if it has changed."""
        about, before = budget["metadata"], budget.get("status") or {}
        fixed = ("month", "state", "reason")
        is_same = all(before.get(key) == status.get(key) for key in fixed)
        now_s = time.monotonic()
        is_early = now_s < self._shown_s.get(about["uid"], 0.0) + _SHOW_S
        if status == before or (is_same and is_early and status["state"] == WITHIN):
            return
        try:
            await self.client.replace_status(
                TENANT_BUDGETS, None, about["name"], status, uid=about["uid"]
            )
        except ApiError as error:
            if error.status not in (_NOT_FOUND, _CONFLICT):
                raise
        self._shown_s[about["uid"]] = now_s


def status_of(
    limits: MonthlyLimits, used: Spent, now: datetime, *, problem: str = ""
) -> dict[str, Any]:
    """Return the status of a budget. A problem does not lift the limits that can be compared."""
    month = month_of(now)
    amounts = {"gpuHours": round(used.gpu_hours, 6), "cost": round(used.cost, 6)}
    status: dict[str, Any] = {"month": month, "state": WITHIN, **amounts}
    reached = list(_reached(limits, used))
    if reached:
        cure = f"until {next_month(now):%Y-%m-%d} (UTC), or a higher TenantBudget"
        status |= {"state": SPENT, "reason": f"{' and '.join(reached)} of {month} are used; {cure}"}
    elif problem:
        status |= {"state": INVALID, "reason": problem}
    return status


def _reached(limits: MonthlyLimits, used: Spent) -> Iterator[str]:
    gpu_hours, cost = limits.get("gpuHours"), limits.get("cost")
    if gpu_hours is not None and used.gpu_hours >= gpu_hours:
        yield f"{used.gpu_hours:.4g} of {gpu_hours:g} GPU-hours"
    if cost is not None and used.cost >= cost:
        yield f"{used.cost:.4g} of {cost:g} of cost"
