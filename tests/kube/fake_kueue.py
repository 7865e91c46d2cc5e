"""Simulates Kueue on a FakeApi: a Workload for each object with a queue,
with the conditions of Kueue 0.15.

It suspends and admits objects of any kind, by the field that Kueue uses for that kind. It also
creates the pods that an operator would create: one for each object; those of the Training Operator
keep their name when recreated.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kube.fake_api import FakeApi
from tests.kube.fake_kubelet import stamp

Raw = dict[str, Any]

NAMESPACE, QUEUE = "user1", "team-a"
FULL = (
    "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor "
    "default, 500m more needed"
)
_IN_RUN_POLICY = frozenset({"PyTorchJob"})


class FakeKueue:
    def __init__(self, api: FakeApi, *, version: str = "v1beta2") -> None:
        self._api = api
        self._lives = 0
        for plural, kind in (("workloads", "Workload"), ("localqueues", "LocalQueue")):
            api.define(f"kueue.x-k8s.io/{version}", plural, kind)

    def queue(self, name: str = QUEUE, *, reason: str = "Ready", message: str = "") -> None:
        """Create a LocalQueue, which is active only with the reason Ready."""
        status = "True" if reason == "Ready" else "False"
        active = {"type": "Active", "status": status, "reason": reason, "message": message}
        about = {"name": name, "namespace": NAMESPACE}
        self._api.put(
            "localqueues",
            {
                "metadata": about,
                "spec": {"clusterQueue": "gpus"},
                "status": {"conditions": [active]},
            },
        )

    async def until_made(self, plural: str, name: str, *, within_s: float = 10) -> None:
        async with asyncio.timeout(within_s):
            # made by another task of this loop
            while self._api.find(plural, NAMESPACE, name) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def hold(self, plural: str, name: str, message: str = FULL, *, reason: str = "Pending") -> None:
        """Queue an object, and suspend it like Kueue's webhook."""
        self._suspend(plural, name, suspend=True)
        self._say(plural, name, {"QuotaReserved": ("False", reason, message)})

    def admit(self, plural: str, name: str) -> str:
        """Admit an object; its pod then runs."""
        self._say(
            plural,
            name,
            {
                "QuotaReserved": ("True", "QuotaReserved", "Quota reserved in ClusterQueue gpus"),
                "Admitted": ("True", "Admitted", "The workload is admitted"),
                "Evicted": ("False", "QuotaReserved", "Previously: Preempted"),
            },
        )
        self._suspend(plural, name, suspend=False)
        return self._make_pod(self._api.get(plural, NAMESPACE, name))

    def preempt(self, plural: str, name: str, pod: str) -> None:
        """Preempt in the worst order: the pod is stopped and deleted,
        and only then the object is suspended.
        """
        why = (
            "Preempted to accommodate a workload (UID: 1, JobUID: 2) due to prioritization in "
            "the ClusterQueue"
        )
        why += "; preemptor path: /gpus; preemptee path: /gpus"
        self._api.change("pods", NAMESPACE, pod, _asked_to_go)
        self._api.remove("pods", NAMESPACE, pod)
        self._say(
            plural,
            name,
            {
                "Evicted": ("True", "Preempted", why),
                "Preempted": ("True", "InClusterQueue", why),
                "Requeued": ("True", "Preempted", why),
                "QuotaReserved": ("False", "Pending", why),
                "Admitted": ("False", "NoReservation", "The workload has no reservation"),
            },
        )
        self._suspend(plural, name, suspend=True)

    def _suspend(self, plural: str, name: str, *, suspend: bool) -> None:
        def changed(obj: Raw) -> None:
            holder = (
                obj["spec"].setdefault("runPolicy", {})
                if obj["kind"] in _IN_RUN_POLICY
                else obj["spec"]
            )
            holder["suspend"] = suspend

        self._api.change(plural, NAMESPACE, name, changed)

    def _say(self, plural: str, name: str, said: dict[str, tuple[str, str, str]]) -> None:
        obj = self._api.get(plural, NAMESPACE, name)
        owner = {
            "apiVersion": obj["apiVersion"],
            "kind": obj["kind"],
            "name": name,
            "uid": obj["metadata"]["uid"],
        }
        workload = f"{obj['kind'].lower()}-{name}"
        known = (
            (self._api.find("workloads", NAMESPACE, workload) or {})
            .get("status", {})
            .get("conditions", ())
        )
        conditions = [each for each in known if each["type"] not in said]
        conditions += [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": stamp(),
            }
            for kind, (status, reason, message) in said.items()
        ]
        about = {"name": workload, "namespace": NAMESPACE, "ownerReferences": [owner]}
        queue = obj["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
        self._api.put(
            "workloads",
            {
                "metadata": about,
                "spec": {"queueName": queue, "active": True},
                "status": {"conditions": conditions},
            },
        )

    def _make_pod(self, owner: Raw) -> str:
        self._lives += 1
        about = owner["metadata"]
        name = (
            f"{about['name']}-master-0"
            if owner["kind"] in _IN_RUN_POLICY
            else f"{about['name']}-{self._lives}"
        )
        labels = {
            key: value for key, value in about["labels"].items() if key.startswith("tuner.dev/")
        }
        if owner["kind"] not in _IN_RUN_POLICY:
            # of all others a Job makes the pods in the end
            labels["batch.kubernetes.io/job-name"] = about["name"]
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": about["name"],
            "uid": about["uid"],
            "controller": True,
        }
        container = {"name": "trial", "image": "tiny:1"}
        self._api.put(
            "pods",
            {
                "metadata": {
                    "name": name,
                    "namespace": NAMESPACE,
                    "labels": labels,
                    "ownerReferences": [reference],
                },
                "spec": {"restartPolicy": "Never", "containers": [container]},
                "status": {"phase": "Pending"},
            },
        )
        self._api.kubelet.start(name)
        return name


def _asked_to_go(pod: Raw) -> None:
    pod["metadata"] |= {"deletionTimestamp": stamp(), "deletionGracePeriodSeconds": 0}
