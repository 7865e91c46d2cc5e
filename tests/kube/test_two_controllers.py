"""`tuner resume --from-cluster` from another state directory, while the experiment's controller runs and after it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.kube.console import ended, experiment, start
from tests.kube.fake_api import FakeApi
from tests.kube.fake_kubelet import Script
from tests.kube.small_cluster import eventually

NAMESPACE = "user1"


def test_a_lost_database_is_not_rebuilt_beside_a_living_controller(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(experiment())

    async def go() -> None:
        async with FakeApi() as api:
            api.kubelet.play(lambda job: Script(lines=("score=0.5",), forever=True))
            first = start(tmp_path, api.kubeconfig(), "run", "x.yaml")
            await eventually(lambda: len(api.all("pods", NAMESPACE)) == 1, within_s=30)
            asked = len(api.requests)
            recover = ("resume", "tiny", "--from-cluster", "-n", NAMESPACE)
            second = await ended(start(tmp_path, api.kubeconfig(), *recover, state="other"))
            assert second.code == 6, second.err
            assert "another controller runs this experiment: " in second.err
            (pod,) = (each["metadata"]["name"] for each in api.all("pods", NAMESPACE))
            assert not any(method == "DELETE" for method, _, _ in api.requests[asked:])
            first.kill()
            await ended(first)
            (lease,) = api.all("leases", NAMESPACE)
            old = {"renewTime": "2020-01-01T00:00:00.000000Z"}
            api.change("leases", NAMESPACE, lease["metadata"]["name"], lambda obj: obj["spec"].update(old))
            api.kubelet.play(lambda job: Script(lines=("score=0.7",)))
            third = start(tmp_path, api.kubeconfig(), *recover, state="other")
            api.kubelet.end(pod)
            api.kubelet.finish_job(NAMESPACE, pod.rpartition("-")[0])
            done = await ended(third)
            assert done.code == 0, done.err
            told = await ended(start(tmp_path, api.kubeconfig(), "get", "trials", "tiny", "-o", "json", state="other"))
            assert sorted(each["value"] for each in json.loads(told.out)) == [0.5, 0.7, 0.7]

    asyncio.run(go())
