"""Budgets of tenants, prices of the platform and budgets of money on a real API server."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import Installed, experiment
from tests.cluster.waiting import eventually

DOCS = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"
SECONDS = 1 / 3600  # of one GPU, in GPU-hours


@pytest.fixture
def installed(level_b: ControlPlane, tmp_path: Path) -> Iterator[Installed]:
    installation = Installed(level_b, tmp_path)
    yield installation
    installation.kubectl("delete", "tenantbudgets", "--all")
    installation.close()


def budget(namespace: str, **limits: object) -> dict[str, Any]:
    about = {"apiVersion": "tuner.dev/v1", "kind": "TenantBudget", "metadata": {"name": namespace}}
    return {**about, "spec": limits}


def shown(installed: Installed, namespace: str) -> dict[str, Any]:
    found = installed.cluster.api().get(f"/apis/tuner.dev/v1/tenantbudgets/{namespace}")
    return dict(found.get("status") or {})


def test_a_budget_of_money_ends_a_search_and_the_tenant_waits_for_more(
    installed: Installed, namespace: str
) -> None:
    installed.kubectl.apply([budget(namespace, gpuHours=5 * SECONDS)])
    first = installed.start("--price=nvidia.com/gpu=3600")
    paid = {"trials": 50, "cost": 2}
    installed.kubectl.apply([experiment(namespace, budget=paid, prices={}, env={"KWOK_RUN": "1s"})])
    ended = installed.until(namespace, lambda status: status.get("state") == "succeeded")
    assert ended["cost"] >= 2
    conditions = {each["type"]: each["reason"] for each in ended["conditions"]}
    assert conditions["Succeeded"] == "CostSpent"
    installed.kubectl.apply([experiment(namespace, name="next", env={"KWOK_RUN": "3s"})])
    installed.until(namespace, lambda status: status.get("running"), name="next")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    installed.start("--price=nvidia.com/gpu=3600")
    waits = installed.until(
        namespace, lambda status: "TenantBudgetSpent" in status.get("reason", ""), name="next"
    )
    assert waits["state"] == "running"
    eventually(lambda: installed.status(namespace, "next").get("running") == 0, within_s=60)
    # It shows millionths of an hour.
    eventually(
        lambda: used_s(installed, namespace) == pytest.approx(ran_s(installed), abs=0.01),
        within_s=60,
    )
    assert shown(installed, namespace)["state"] == "spent"
    table = installed.kubectl("get", "tenantbudgets")
    assert table.split()[:7] == ["NAME", "STATE", "MONTH", "GPU-HOURS", "OF", "COST", "OF"]
    raised = json.dumps({"spec": {"gpuHours": 1}})
    installed.kubectl("patch", "tenantbudget", namespace, "--type=merge", "-p", raised)
    installed.until(namespace, lambda status: status.get("state") == "succeeded", name="next")


def used_s(installed: Installed, namespace: str) -> float:
    """Return what the budget shows as used, in seconds of a GPU."""
    return float(shown(installed, namespace)["gpuHours"]) / SECONDS


def ran_s(installed: Installed) -> float:
    """Return for how long all attempts ran together, by the controller's own rows."""
    with closing(sqlite3.connect(installed.state / "controller.db")) as database:
        query = "SELECT start_time, end_time FROM attempts WHERE start_time IS NOT NULL"
        spans = [[datetime.fromisoformat(each) for each in row] for row in database.execute(query)]
    return sum((end - start).total_seconds() for start, end in spans)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"gpuHours": -1}, "spec.gpuHours: Invalid value: -1: spec.gpuHours in body should be"),
        ({"cost": "much"}, "spec.cost: Invalid value"),
        ({}, "limits nothing; write gpuHours, cost or both"),
        ({"cost": 1, "overrun": "later"}, 'spec.overrun: Unsupported value: "later"'),
        ({"gpus": 3, "cost": 1}, 'unknown field "spec.gpus"'),
    ],
)
def test_a_wrong_budget_is_refused_at_its_key(
    installed: Installed, namespace: str, spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(AssertionError) as refused:
        installed.kubectl(
            "create", "--validate=strict", "-f", "-", given=json.dumps(budget(namespace, **spec))
        )
    assert message in str(refused.value)


def test_the_documented_budget_is_one_and_a_tenant_cannot_change_it(
    installed: Installed, namespace: str
) -> None:
    docs = DOCS.read_text(encoding="utf-8")
    (text,) = re.findall(
        r"```yaml\n(apiVersion: tuner.dev/v1\nkind: TenantBudget.*?)```", docs, re.S
    )
    documented = yaml.safe_load(text)
    documented["metadata"]["name"] = namespace
    installed.kubectl.apply([documented])
    installed.kubectl(
        "create", "rolebinding", "lead", "--clusterrole=admin", "--user=ann", "-n", namespace
    )
    for verb in ("update", "patch", "delete", "create"):
        answer = json.loads(
            installed.kubectl("create", "-f", "-", "-o", "json", given=review(verb, namespace))
        )
        assert answer["status"]["allowed"] is False, verb


def review(verb: str, name: str) -> str:
    """Return a question whether the tenant may do that to the budget."""
    asked = {"verb": verb, "group": "tuner.dev", "resource": "tenantbudgets", "name": name}
    about = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    return json.dumps({**about, "spec": {"user": "ann", "resourceAttributes": asked}})
