"""`tuner controller`: what becomes of a custom resource, on the small API server."""

from __future__ import annotations

from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE, Installation, experiment, on_a_cluster

FOREVER = Script(lines=("score=0.5",), forever=True)


async def check_run(installed: Installation) -> None:
    installed.apply(experiment())
    await installed.until_state("succeeded")
    status = installed.status()
    assert (status["done"], status["trials"], status["revision"]) == ("3/3", {"succeeded": 3}, 1)
    assert status["best"]["value"] == 0.5
    assert installed.condition("Succeeded")["status"] == "True"


test_a_resource_is_run_and_shows_its_result = on_a_cluster(check_run)
