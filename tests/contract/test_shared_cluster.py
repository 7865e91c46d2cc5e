"""Experiments of one process share a client and one watch of each kind,
and do not disturb each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from controller.core.model import UID_LABEL, TrialTemplate, attempt_name
from controller.kube.client import JOBS, PODS, KubernetesClient
from controller.kube.cluster import Cluster
from controller.kube.objects import AttemptObject, Pod, Raw
from controller.kube.reflector import Reflector
from controller.runtime.kubernetes.admission import MOST_WITHOUT_NODE, AdmissionQueue
from controller.runtime.kubernetes.labels import experiment_labels
from controller.runtime.kubernetes.launch import ClusterLaunch, ClusterPart
from controller.runtime.kubernetes.runtime import ClusterTarget, KubernetesRuntime
from tests.kube.experiment import KeptRecords, Unfenced, look, look_until, running
from tests.kube.fake_api import FakeApi, kubeconfig_of
from tests.kube.fake_kubelet import Script
from tests.kube.small_cluster import eventually


class Tenant:
    """An experiment with one trial, in a namespace of its own or in that of others."""

    def __init__(self, cluster: Cluster, folder: Path, *, namespace: str, uid: str) -> None:
        self.namespace = namespace
        self.name = attempt_name("tiny", uid, 0, 1)
        directory = folder / uid
        directory.mkdir()
        anchor = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"tiny-{uid[:5]}", "labels": experiment_labels("tiny", uid)},
        }
        target = ClusterTarget(
            cluster, namespace, uid, anchor, KeptRecords(), lambda *_attempt: directory, Unfenced()
        )
        self.runtime = KubernetesRuntime(target, queue=AdmissionQueue(is_own=True))
        part = ClusterPart(
            namespace, "tiny", uid, 0, 1, {}, TrialTemplate(("true",), image="tiny:1")
        )
        env = {"TUNER_OUTPUT_DIR": "/tuner/output", "TUNER_CHECKPOINT_DIR": "/tuner/checkpoints"}
        self.launch = ClusterLaunch(self.name, ("true",), env, folder, directory, cluster=part)

    async def run(self) -> None:
        """Start the trial, and wait until it runs."""
        await self.runtime.start(self.launch)
        await look_until(self.runtime, running(self.name))


@asynccontextmanager
async def shared_cluster(api: FakeApi) -> AsyncIterator[Cluster]:
    api.kubelet.play(lambda job: Script(forever=True))
    with kubeconfig_of(api.kubeconfig()):
        client = await KubernetesClient.connect()
    cluster = Cluster(client, labels=UID_LABEL, all_namespaces=True)
    try:
        yield cluster
    finally:
        await cluster.close()


def in_a_cluster(test: Callable[[FakeApi, Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeApi() as api, shared_cluster(api) as cluster:
            api.put("namespaces", {"metadata": {"name": "user2"}})
            await test(api, cluster)

    asyncio.run(main())


def watches(api: FakeApi, plural: str) -> int:
    return sum(path.endswith(f"/{plural}") and "watch" in query for _, path, query in api.requests)


def test_two_experiments_have_one_watch_of_each_kind(tmp_path: Path) -> None:
    async def check(api: FakeApi, cluster: Cluster) -> None:
        tenants = [
            Tenant(cluster, tmp_path, namespace=namespace, uid=f"x{namespace[-1]}k2qaaaaaaaaaaa")
            for namespace in ("user1", "user2")
        ]
        for tenant in tenants:
            await tenant.run()
        assert {plural: watches(api, plural) for plural in ("jobs", "pods", "resourcequotas")} == {
            "jobs": 1,
            "pods": 1,
            "resourcequotas": 1,
        }
        for tenant in tenants:
            assert list(await look(tenant.runtime)) == [tenant.name]
            await tenant.runtime.close()

    in_a_cluster(check)


def test_a_namespace_that_waits_for_nodes_gets_no_more_jobs_and_others_do(tmp_path: Path) -> None:
    async def check(api: FakeApi, cluster: Cluster) -> None:
        greedy, other = (
            Tenant(cluster, tmp_path, namespace=f"user{n}", uid=f"x{n}k2qaaaaaaaaaaa")
            for n in (1, 2)
        )
        cluster.note_without_node("user1", "its other experiment", MOST_WITHOUT_NODE)
        await greedy.runtime.start(greedy.launch)
        assert (await look(greedy.runtime))[greedy.name].waiting == (
            "500 trials of the namespace wait for a node"
        )
        await other.run()
        assert api.all("jobs", "user1") == []
        cluster.note_without_node("user1", "its other experiment", MOST_WITHOUT_NODE - 1)
        await greedy.run()
        for tenant in (greedy, other):
            await tenant.runtime.close()
        assert cluster.without_node("user2") == 0

    in_a_cluster(check)


def test_closing_one_experiment_leaves_the_other_working(tmp_path: Path) -> None:
    async def check(api: FakeApi, cluster: Cluster) -> None:
        first, second = (
            Tenant(cluster, tmp_path, namespace="user1", uid=f"x{n}k2qaaaaaaaaaaa") for n in (1, 2)
        )
        await first.run()
        await second.run()
        await first.runtime.close()
        await second.runtime.stop(second.name, grace_s=1.0)
        await look_until(second.runtime, lambda seen: seen[second.name].exit is not None)
        await second.runtime.close()

    in_a_cluster(check)


def test_an_experiment_that_comes_later_sees_what_is_there_without_another_list(
    tmp_path: Path,
) -> None:
    async def check(api: FakeApi, cluster: Cluster) -> None:
        first = Tenant(cluster, tmp_path, namespace="user1", uid="x1k2qaaaaaaaaaaa")
        await first.run()
        await first.runtime.close()
        lists = sum(
            path.endswith("/jobs") and "watch" not in query for _, path, query in api.requests
        )
        again = KubernetesRuntime(first.runtime._target, queue=AdmissionQueue(is_own=True))
        assert list(await look(again)) == [first.name]
        assert (
            sum(path.endswith("/jobs") and "watch" not in query for _, path, query in api.requests)
            == lists
        )
        await again.close()

    in_a_cluster(check)


def named(name: str, namespace: str, **labels: str) -> Raw:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": {}}


def test_objects_of_one_name_in_two_namespaces_do_not_merge() -> None:
    async def check(api: FakeApi, cluster: Cluster) -> None:
        pods: Reflector[Pod] = cluster.reflector(
            PODS, "user1", labels=UID_LABEL, grouped_by=UID_LABEL
        )
        views = {name: pods.view(name, "x", changed=lambda: None) for name in ("user1", "user2")}
        for namespace, view in views.items():
            view.keeps_deleted = True
            api.put("pods", named("a", namespace, **{UID_LABEL: "x"}))
        await pods.start()
        assert len(pods.objects) == 2
        assert {view.objects["a"]["metadata"]["namespace"] for view in views.values()} == set(views)
        api.remove("pods", "user2", "a")
        await eventually(lambda: "a" in views["user2"].deleted)
        assert (list(views["user1"].objects), list(views["user1"].deleted)) == (["a"], [])

    in_a_cluster(check)


def test_only_the_experiment_whose_object_changed_is_woken() -> None:
    async def check(api: FakeApi, cluster: Cluster) -> None:
        woken: list[str] = []
        jobs: Reflector[AttemptObject] = cluster.reflector(
            JOBS, "user1", labels=UID_LABEL, grouped_by=UID_LABEL
        )
        mine = jobs.view("user1", "x", changed=lambda: woken.append("x"))
        jobs.view("user1", "y", changed=lambda: woken.append("y"))
        await jobs.start()
        api.put("jobs", named("a", "user1", **{UID_LABEL: "x"}))
        await eventually(lambda: "a" in mine.objects)
        assert set(woken) == {"x"}

    in_a_cluster(check)
