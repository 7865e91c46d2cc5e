"""The final stage on a fake cluster: its own Job after the last trial,
which the next controller adopts.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.core.model import FINAL as FINAL_NUMBER
from controller.runtime.kubernetes import recovery
from controller.runtime.kubernetes.job_builder import anchor, build_objects
from controller.runtime.kubernetes.sample_manifests import UID, sample_launch
from controller.spec import read
from suggest.errors import FailedPrecondition
from tests.kube.console import ended, experiment, start, tuner
from tests.kube.fake_api import FakeApi, kubeconfig_of
from tests.kube.fake_kubelet import Script
from tests.kube.small_cluster import eventually

FINAL = """
  final:
    command: [python, export.py, "--x=${x}"]
    resources: {memory: 2Gi}
    timeout: 30s
"""
TRIAL = "resources: {cpu: 1, memory: 1Gi}\n    checkpoints: {claim: kept}"


class Cluster:
    """A server with a kubelet, and `tuner` commands as separate processes."""

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self.api = api
        self.folder = folder
        (folder / "x.yaml").write_text(experiment(trial=TRIAL) + FINAL)
        self.kubelet = api.kubelet
        self.final = Script(seconds=0.1, lines=("exported",))
        self.kubelet.play(self._script)

    def _script(self, job: dict[str, Any]) -> Script:
        name = job["metadata"]["name"]
        if "-final" in name:
            return self.final
        return Script(lines=(f"score=0.{name.rpartition('-')[2]}",), seconds=0.05)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return start(self.folder, self.api.kubeconfig(), *words)

    async def told(self, *words: str) -> str:
        answer = await tuner(self.api, self.folder, *words)
        assert answer.code == 0, answer.err
        return answer.out

    def jobs(self) -> list[str]:
        return [job["metadata"]["name"] for job in self.api.all("jobs", "user1")]


def beside_a_cluster(folder: Path, play: Callable[[Cluster], Any]) -> None:
    async def go() -> None:
        async with FakeApi() as api:
            await play(Cluster(api, folder))

    asyncio.run(go())


def test_a_final_stage_is_adopted_by_the_next_controller_and_is_not_a_trial(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        cluster.final = Script(forever=True)
        process = cluster.start("run", "x.yaml")
        await eventually(lambda: any(name.endswith("-final") for name in cluster.jobs()))
        await eventually(lambda: cluster.api.all("pods", "user1"))
        (job,) = cluster.api.all("jobs", "user1")
        assert job["metadata"]["labels"]["tuner.dev/trial"] == "final"
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert container["command"][:2] == ["python", "export.py"]
        assert container["resources"]["limits"] == {"cpu": "1", "memory": "2Gi"}
        env = {each["name"]: each.get("value") for each in container["env"]}
        assert (env["TUNER_STAGE"], env["TUNER_TRIAL_NUMBER"]) == ("final", "2")
        assert any(each.get("subPath", "").endswith("/final") for each in container["volumeMounts"])
        process.kill()
        await ended(process)
        shown = json.loads(await cluster.told("get", "trials", "tiny", "-o", "json"))
        assert [one["state"] for one in shown] == ["succeeded"] * 3
        again = cluster.start("resume", "tiny")
        (pod,) = cluster.api.all("pods", "user1")
        cluster.kubelet.print(("user1", pod["metadata"]["name"]), "exported")
        cluster.kubelet.end(("user1", pod["metadata"]["name"]), exit_code=0)
        cluster.kubelet.finish_job("user1", job["metadata"]["name"])
        done = await ended(again)
        assert done.code == 0, done.err
        final = json.loads(await cluster.told("best", "tiny", "-o", "json"))["final"]
        assert (final["state"], final["trial"], len(final["attempts"])) == ("succeeded", 2, 1)
        assert "outputs" not in final
        assert "are in the claim kept, folder tiny-" in await cluster.told("best", "tiny")
        assert cluster.jobs() == []

    beside_a_cluster(tmp_path, play)


def test_a_final_stage_is_not_taken_for_a_trial_after_a_lost_database(tmp_path: Path) -> None:
    spec = read(experiment(trial=TRIAL) + FINAL, source="x.yaml").spec
    stage = sample_launch(spec, FINAL_NUMBER)

    async def go() -> None:
        async with FakeApi() as api:
            owner = anchor(spec, UID)
            owner["metadata"]["namespace"] = "user1"
            api.put("configmaps", owner)
            (job,) = build_objects(stage)
            api.put("jobs", job)
            with (
                kubeconfig_of(api.kubeconfig()),
                pytest.raises(FailedPrecondition, match="is its final stage"),
            ):
                await recovery.recover(
                    "tiny", context=None, namespace="user1", print_line=lambda _line: None
                )

    asyncio.run(go())


def test_a_dry_run_shows_the_final_stage_and_validates_it_on_the_server(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(experiment(trial=TRIAL) + FINAL)

    async def go() -> None:
        async with FakeApi() as api:
            shown = await tuner(api, tmp_path, "run", str(tmp_path / "x.yaml"), "--dry-run=client")
            kinds = [
                (each["kind"], each["metadata"]["name"]) for each in yaml.safe_load_all(shown.out)
            ]
            assert kinds[2:] == [("Job", "tiny-dryru-final"), ("Pod", "tiny-dryru-final")]
            assert "# Its final stage, after the last trial" in shown.out
            asked = await tuner(api, tmp_path, "run", str(tmp_path / "x.yaml"), "--dry-run=server")
            assert (asked.code, "Job tiny-dryru-final: accepted" in asked.out) == (0, True)
            hard = {"limits.memory": "1Gi"}
            quota = {"metadata": {"name": "small", "namespace": "user1"}, "spec": {"hard": hard}}
            api.put("resourcequotas", {**quota, "status": {"hard": hard}})
            refused = await tuner(
                api, tmp_path, "run", str(tmp_path / "x.yaml"), "--dry-run=server"
            )
            assert refused.code == 2
            assert (
                "tiny-dryru-final: refused" in refused.out
                or "The final stage as a whole: refused" in refused.out
            )

    with kubeconfig_of({}):
        asyncio.run(go())
