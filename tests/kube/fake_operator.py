"""Simulates an operator like the Training Operator on a FakeApi:
a `TrainingJob` with a master and a worker.

It differs from the Job controller: its pods have fixed names, so that recreated pods have the names
of the first ones; it keeps the pods of a failed job, even running ones; containers are restarted in
place (`restartPolicy: OnFailure`).
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.kube.fake_api import FakeApi
from tests.kube.fake_kubelet import stamp

Raw = dict[str, Any]

NAMESPACE = "user1"
API_VERSION, PLURAL, KIND = "training.example/v1", "trainingjobs", "TrainingJob"
READING = {
    "success": {"type": "Succeeded"},
    "failure": {"type": "Failed"},
    "primary": {"labels": {"role": "master"}},
}
_CONTAINER = {
    "name": "main",
    "image": "tiny:1",
    "command": ["true"],
    "resources": {"requests": {"cpu": "1"}},
}
TRAINING_JOB: Raw = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "spec": {
        "replicaSpecs": {
            "Master": {"replicas": 1, "template": {"spec": {"containers": [_CONTAINER]}}},
            "Worker": {"replicas": 1, "template": {"spec": {"containers": [_CONTAINER]}}},
        }
    },
}


class FakeOperator:
    api_version, plural, kind = API_VERSION, PLURAL, KIND
    replicas, role = "replicaSpecs", "role"

    def __init__(self, api: FakeApi) -> None:
        self._api = api
        api.define(self.api_version, self.plural, self.kind)

    def make_pods(self, job: str) -> tuple[str, str]:
        """Create running pods for the master and the worker, always with the same names."""
        owner = self._api.get(self.plural, NAMESPACE, job)
        master, worker = (self._make_pod(owner, role) for role in ("Master", "Worker"))
        return master, worker

    def _make_pod(self, owner: Raw, role: str) -> str:
        name = f"{owner['metadata']['name']}-{role.lower()}-0"
        template = owner["spec"][self.replicas][role]["template"]
        labels = {**template["metadata"]["labels"], self.role: role.lower()}
        reference = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
        about = {
            "name": name,
            "namespace": NAMESPACE,
            "labels": labels,
            "ownerReferences": [reference],
        }
        spec = {
            "restartPolicy": "OnFailure",
            "terminationGracePeriodSeconds": 30,
            **template["spec"],
        }
        self._api.put("pods", {"metadata": about, "spec": spec, "status": {"phase": "Pending"}})
        self._api.kubelet.start(name)
        return name

    def preempt(self, job: str) -> None:
        """Preempt it like Kueue: suspend it and delete its pods."""
        self._say(job, "Suspended", "True")
        for pod in self._pods(job):
            self._api.remove("pods", NAMESPACE, pod["metadata"]["name"])

    def readmit(self, job: str) -> tuple[str, str]:
        self._say(job, "Suspended", "False")
        return self.make_pods(job)

    def succeed(self, job: str) -> None:
        self._say(job, "Succeeded", "True")

    def fail(self, job: str) -> None:
        """Let it fail, and keep its pods."""
        self._say(job, "Failed", "True")

    def restart(
        self, pod: str, *, exit_code: int = 1, started_s_ago: float = 0, runs: bool = False
    ) -> None:
        """Its container has ended and is started again, or (not runs) waits for that.
        started_s_ago: the life that ended.
        """

        def restarted(obj: Raw) -> None:
            (status,) = obj["status"]["containerStatuses"]
            began = (datetime.now(UTC) - timedelta(seconds=started_s_ago)).strftime(
                "%Y-%m-%dT%H:%M:%SZ"
            )
            created = obj["metadata"]["creationTimestamp"]
            obj["metadata"]["creationTimestamp"] = min(created, began)
            last = {
                "exitCode": exit_code,
                "reason": "Error",
                "startedAt": began,
                "finishedAt": stamp(),
            }
            status["restartCount"] += 1
            status["lastState"] = {"terminated": last}
            again = "back-off 10s restarting failed container"
            status["state"] = (
                {"running": {"startedAt": stamp()}}
                if runs
                else {"waiting": {"reason": "CrashLoopBackOff", "message": again}}
            )

        self._api.change("pods", NAMESPACE, pod, restarted)

    def running_pods(self) -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in self._api.all("pods", NAMESPACE)
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]

    async def until_made(self, job: str, *, within_s: float = 10) -> None:
        async with asyncio.timeout(within_s):
            # made by another task of this loop
            while self._api.find(self.plural, NAMESPACE, job) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def _pods(self, job: str) -> list[Raw]:
        return [
            pod
            for pod in self._api.all("pods", NAMESPACE)
            if pod["metadata"]["ownerReferences"][0]["name"] == job
        ]

    def _say(self, job: str, kind: str, status: str) -> None:
        def said(obj: Raw) -> None:
            conditions = [
                each for each in obj["status"].get("conditions", ()) if each["type"] != kind
            ]
            obj["status"]["conditions"] = [
                *conditions,
                {"type": kind, "status": status, "lastTransitionTime": stamp()},
            ]

        self._api.change(self.plural, NAMESPACE, job, said)


class PyTorchOperator(FakeOperator):
    """The same of a PyTorchJob, whose containers are not restarted."""

    api_version, plural, kind = "kubeflow.org/v1", "pytorchjobs", "PyTorchJob"
    replicas, role = "pytorchReplicaSpecs", "training.kubeflow.org/job-role"
