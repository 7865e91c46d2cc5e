"""The controller in the cluster on a real API server, with fake nodes: with the rights of the chart
and no others.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.cluster.api import BATCH
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import Installed, experiment


@pytest.fixture
def installed(level_b: ControlPlane, tmp_path: Path) -> Iterator[Installed]:
    installation = Installed(level_b, tmp_path)
    yield installation
    installation.close()


def jobs(installed: Installed, namespace: str) -> list[str]:
    found = installed.cluster.api().items(f"{BATCH}/namespaces/{namespace}/jobs")
    return [job["metadata"]["name"] for job in found]


def test_an_applied_experiment_runs_to_its_end(installed: Installed, namespace: str) -> None:
    installed.start()
    installed.kubectl.apply([experiment(namespace)])
    status = installed.until(namespace, lambda status: status.get("state") == "succeeded")
    assert (status["done"], status["trials"]) == ("4/4", {"succeeded": 4})
    assert 0 <= status["best"]["value"] <= 1
    table = installed.kubectl("get", "experiments", "-n", namespace)
    head, line = table.splitlines()
    assert head.split() == ["NAME", "STATE", "DONE", "BEST", "RUNNING", "QUEUED", "AGE"]
    assert line.split()[:3] == ["tiny", "succeeded", "4/4"]
    installed.kubectl("wait", "--for=condition=Succeeded", "experiment/tiny", "-n", namespace)
    installed.kubectl("delete", "experiment", "tiny", "-n", namespace, "--timeout=30s")


def test_a_deletion_ends_its_jobs_and_keeps_nothing(installed: Installed, namespace: str) -> None:
    installed.start()
    installed.kubectl.apply([experiment(namespace, parallelism=3, env={"KWOK_RUN": "600s"})])
    installed.until(namespace, lambda status: status.get("running") == 3)
    installed.kubectl("delete", "experiment", "tiny", "-n", namespace, "--timeout=60s")
    assert jobs(installed, namespace) == []
    assert list((installed.state / "experiments").iterdir()) == []


def test_a_controller_that_is_killed_again_and_again_loses_and_repeats_nothing(
    installed: Installed, namespace: str
) -> None:
    installed.kubectl.apply(
        [experiment(namespace, parallelism=4, budget={"trials": 24}, env={"KWOK_RUN": "1s"})]
    )
    moments = Random(7)
    seen: Counter[str] = Counter()
    for _ in range(6):
        process = installed.start()
        time.sleep(moments.uniform(1.0, 4.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    installed.start()
    status = installed.until(
        namespace, lambda status: status.get("state") == "succeeded", within_s=180
    )
    assert status["trials"] == {"succeeded": 24}
    events = installed.cluster.api().items(f"/api/v1/namespaces/{namespace}/events")
    seen.update(
        event["involvedObject"]["name"]
        for event in events
        if event["involvedObject"]["kind"] == "Job" and event["reason"] == "SuccessfulCreate"
    )
    assert set(seen.values()) == {1}, seen
    assert len(seen) == 24, seen


def test_a_standby_takes_over_from_a_killed_and_from_a_frozen_leader(
    installed: Installed, namespace: str
) -> None:
    first = installed.start(name="first")
    installed.kubectl.apply([experiment(namespace, parallelism=2, env={"KWOK_RUN": "600s"})])
    installed.until(namespace, lambda status: status.get("running") == 2)
    before = sorted(jobs(installed, namespace))
    second = installed.start(name="second")
    first.send_signal(signal.SIGKILL)
    installed.kubectl(
        "patch",
        "experiment",
        "tiny",
        "-n",
        namespace,
        "--type=merge",
        "-p",
        json.dumps({"spec": {"parallelism": 3}}),
    )
    installed.until(namespace, lambda status: status.get("running") == 3, within_s=30)
    assert set(before) < set(jobs(installed, namespace))
    assert second.poll() is None


def test_the_rights_of_the_chart_suffice_and_include_no_secrets(
    installed: Installed, namespace: str
) -> None:
    as_controller = installed.cluster.api(
        token=installed.cluster.service_account_token("tuner-system", "tuner-controller")
    )
    for verb, group, resource, allowed in (
        ("create", "batch", "jobs", True),
        ("patch", "tuner.dev", "experiments", True),
        ("get", "", "secrets", False),
        ("list", "", "secrets", False),
        ("create", "tuner.dev", "experiments", False),
        ("impersonate", "", "users", False),
        ("create", "", "pods", False),
        ("update", "batch", "jobs", False),
        ("create", "rbac.authorization.k8s.io", "rolebindings", False),
        ("create", "", "serviceaccounts", False),
    ):
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {
                "resourceAttributes": {
                    "verb": verb,
                    "group": group,
                    "resource": resource,
                    "namespace": namespace,
                }
            },
        }
        answer = as_controller.post(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review
        )
        assert answer["status"]["allowed"] is allowed, (verb, resource)
