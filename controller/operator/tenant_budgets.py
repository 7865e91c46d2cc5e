"""TenantBudgets: what the attempts of a namespace may use in a calendar month.

A TenantBudget has the name of its namespace, and none in it, so that tenants cannot change theirs.
While a limit is reached, no attempt of the namespace is created; with `overrun: stop`, those that
run are stopped, and run again. Attempts that wait say why. Budgets are read again every LOOK_S: a
month that begins, and a limit that was raised, free what waits. While nothing can be read, the last
verdicts hold. Without the definition, or if the right to read them was missing from the beginning,
nothing is limited; the log, a metric and `unread` say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Any, Literal, Protocol, TypedDict, cast

from controller.core.attempt import RuntimeLost
from controller.core.spending import NOTHING_SPENT, Spent, month_of, next_month
from controller.kube.client import NAMESPACES, KubernetesClient
from controller.kube.cluster import NO_BAR, Bar
from controller.kube.custom_resource import TENANT_BUDGETS
from controller.kube.errors import ApiConflict, ApiError, ApiForbidden, ApiNotFound, rule_for
from controller.kube.objects import KubernetesObject
from controller.operator.experiments import HostedExperiments
from controller.usage_ledger import MonthUsage
from suggest.backoff import Backoff
from suggest.errors import TunerError

LOOK_S = 5.0
_SHOW_S = 60.0  # between two statuses that differ in nothing but what is used
_SEEN_S = 60.0  # between two looks at a namespace without usage
_BACKOFF = Backoff(first_s=0.5, longest_s=15.0, jitter=0.5)
# States of a TenantBudget.
WITHIN, SPENT, INVALID = "within", "spent", "invalid"
STOP = "stop"  # what `overrun` says
_NOT_DEFINED = (
    "the definition tenantbudgets.tuner.dev is not installed; set the chart's value crds.install"
)
_log = logging.getLogger(__name__)


class MonthlyLimits(TypedDict, total=False):
    """What may be used in a month, and what running attempts do when it is used up."""

    gpuHours: float
    cost: float
    overrun: Literal["finish", "stop"]


class TenantBudget(KubernetesObject, total=False):
    spec: MonthlyLimits
    status: dict[str, Any]


class BudgetClock(Protocol):
    """The API server's clock (`controller.kube.server_clock`), or a test's."""

    async def read(self) -> None: ...

    def now(self) -> datetime: ...


@dataclass(slots=True)
class TenantBudgets:
    """The budgets of all namespaces, and what each namespace has used in this month.

    namespaces: those that the controller watches; none: all. has_prices: the platform has prices.
    clock: of the times of attempts, and of the month. unread: why budgets cannot be read; "" if
    they can.
    """

    client: KubernetesClient
    experiments: HostedExperiments
    clock: BudgetClock
    namespaces: Sequence[str] = ()
    has_prices: bool = False
    used: Mapping[str, Spent] = field(default_factory=dict)
    unread: str = ""
    _bars: dict[str, Bar] = field(default_factory=dict)
    _said: dict[str, str] = field(default_factory=dict)
    _shown_s: dict[str, float] = field(default_factory=dict)
    # When the namespaces without usage were last looked at.
    _seen_s: dict[str, float] = field(default_factory=dict)
    _trouble: str = ""

    @property
    def spent(self) -> int:
        """Return how many budgets are used up."""
        return len(self._bars)

    def bar(self, namespace: str) -> Bar:
        """Return what keeps the attempts of a namespace from running."""
        return self._bars.get(namespace, NO_BAR)

    def said(self, namespace: str) -> str:
        """Return what is used of the budget of a namespace, for people; "" without a budget."""
        return self._said.get(namespace, "")

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
        """Read the budgets and show their statuses. Return whether they were read."""
        trouble, is_read = "", False
        try:
            statuses = await self._read()
            is_read = True
            trouble = await self._show(statuses)
        except (ApiError, TunerError, RuntimeLost, OSError) as error:
            trouble = str(error)
        except Exception as error:  # a bug must not lift the limits for good
            _log.exception("budgets of tenants")
            trouble = f"{type(error).__name__}: {error}; this is a bug"
        if trouble not in ("", self._trouble):
            _log.warning("the budgets of tenants cannot be read or shown: %s", trouble)
        self._trouble = trouble
        return is_read

    async def _read(self) -> list[tuple[TenantBudget, dict[str, Any]]]:
        """Read the budgets and what is used, and return each budget with its status."""
        await self.clock.read()
        now = self.clock.now()
        # In a thread: with thousands of running attempts, it takes tens of milliseconds.
        usage = await asyncio.to_thread(self.experiments.usage_in_month, now)
        self.used = {namespace: each.used for namespace, each in usage.items()}
        budgets = await self._listed()
        if budgets is None:
            return []
        statuses: list[dict[str, Any]] = []
        bars: dict[str, Bar] = {}
        said: dict[str, str] = {}
        problems = await asyncio.gather(*map(self._problem, budgets))
        for each, problem in zip(budgets, problems, strict=True):
            name = each["metadata"]["name"]
            month = usage.get(name, MonthUsage())
            status = status_of(each, month.used, now, month.stopped, problem=problem)
            statuses.append(status)
            said[name] = sentence_of(each, status)
            if status["state"] == SPENT:
                stops = each["spec"].get("overrun") == STOP
                limits = limits_reached(each["spec"], month.used)
                if stops and limits.at_least(month.stopped) != month.stopped:
                    # Record before acting: the next controller must not begin what this one stops.
                    # Not in a thread: the event loop's own writes may insert the same row.
                    self.experiments.note_limits_that_stop(name, limits, now)
                bars[name] = Bar(f"TenantBudgetSpent: {status['reason']}", stops=stops)
        self._bars, self._said = bars, said
        return list(zip(budgets, statuses, strict=True))

    async def _listed(self) -> list[TenantBudget] | None:
        """Return the budgets: none without the definition; None without the right to read them.

        Those of namespaces that another controller watches, which has written a status, are left
        out: two controllers would overwrite each other's for good.
        """
        try:
            found, _ = await self.client.list(TENANT_BUDGETS, None)
        except (ApiForbidden, ApiNotFound) as error:
            is_defined = isinstance(error, ApiForbidden)
            self._note_unread(_missing_right(error) if is_defined else _NOT_DEFINED)
            return None if is_defined else []
        self._note_unread("")
        budgets = cast("list[TenantBudget]", found)
        return [b for b in budgets if self._watches(b["metadata"]["name"]) or not b.get("status")]

    def _note_unread(self, why: str) -> None:
        if why not in ("", self.unread):
            _log.warning("budgets of tenants that were not read limit nothing: %s", why)
        self.unread = why

    def _watches(self, namespace: str) -> bool:
        return not self.namespaces or namespace in self.namespaces

    async def _problem(self, budget: TenantBudget) -> str:
        """Return why the budget does not do what it says; "" if it does."""
        name = budget["metadata"]["name"]
        if not self._watches(name):
            return (
                f"metadata.name: the controller does not watch the namespace {name}; add it to the "
                "chart's value controller.watchNamespaces, or delete this budget"
            )
        if "cost" in budget["spec"] and not self.has_prices:
            return (
                "spec.cost: requires prices that tenants cannot change; set the chart's value "
                "controller.prices, or remove it"
            )
        now_s = time.monotonic()
        if name in self.used or now_s < self._seen_s.get(name, -math.inf) + _SEEN_S:
            return ""
        try:
            await self.client.get(NAMESPACES, None, name)
        except ApiNotFound:
            return (
                f"metadata.name: there is no namespace {name}; a TenantBudget has the name of its "
                "namespace: create the namespace, or delete this budget"
            )
        except ApiError:
            pass
        self._seen_s[name] = now_s
        return ""

    async def _show(self, statuses: Sequence[tuple[TenantBudget, dict[str, Any]]]) -> str:
        """Write the statuses that have changed. Return why one was not written; "" if all were."""
        trouble = ""
        known = {budget["metadata"]["uid"] for budget, _ in statuses}
        self._shown_s = {uid: at_s for uid, at_s in self._shown_s.items() if uid in known}
        for budget, status in statuses:
            try:
                await self._write(budget, status)
            except (ApiError, OSError) as error:
                trouble = str(error)
        return trouble

    async def _write(self, budget: TenantBudget, status: dict[str, Any]) -> None:
        about, before = budget["metadata"], budget.get("status") or {}
        fixed = ("month", "state", "reason")
        is_same = all(before.get(key) == status.get(key) for key in fixed)
        now_s = time.monotonic()
        is_early = now_s < self._shown_s.get(about["uid"], 0.0) + _SHOW_S
        if status == before or (is_same and is_early and status["state"] == WITHIN):
            return
        with contextlib.suppress(ApiNotFound, ApiConflict):
            await self.client.replace_status(
                TENANT_BUDGETS, None, about["name"], status, uid=about["uid"]
            )
        self._shown_s[about["uid"]] = now_s


def status_of(
    budget: TenantBudget,
    used: Spent,
    now: datetime,
    stopped: Spent = NOTHING_SPENT,
    *,
    problem: str = "",
) -> dict[str, Any]:
    """Return the status of a budget. A problem does not lift the limits that can be compared.

    With `overrun: stop`, a limit that was reached stays so until the month ends or it is raised,
    because attempts were stopped for it: their ends, which pods tell in whole seconds, lie before
    what was counted. Others would begin, only to be stopped.

    stopped: the highest limits of the month for which attempts were stopped.
    """
    month, limits = month_of(now), budget["spec"]
    status: dict[str, Any] = {
        "month": month,
        "state": WITHIN,
        "gpuHours": round(used.gpu_hours, 6),
        "cost": round(used.cost, 6),
        "observedGeneration": budget["metadata"].get("generation"),
    }
    cure = f"until {next_month(now):%Y-%m-%d} (UTC), or a higher TenantBudget"
    reached = [each.used for each in _amounts(limits, used) if each.is_reached]
    held = [each.limit for each in _amounts(limits, stopped) if each.is_reached]
    if reached:
        status |= {"state": SPENT, "reason": f"{' and '.join(reached)} of {month} are used; {cure}"}
    elif held and limits.get("overrun") == STOP:
        why = f"attempts were stopped at the limit of {' and '.join(held)} of {month}"
        status |= {"state": SPENT, "reason": f"{why}; {cure}"}
    elif problem:
        status |= {"state": INVALID, "reason": problem}
    return status


def _missing_right(error: ApiError) -> str:
    rule = rule_for(error)
    return f"the missing rule: {rule}" if rule else str(error)


def sentence_of(budget: TenantBudget, status: Mapping[str, Any]) -> str:
    """Return a budget with its status: `312 of 500 GPU-hours of 2026-11 are used`."""
    used = Spent(status["gpuHours"], status["cost"])
    amounts = " and ".join(each.used for each in _amounts(budget["spec"], used))
    words = {WITHIN: "", SPENT: "; trials wait: ", INVALID: "; it is invalid: "}[status["state"]]
    return f"{amounts} of {status['month']} are used{words}{status.get('reason', '')}"


def limits_reached(limits: MonthlyLimits, used: Spent) -> Spent:
    """Return the limits that are reached; 0 for the others."""
    gpu_hours, cost = limits.get("gpuHours", 0.0), limits.get("cost", 0.0)
    return Spent(
        gpu_hours if used.gpu_hours >= gpu_hours else 0.0, cost if used.cost >= cost else 0.0
    )


@dataclass(frozen=True, slots=True)
class _Amount:
    """A limit, and what is used of it, in words."""

    limit: str
    used: str
    is_reached: bool


def _amounts(limits: MonthlyLimits, used: Spent) -> Iterator[_Amount]:
    amounts = (
        (limits.get("gpuHours"), used.gpu_hours, "GPU-hours"),
        (limits.get("cost"), used.cost, "of cost"),
    )
    for limit, so_far, unit in amounts:
        if limit is not None:
            words = f"{limit:g} {unit}"
            yield _Amount(words, f"{so_far:.4g} of {words}", so_far >= limit)
