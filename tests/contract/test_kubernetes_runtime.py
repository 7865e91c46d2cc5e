"""The runtime contract on Kubernetes, with a small API server in this process.

`tests/cluster` runs the same contract on a real control plane and a real kubelet.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from controller.core.model import UID_LABEL, TrialTemplate
from controller.kube.client import KubernetesClient
from controller.kube.cluster import Cluster
from controller.runtime.kubernetes.admission import AdmissionQueue
from controller.runtime.kubernetes.labels import experiment_labels
from controller.runtime.kubernetes.launch import ClusterLaunch, ClusterPart
from controller.runtime.kubernetes.runtime import ClusterTarget, KubernetesRuntime
from controller.runtime.protocol import Launch, Runtime
from controller.runtime.testing import RuntimeContract, Script
from tests.kube import fake_kubelet
from tests.kube.experiment import KeptRecords, Unfenced
from tests.kube.fake_api import FakeApi, kubeconfig_of

NAMESPACE, UID = "user1", "x7k2qaaaaaaaaaaa"
ANCHOR = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "tiny-x7k2q", "labels": experiment_labels("tiny", UID)},
}


class ClusterTestbed:
    """The API server runs from the first runtime to `leave`,
    because a cluster outlives controllers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._alive = AsyncExitStack()
        self._api: FakeApi | None = None
        self._numbers: dict[str, int] = {}
        self._records = KeptRecords()
        self._scripts: dict[str, Script] = {}
        self._runs: list[str] = []

    async def open(self) -> Runtime:
        if self._api is None:
            self._api = await self._alive.enter_async_context(FakeApi())
            self._api.kubelet.play(self._play)
            self._api.refuse = self._refuse
        with kubeconfig_of(self._api.kubeconfig()):
            cluster = Cluster(await KubernetesClient.connect(), labels=f"{UID_LABEL}={UID}")
        self._alive.push_async_callback(cluster.close)
        target = ClusterTarget(
            cluster,
            NAMESPACE,
            UID,
            ANCHOR,
            self._records,
            lambda trial, attempt: self._directory(trial),
            Unfenced(),
        )
        return KubernetesRuntime(target, queue=AdmissionQueue(is_own=True))

    async def leave(self) -> None:
        await self._alive.aclose()

    async def crash(self, runtime: Runtime) -> None:
        await runtime.close()  # it holds nothing but connections, and writes nothing when it closes

    async def vanish(self, name: str) -> None:
        assert self._api is not None
        for pod in self._api.all("pods", NAMESPACE):
            if pod["metadata"]["labels"]["job-name"] == name:
                self._api.remove("pods", NAMESPACE, pod["metadata"]["name"])
        self._api.remove("jobs", NAMESPACE, name)

    def launch(self, name: str, script: Script) -> Launch:
        number = self._numbers.setdefault(name, len(self._numbers))
        self._scripts[name] = script
        template = TrialTemplate(("true",), image="tiny:1")
        part = ClusterPart(NAMESPACE, "tiny", UID, number, 1, {}, template)
        env = {
            "TUNER_OUTPUT_DIR": "/tuner/output",
            "TUNER_CHECKPOINT_DIR": f"/tuner/checkpoints/{number}",
        }
        return ClusterLaunch(
            name, ("true",), env, self._folder, self._directory(number), cluster=part
        )

    def runs(self, name: str) -> int:
        return self._runs.count(name)

    def _directory(self, trial: int) -> Path:
        directory = self._folder / str(trial) / "1"
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def _play(self, job: dict[str, object]) -> fake_kubelet.Script:
        name = str(job["metadata"]["name"])  # type: ignore[index]
        self._runs.append(name)
        script = self._scripts[name]
        return fake_kubelet.Script(
            lines=script.lines,
            seconds=script.lasts_s or 0.0,
            exit_code=script.code,
            ignores_sigterm=script.ignores_sigterm,
            forever=script.lasts_s is None,
        )

    def _refuse(self, plural: str, found: dict[str, object]) -> str:
        name = str(found["metadata"]["name"])  # type: ignore[index]
        if plural == "jobs" and not self._scripts[name].command_exists:
            return "images must come from registry.example"
        return ""


class TestKubernetesRuntime(RuntimeContract):
    @pytest.fixture
    def testbed(self, tmp_path: Path) -> ClusterTestbed:
        return ClusterTestbed(tmp_path)
