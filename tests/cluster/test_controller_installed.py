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

from tests.cluster.api import BATCH, CORE
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import EXPERIMENTS, SYSTEM, Installed, experiment
from tests.cluster.objects import quota
from tests.cluster.waiting import eventually


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
    table = installed.kubectl("get", "texp", "-n", namespace)
    head, line = table.splitlines()
    assert head.split() == ["NAME", "STATE", "DONE", "BEST", "RUNNING", "QUEUED", "AGE"]
    assert line.split()[:3] == ["tiny", "succeeded", "4/4"]
    installed.kubectl("wait", "--for=condition=Succeeded", "texp/tiny", "-n", namespace)
    found = installed.cluster.api().get(f"{EXPERIMENTS.format(namespace=namespace)}/tiny")
    of_status = [each for each in found["metadata"]["managedFields"] if "subresource" in each]
    assert [(each["manager"], each["operation"]) for each in of_status] == [("tuner", "Apply")]
    installed.kubectl("delete", "texp", "tiny", "-n", namespace, "--timeout=30s")


def test_the_reruns_of_a_search_are_created_and_deleted_with_it(
    installed: Installed, namespace: str
) -> None:
    installed.start()
    installed.kubectl.apply([experiment(namespace, confirm={"top": 1, "seeds": 2})])
    name = "tiny-confirm"
    installed.kubectl("wait", "--for=create", f"texp/{name}", "-n", namespace, "--timeout=50s")
    status = installed.until(
        namespace, lambda status: status.get("state") == "succeeded", name=name
    )
    assert (status["done"], status["trials"]) == ("2/2", {"succeeded": 2})
    installed.kubectl("delete", "texp", "tiny", "-n", namespace, "--timeout=30s")
    installed.kubectl("wait", "--for=delete", f"texp/{name}", "-n", namespace, "--timeout=30s")


def test_a_deletion_ends_its_jobs_and_keeps_nothing(installed: Installed, namespace: str) -> None:
    installed.start()
    installed.kubectl.apply([experiment(namespace, parallelism=3, env={"KWOK_RUN": "600s"})])
    installed.until(namespace, lambda status: status.get("running") == 3)
    installed.kubectl("delete", "texp", "tiny", "-n", namespace, "--timeout=60s")
    assert jobs(installed, namespace) == []
    assert list((installed.state / "experiments").iterdir()) == []


def test_a_controller_that_is_killed_again_and_again_loses_and_repeats_nothing(
    installed: Installed, namespace: str
) -> None:
    installed.kubectl.apply(
        [experiment(namespace, parallelism=4, budget={"trials": 24}, env={"KWOK_RUN": "1s"})]
    )
    moments = Random(7)
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
    seen = created_jobs(installed, namespace)
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
        "texp",
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
        ("create", "tuner.dev", "experiments", True),
        ("delete", "tuner.dev", "experiments", False),
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


def created_jobs(installed: Installed, namespace: str) -> Counter[str]:
    """Return how often a pod was created for each Job, as the cluster's events say."""
    events = installed.cluster.api().items(f"{CORE}/namespaces/{namespace}/events")
    return Counter(
        event["involvedObject"]["name"]
        for event in events
        if event["involvedObject"]["kind"] == "Job" and event["reason"] == "SuccessfulCreate"
    )


def test_an_api_server_that_is_away_costs_nothing(installed: Installed, namespace: str) -> None:
    controller = installed.start()
    installed.kubectl.apply(
        [experiment(namespace, parallelism=4, budget={"trials": 16}, env={"KWOK_RUN": "3s"})]
    )
    installed.until(namespace, lambda status: status.get("running") == 4)
    installed.cluster.stop_api_server()
    time.sleep(20)
    installed.cluster.start_api_server()
    status = installed.until(
        namespace, lambda status: status.get("state") == "succeeded", within_s=180
    )
    assert status["trials"] == {"succeeded": 16}
    assert set(created_jobs(installed, namespace).values()) == {1}
    assert controller.poll() is None


@pytest.mark.soak
@pytest.mark.parametrize("part", ["etcd", "kube-apiserver"])
def test_a_cluster_that_answers_nothing_for_40_s_costs_nothing(
    installed: Installed, namespace: str, part: str
) -> None:
    controller = installed.start()
    installed.kubectl.apply(
        [experiment(namespace, parallelism=4, budget={"trials": 16}, env={"KWOK_RUN": "3s"})]
    )
    installed.until(namespace, lambda status: status.get("running") == 4)
    installed.cluster.freeze(part, 40)
    status = installed.until(
        namespace, lambda status: status.get("state") == "succeeded", within_s=180
    )
    assert status["trials"] == {"succeeded": 16}
    assert set(created_jobs(installed, namespace).values()) == {1}
    assert controller.poll() is None


