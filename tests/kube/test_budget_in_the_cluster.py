"""Budgets of GPU-hours and money of experiments of the controller in the cluster."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from controller.app.state_directory import StateDirectory
from controller.clock import SystemClock
from controller.core.spending import month_of, next_month
from controller.experiment_store import NO_FENCE
from controller.kube.client import KubernetesClient
from controller.operator import manager
from controller.operator.experiments import HostedExperiments
from controller.operator.policy import Policy
from controller.operator.status import AMOUNTS
from controller.operator.tenant_budgets import TenantBudgets
from tests.kube.fake_api import FakeApi
from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE, Installation, experiment, on_a_cluster
from tests.kube.small_cluster import with_a_cluster
from tests.kube.test_cluster_commands import FILE, Terminal, at_a_terminal, written
from tests.kube.test_controller_metrics import scraped_from
from tests.kube.test_page_in_the_cluster import OURS, events, signed_in

Raw = dict[str, Any]
# Pods tell the times of their containers in whole seconds.
A_SECOND = Script(lines=("score=0.5",), seconds=1.2)
FOREVER = Script(lines=("score=0.5",), forever=True)


@on_a_cluster(A_SECOND)
async def test_prices_without_a_limit_show_the_cost(installed: Installation) -> None:
    installed.apply(paid(trials=2))
    await installed.until_state("succeeded")
    assert installed.condition("Succeeded")["reason"] == "TrialsDone"
    assert installed.status()["cost"] >= 2


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_wrong_clock_of_the_controller_uses_up_no_budget(tmp_path: Path, hours: int) -> None:
    @on_a_cluster(A_SECOND)
    async def check(installed: Installation) -> None:
        installed.api.ahead_s = installed.api.kubelet.ahead_s = -3600.0 * hours
        await budgeted(installed, gpuHours=1)
        installed.apply(paid(trials=4, gpuHours=1, overrun="stop"))
        await installed.until_state("succeeded")
        assert installed.condition("Succeeded")["reason"] == "TrialsDone"
        assert installed.status()["trials"] == {"succeeded": 4}
        jobs = [each for each in installed.api.changes if each.plural == "jobs"]
        assert sum(each.before is None for each in jobs) == 4
        await installed.until(lambda: shown(installed).get("state") == "within")

    check(tmp_path)


@on_a_cluster(FOREVER)
async def test_a_deleted_experiment_counts_by_the_clock_of_the_cluster(
    installed: Installation,
) -> None:
    installed.api.ahead_s = installed.api.kubelet.ahead_s = -3600.0 * 3
    await budgeted(installed, gpuHours=1)
    installed.apply(paid(trials=2))
    await installed.until(lambda: installed.status().get("running") == 2)
    installed.delete()
    await installed.until(lambda: not installed.api.find("experiments", NAMESPACE, "tiny"))
    with closing(sqlite3.connect(installed.state.controller_db)) as database:
        ((used,),) = database.execute("SELECT sum(gpu_hours) FROM usage")
    assert 0 < used < 1


def paid(name: str = "tiny", **budget: object) -> Raw:
    """Return an experiment whose attempts cost 1 a second."""
    resource = experiment(name, budget={"trials": 50, **budget}, prices={"cpu": 1800})
    resource["spec"] |= {"parallelism": 2, "canary": "0s"}
    resource["spec"]["trial"] |= {"resources": {"cpu": 2, "gpu": 1}}
    return resource


@on_a_cluster(A_SECOND)
async def test_an_experiment_ends_when_its_money_is_used_up_and_goes_on_with_more(
    installed: Installation,
) -> None:
    installed.apply(paid(cost=3))
    await installed.until_state("succeeded")
    assert installed.condition("Succeeded")["reason"] == "CostSpent"
    used = installed.status()["cost"]
    assert used >= 3
    done = sum(installed.status()["trials"].values())
    installed.edit("tiny", budget={"trials": 50, "cost": used + 2})
    await installed.until(lambda: sum(installed.status()["trials"].values()) > done)
    await installed.until_state("succeeded")
    assert installed.status()["cost"] >= used + 2


@on_a_cluster(FOREVER)
async def test_what_has_been_used_alone_is_not_told_with_every_look(
    installed: Installation,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager, "AMOUNTS_S", 3600.0)
        installed.apply(paid(cost=16, overrun="stop"))
        await installed.until_state("failed")

    def others(found: Raw) -> Raw:
        return {key: value for key, value in found["status"].items() if key not in AMOUNTS}

    changes = [each for each in installed.api.changes if each.plural == "experiments"]
    shown = [each.after for each in changes if each.after is not None and "status" in each.after]
    grown = [
        (before["status"], after["status"])
        for before, after in pairwise(shown)
        if before["status"] != after["status"] and others(before) == others(after)
    ]
    assert grown == []
    assert installed.status()["cost"] >= 16


@on_a_cluster(FOREVER)
async def test_attempts_that_run_are_stopped_at_the_limit_if_they_shall_not_overrun(
    installed: Installation,
) -> None:
    installed.apply(paid(gpuHours=3 / 3600, overrun="stop"))
    await installed.until_state("failed")
    assert installed.condition("Failed")["reason"] == "NoTrialSucceeded"
    assert "the GPU-hours are used up" in installed.condition("Failed")["message"]
    assert installed.status()["gpuHours"] >= 3 / 3600
    await installed.until(lambda: not installed.jobs)


@on_a_cluster(A_SECOND)
async def test_what_was_used_is_counted_once_whatever_becomes_of_the_controller(
    installed: Installation,
) -> None:
    installed.apply(paid(cost=6))
    for cost in (1, 3):
        await installed.until(lambda cost=cost: installed.status().get("cost", 0) >= cost)
        await installed.stop()
        installed.start()
    await installed.until_state("succeeded")
    with closing(sqlite3.connect(installed.state.controller_db)) as database:
        query = "SELECT start_time, end_time FROM attempts WHERE start_time IS NOT NULL"
        spans = [[datetime.fromisoformat(each) for each in row] for row in database.execute(query)]
    ran_s = sum((end - start).total_seconds() for start, end in spans)
    assert installed.status()["cost"] == pytest.approx(ran_s)
    assert ran_s >= 6


async def priced(installed: Installation, cpu: float) -> None:
    """Start the controller again with a price of the platform."""
    await installed.stop()
    installed.policy = Policy(prices={"cpu": cpu})
    installed.start()


@on_a_cluster(A_SECOND)
async def test_the_platforms_prices_count_whatever_a_tenant_says(installed: Installation) -> None:
    await priced(installed, 1800)
    for name, prices in (("silent", {}), ("free", {"prices": {"cpu": 0, "nvidia.com/gpu": 1800}})):
        resource = paid(name, trials=2)
        del resource["spec"]["prices"]
        resource["spec"] |= prices
        installed.apply(resource)
    for name, least in (("silent", 2), ("free", 3)):
        await installed.until_state("succeeded", name)
        assert installed.status(name)["cost"] >= least


@on_a_cluster(A_SECOND)
async def test_a_budget_of_money_needs_prices_of_the_platform_or_its_own(
    installed: Installation,
) -> None:
    resource = paid(cost=3)
    del resource["spec"]["prices"]
    installed.apply(resource)
    await installed.until(lambda: installed.condition("Accepted").get("reason") == "Invalid")
    assert "spec.budget.cost: requires prices" in installed.condition("Accepted")["message"]
    await priced(installed, 1800)
    await installed.until_state("succeeded")
    assert installed.condition("Succeeded")["reason"] == "CostSpent"
    assert installed.status()["cost"] >= 3


@at_a_terminal(A_SECOND)
async def test_a_file_without_prices_is_applied_where_the_platform_has_some(
    terminal: Terminal,
) -> None:
    installed = terminal.installed
    text = FILE.replace("budget: {trials: 3}", "budget: {trials: 3, cost: 100}")
    text = text.replace('"--x=${x}"]', '"--x=${x}"], resources: {cpu: 1}')
    file = written(installed.state.root.parent, text)
    refused = await terminal.tuner("apply", "-f", file)
    assert (refused.code, "spec.budget.cost: requires prices; " in refused.err) == (2, True)
    assert "only under a cluster's controller that has prices of its platform" in refused.err
    await priced(installed, 1800)
    await installed.until(lambda: installed.serves)
    terminal.connect()
    applied = await terminal.tuner("apply", "-f", file, "--set", "spec.budget.cost=99")
    assert applied.code == 0, applied.err
    await installed.until_state("succeeded")
    assert installed.status()["cost"] > 0


@on_a_cluster(A_SECOND)
async def test_new_prices_of_the_platform_hold_for_later_attempts(installed: Installation) -> None:
    installed.apply(paid("ended", trials=1))
    await installed.until_state("succeeded", "ended")
    installed.apply(paid(trials=12))
    await installed.until(lambda: installed.status().get("cost", 0) >= 1)
    before = installed.status("ended")
    await priced(installed, 180000)
    await installed.until_state("succeeded")
    assert installed.status()["cost"] > 100
    with closing(sqlite3.connect(installed.state.controller_db)) as database:
        query = "SELECT DISTINCT price_per_hour FROM attempts ORDER BY price_per_hour"
        assert [price for (price,) in database.execute(query)] == [3600, 360000]
    assert installed.status("ended") == before


@on_a_cluster(A_SECOND)
async def test_an_attempt_costs_what_the_node_does_on_which_it_starts(
    installed: Installation,
) -> None:
    await installed.stop()
    pool = {"labels": {"pool": "a100"}}
    installed.api.put("nodes", {"metadata": {"name": "node1", **pool}})
    installed.policy = Policy(
        prices={"cpu": 1800}, node_label="pool", node_prices={"a100": {"nvidia.com/gpu": 360000}}
    )
    installed.start()
    installed.apply(paid("dear", trials=1))
    await installed.until_state("succeeded", "dear")
    assert 101 <= installed.status("dear")["cost"] < 1000
    read = ("GET", "/api/v1/nodes/node1")
    assert sum(each[:2] == read for each in installed.api.requests) == 1
    await installed.stop()
    installed.api.remove("nodes", None, "node1")
    installed.start()
    installed.apply(paid("cheap", trials=1))
    await installed.until_state("succeeded", "cheap")
    assert 1 <= installed.status("cheap")["cost"] < 10


# Budgets of tenants

HOURS = 1 / 3600  # of one GPU for a second


def tenant_budget(name: str = NAMESPACE, **limits: object) -> Raw:
    about = {"metadata": {"name": name, "generation": 1}, "spec": limits}
    return {"apiVersion": "tuner.dev/v1", "kind": "TenantBudget", **about}


async def budgeted(installed: Installation, **limits: object) -> None:
    """Define TenantBudgets, and one of the namespace, before the controller starts."""
    await installed.stop()
    installed.api.define("tuner.dev/v1", "tenantbudgets", "TenantBudget", namespaced=False)
    installed.api.put("namespaces", {"metadata": {"name": NAMESPACE}})
    installed.api.put("tenantbudgets", tenant_budget(**limits))
    installed.start()


def limited(installed: Installation, **limits: object) -> None:
    """Change the limits of the budget of the namespace."""

    def change(budget: Raw) -> None:
        budget["spec"].update(limits)
        budget["metadata"]["generation"] += 1

    installed.api.change("tenantbudgets", "", NAMESPACE, change)


def shown(installed: Installation, name: str = NAMESPACE) -> Raw:
    """Return the status of a TenantBudget."""
    return dict(installed.api.get("tenantbudgets", "", name).get("status") or {})


@on_a_cluster(A_SECOND)
async def test_trials_of_a_namespace_wait_while_its_budget_is_used_up(
    installed: Installation,
) -> None:
    await budgeted(installed, gpuHours=0)
    installed.apply(paid(trials=2))
    await installed.until(lambda: "TenantBudgetSpent: " in installed.status().get("reason", ""))
    month = f"{datetime.now(UTC):%Y-%m}"
    assert f"0 of 0 GPU-hours of {month} are used; until " in installed.status()["reason"]
    assert (installed.jobs, installed.status()["state"]) == ([], "running")
    assert shown(installed)["state"] == "spent"
    limited(installed, gpuHours=100)
    await installed.until_state("succeeded")
    await installed.until(lambda: shown(installed)["state"] == "within")


@on_a_cluster(A_SECOND)
async def test_what_a_namespace_has_used_outlives_its_experiments_and_the_controller(
    installed: Installation,
) -> None:
    await budgeted(installed, gpuHours=2 * HOURS)
    installed.apply(paid(trials=2))
    await installed.until_state("succeeded")
    await installed.until(lambda: shown(installed).get("state") == "spent")
    installed.delete()
    await installed.until(lambda: not installed.api.find("experiments", NAMESPACE, "tiny"))
    await installed.stop()
    installed.start()
    installed.apply(paid("later", trials=2))
    installed.api.put("namespaces", {"metadata": {"name": "team-a"}})
    other = paid("tiny", trials=2)
    other["metadata"]["namespace"] = "team-a"
    installed.apply(other)
    await installed.until(
        lambda: "TenantBudgetSpent: " in installed.status("later").get("reason", "")
    )
    beside = ("experiments", "team-a", "tiny")
    await installed.until(
        lambda: installed.api.get(*beside).get("status", {}).get("state") == "succeeded"
    )
    assert installed.api.all("jobs", NAMESPACE) == []
    found = await scraped_from(installed)
    assert found["tuner_controller_month_gpu_hours", (NAMESPACE,)] >= 2 * HOURS
    assert found["tuner_controller_tenant_budgets_spent", ()] == 1


@on_a_cluster(A_SECOND)
async def test_a_budget_that_limits_nothing_says_why(installed: Installation) -> None:
    await budgeted(installed, cost=1)
    installed.api.put("tenantbudgets", tenant_budget("absent", gpuHours=1))
    for name in ("absent", NAMESPACE):
        await installed.until(lambda name=name: shown(installed, name).get("state") == "invalid")
    assert shown(installed, "absent")["reason"].startswith(
        "metadata.name: there is no namespace absent; "
    )
    assert shown(installed)["reason"].startswith("spec.cost: requires prices ")


def test_a_namespace_without_usage_is_not_looked_up_with_every_look(tmp_path: Path) -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        api.define("tuner.dev/v1", "tenantbudgets", "TenantBudget", namespaced=False)
        for name in ("idle", "absent"):
            api.put("tenantbudgets", tenant_budget(name, gpuHours=1))
        api.put("namespaces", {"metadata": {"name": "idle"}})
        state = StateDirectory(tmp_path / "state")
        state.make()
        with closing(HostedExperiments(state, "", NO_FENCE)) as experiments:
            budgets = TenantBudgets(client, experiments, CalendarClock())
            for _ in range(3):
                await budgets.start()
        looked = Counter(path for _, path, _ in api.requests if "/namespaces/" in path)
        assert looked == {"/api/v1/namespaces/idle": 1, "/api/v1/namespaces/absent": 3}
        states = {
            each["metadata"]["name"]: each["status"]["state"]
            for each in api.all("tenantbudgets", "")
        }
        assert states == {"idle": "within", "absent": "invalid"}

    check()


@on_a_cluster(A_SECOND)
async def test_a_controller_leaves_the_budgets_of_other_controllers_alone(
    installed: Installation,
) -> None:
    await budgeted(installed, gpuHours=5)
    await installed.until(lambda: shown(installed).get("state") == "within")
    await installed.stop()
    written = shown(installed)
    installed.api.put("namespaces", {"metadata": {"name": "vision"}})
    for name in ("vision", "nobodys"):
        installed.api.put("tenantbudgets", tenant_budget(name, gpuHours=1))
    installed.start("vision")
    await installed.until(lambda: shown(installed, "vision").get("state") == "within")
    await installed.until(lambda: shown(installed, "nobodys").get("state") == "invalid")
    assert shown(installed, "nobodys")["reason"].startswith(
        "metadata.name: the controller does not watch the namespace nobodys; "
    )
    assert shown(installed) == written


@at_a_terminal(A_SECOND)
async def test_tenants_see_what_is_used_of_their_budget_and_which_trials_wait(
    terminal: Terminal,
) -> None:
    installed = terminal.installed
    await budgeted(installed, gpuHours=0)
    installed.apply(paid(trials=2))
    await installed.until(lambda: installed.status().get("queued") == 2 and installed.serves)
    terminal.connect()
    month = f"{datetime.now(UTC):%Y-%m}"
    said = f"TenantBudget of {NAMESPACE}: 0 of 0 GPU-hours of {month} are used; trials wait: "
    shown = await terminal.tuner("top", "tiny")
    assert said in shown.out, shown.err
    assert "0-1     TenantBudgetSpent: 0 of 0 GPU-hours" in shown.out
    assert (
        said.removeprefix(f"TenantBudget of {NAMESPACE}: ")
        in (await terminal.tuner("describe", "tiny")).out
    )
    async with signed_in(installed) as client:
        ((_, data),) = await events(client, "/api/stream", 1)
        assert data["source"].startswith(said)
        ((_, page),) = await events(client, f"{OURS}/stream", 1)
        assert any(each.startswith(said) for each in page["summary"]["used"])


@on_a_cluster(FOREVER)
async def test_what_runs_is_stopped_and_waits_if_the_budget_says_so(
    installed: Installation,
) -> None:
    await budgeted(installed, gpuHours=2 * HOURS, overrun="stop")
    installed.apply(paid(trials=2))
    await installed.until(lambda: installed.status().get("running"))
    await installed.until(lambda: installed.status().get("queued") == 2)
    assert "TenantBudgetSpent: " in installed.status()["reason"]
    await installed.until(lambda: not any(map(runs, installed.api.all("pods", NAMESPACE))))
    installed.api.put("tenantbudgets", tenant_budget(gpuHours=2 * HOURS, overrun="stop"))
    await installed.until(lambda: shown(installed).get("state") == "spent")
    installed.api.kubelet.play(lambda _job: A_SECOND)
    await installed.stop()
    # The next controller knows nothing of the budget that is created again.
    installed.api.put("tenantbudgets", tenant_budget(gpuHours=2 * HOURS, overrun="stop"))
    installed.start()
    await installed.until(lambda: shown(installed).get("state") == "spent")
    await installed.until(lambda: installed.status().get("queued") == 2)
    limited(installed, gpuHours=100)
    await installed.until_state("succeeded")
    # Nothing has failed, and no trial was lost.
    assert installed.status()["trials"] == {"succeeded": 2}


def runs(pod: Raw) -> bool:
    return bool(pod["status"]["phase"] == "Running")


@dataclass
class CalendarClock(SystemClock):
    """A clock that a test may set."""

    ahead: timedelta = timedelta()

    async def read(self) -> None:
        """Do nothing: the test sets it."""

    def now(self) -> datetime:
        return super().now() + self.ahead

    def set(self, time: datetime) -> None:
        self.ahead = time - super().now()


@on_a_cluster(A_SECOND)
async def test_a_month_that_begins_frees_what_waits(installed: Installation) -> None:
    installed.clock = clock = CalendarClock()
    clock.set(next_month(clock.now()) - timedelta(minutes=5))
    await budgeted(installed, gpuHours=2 * HOURS)
    installed.apply(paid(trials=2))
    await installed.until_state("succeeded")
    await installed.until(lambda: shown(installed).get("state") == "spent")
    installed.apply(paid("later", trials=2))
    await installed.until(
        lambda: "TenantBudgetSpent: " in installed.status("later").get("reason", "")
    )
    ended, begins = shown(installed), next_month(clock.now())
    assert f"until {begins:%Y-%m-%d} (UTC)" in ended["reason"]
    clock.set(begins)
    await installed.until_state("succeeded", "later")
    await installed.until(lambda: shown(installed)["month"] == f"{begins:%Y-%m}")
    assert (ended["month"], ended["state"]) == (month_of(datetime.now(UTC)), "spent")


def test_a_controller_that_may_not_read_budgets_says_so_and_runs_trials(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @on_a_cluster(A_SECOND)
    async def check(installed: Installation) -> None:
        installed.api.forbid("list", "tenantbudgets")
        await budgeted(installed, gpuHours=0)
        installed.apply(paid(trials=1))
        await installed.until_state("succeeded")

    check(tmp_path)
    warnings = [each for each in caplog.messages if "budgets of tenants" in each]
    assert warnings == [
        "budgets of tenants that were not read limit nothing: the missing rule: "
        "- {apiGroups: [tuner.dev], resources: [tenantbudgets], verbs: [list]}"
    ]


@on_a_cluster(A_SECOND)
async def test_trials_run_and_limits_hold_while_statuses_cannot_be_written(
    installed: Installation,
) -> None:
    installed.api.forbid("patch", "tenantbudgets/status")
    await budgeted(installed, gpuHours=0)
    installed.apply(paid(trials=1))
    await installed.until(lambda: "TenantBudgetSpent: " in installed.status().get("reason", ""))
    limited(installed, gpuHours=100)
    await installed.until_state("succeeded")
    assert shown(installed) == {}
    installed.api.permit()
    await installed.until(lambda: shown(installed).get("state") == "within")


@on_a_cluster(A_SECOND)
async def test_a_limit_holds_while_the_controller_may_not_read_it(installed: Installation) -> None:
    await budgeted(installed, gpuHours=0)
    await installed.until(lambda: shown(installed).get("state") == "spent")
    installed.api.forbid("list", "tenantbudgets")
    before = len(installed.api.requests)
    await installed.until(lambda: any(map(lists_budgets, installed.api.requests[before:])))
    installed.apply(paid(trials=1))
    await installed.until(lambda: "TenantBudgetSpent: " in installed.status().get("reason", ""))


def lists_budgets(request: tuple[str, ...]) -> bool:
    return request[:2] == ("GET", "/apis/tuner.dev/v1/tenantbudgets")


def test_a_controller_without_the_definition_of_budgets_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @on_a_cluster(A_SECOND)
    async def check(installed: Installation) -> None:
        installed.apply(paid(trials=1))
        await installed.until_state("succeeded")
        found = await scraped_from(installed)
        assert found["tuner_controller_watches_broken", ("tenantbudgets",)] == 1

    check(tmp_path)
    assert caplog.text.count("tenantbudgets.tuner.dev is not installed") == 1