def test_a_controller_that_is_frozen_for_longer_than_its_lease_goes_on(
    installed: Installed, namespace: str
) -> None:
    controller = installed.start()
    installed.kubectl.apply(
        [experiment(namespace, parallelism=2, budget={"trials": 8}, env={"KWOK_RUN": "2s"})]
    )
    installed.until(namespace, lambda status: status.get("running") == 2)
    controller.send_signal(signal.SIGSTOP)
    time.sleep(15)
    controller.send_signal(signal.SIGCONT)
    status = installed.until(
        namespace, lambda status: status.get("state") == "succeeded", within_s=120
    )
    assert status["trials"] == {"succeeded": 8}
    assert set(created_jobs(installed, namespace).values()) == {1}
    assert controller.poll() is None


def test_a_namespace_that_is_deleted_in_the_middle_disturbs_no_other(
    installed: Installed, namespace: str
) -> None:
    api = installed.cluster.api()
    doomed = f"{namespace}-doomed"
    api.post(f"{CORE}/namespaces", {"metadata": {"name": doomed}})
    api.until(f"{CORE}/namespaces/{doomed}/serviceaccounts/default", bool)
    controller = installed.start()
    installed.kubectl.apply(
        [
            experiment(doomed, parallelism=2, env={"KWOK_RUN": "600s"}),
            experiment(namespace, parallelism=2, budget={"trials": 12}, env={"KWOK_RUN": "2s"}),
        ]
    )
    for each in (doomed, namespace):
        installed.until(each, lambda status: status.get("running") == 2)
    installed.kubectl("delete", "namespace", doomed, "--timeout=90s")
    status = installed.until(
        namespace, lambda status: status.get("state") == "succeeded", within_s=120
    )
    assert status["trials"] == {"succeeded": 12}
    assert controller.poll() is None
    eventually(lambda: len(list((installed.state / "experiments").iterdir())) == 1)


def test_two_namespaces_keep_to_their_quotas(installed: Installed, namespace: str) -> None:
    api = installed.cluster.api()
    room = {namespace: 18, f"{namespace}-narrow": 6}
    api.post(f"{CORE}/namespaces", {"metadata": {"name": f"{namespace}-narrow"}})
    installed.start()
    for each, cpus in room.items():
        api.until(f"{CORE}/namespaces/{each}/serviceaccounts/default", bool)
        api.post(
            f"{CORE}/namespaces/{each}/resourcequotas",
            quota("room", **{"requests.cpu": str(cpus)}),
        )
        # All that fit are begun before the first has ended, also on a busy machine.
        run = {"KWOK_RUN": f"{cpus}s"}
        resource = experiment(each, parallelism=24, budget={"trials": 24}, env=run)
        resource["spec"]["trial"]["resources"] = {"cpu": 1}
        installed.kubectl.apply([resource])
    most: Counter[str] = Counter()
    reasons: set[str] = set()
    open_ = set(room)
    began_s = time.monotonic()
    give_up_at = time.monotonic() + 180
    while open_ and time.monotonic() < give_up_at:
        for each in room:
            used = api.get(f"{CORE}/namespaces/{each}/resourcequotas/room")["status"].get("used")
            most[each] = max(most[each], int((used or {}).get("requests.cpu", 0)))
            status = installed.status(each)
            reasons.add(status.get("reason", ""))
            if status.get("state") == "succeeded":
                if each in open_:
                    print(f"{room[each]} CPUs: all after {time.monotonic() - began_s:.1f} s")
                open_.discard(each)
        time.sleep(0.1)
    assert not open_
    assert most == room
    assert all(installed.status(each)["trials"] == {"succeeded": 24} for each in room)
    assert any("room" in reason for reason in reasons), reasons


def test_the_service_leads_to_the_leader(installed: Installed) -> None:
    api = installed.cluster.api()
    pods = f"{CORE}/namespaces/{SYSTEM}/pods"
    ports = [{"name": "https", "containerPort": 8080}, {"name": "grpc", "containerPort": 8765}]
    for name in ("one", "two"):
        labels = {"app.kubernetes.io/name": "tuner-controller", "tuner.dev/role": "leader"}
        about = {"name": name, "labels": labels}
        container = {"name": "controller", "image": "tuner:1", "ports": ports}
        api.post(pods, {"metadata": about, "spec": {"containers": [container]}})
    installed.start(name="two")

    def led_to() -> set[str]:
        selector = "kubernetes.io/service-name=tuner"
        path = f"/apis/discovery.k8s.io/v1/namespaces/{SYSTEM}/endpointslices"
        slices = api.items(path, labelSelector=selector)
        endpoints = [each for found in slices for each in found.get("endpoints") or ()]
        return {endpoint["targetRef"]["name"] for endpoint in endpoints}

    eventually(lambda: led_to() == {"two"}, within_s=60)
    for name in ("one", "two"):
        api.delete(f"{pods}/{name}", gracePeriodSeconds="0")
