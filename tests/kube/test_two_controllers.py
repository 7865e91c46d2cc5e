"""`tuner resume --from-cluster` from another state directory, while the experiment's controller
runs and after it.

And the first state directory, after another one has taken its experiment over.
"""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

from tests.kube.console import CommandResult, ended, experiment, start
from tests.kube.fake_api import FakeApi
from tests.kube.fake_kubelet import Script
from tests.kube.small_cluster import eventually

NAMESPACE = "user1"
RECOVER = ("resume", "tiny", "--from-cluster", "-n", NAMESPACE)


async def taken_over(folder: Path, api: FakeApi, *, failpoint: str = "") -> CommandResult:
    """Kill `tuner run` beside its first trial; rebuild the experiment
    in the directory `other`, and let it finish.
    """
    api.kubelet.play(lambda job: Script(lines=("score=0.5",), forever=True))
    first = start(folder, api.kubeconfig(), "run", "x.yaml")
    await eventually(lambda: len(api.all("pods", NAMESPACE)) == 1, within_s=30)
    first.kill()
    await ended(first)
    expire_lease(api)
    (pod,) = (each["metadata"]["name"] for each in api.all("pods", NAMESPACE))
    api.kubelet.play(lambda job: Script(lines=("score=0.7",)))
    second = start(folder, api.kubeconfig(), *RECOVER, state="other", failpoint=failpoint)
    api.kubelet.end(pod)
    api.kubelet.finish_job(NAMESPACE, pod.rpartition("-")[0])
    return await ended(second)


def expire_lease(api: FakeApi) -> None:
    (lease,) = api.all("leases", NAMESPACE)
    old = {"renewTime": "2020-01-01T00:00:00.000000Z"}
    api.change("leases", NAMESPACE, lease["metadata"]["name"], lambda obj: obj["spec"].update(old))


def created(api: FakeApi) -> int:
    return sum(method == "POST" and path.endswith("/jobs") for method, path, _ in api.requests)


def test_an_experiment_that_another_directory_finished_does_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(experiment())

    async def go() -> None:
        async with FakeApi() as api:
            done = await taken_over(tmp_path, api)
            assert done.code == 0, done.err
            before = created(api)
            stale = ("resume tiny", "run x.yaml", "stop tiny", "delete tiny --yes")
            for words in map(str.split, stale):
                refused = await ended(start(tmp_path, api.kubeconfig(), *words))
                assert (words, refused.code) == (words, 6), refused.err
                assert (
                    f"tiny has succeeded elsewhere ({socket.gethostname()}:{tmp_path}/other/"
                    in refused.err
                )
                assert "best: score 0.7" in refused.err
            third = await ended(start(tmp_path, api.kubeconfig(), *RECOVER, state="third"))
            assert third.code == 6, third.err
            assert "tiny has succeeded elsewhere" in third.err
            assert "delete configmap tiny-" in third.err
            assert created(api) == before
            forgotten = await ended(
                start(tmp_path, api.kubeconfig(), "delete", "tiny", "--yes", "--local-only")
            )
            assert forgotten.code == 0, forgotten.err
            again = await ended(start(tmp_path, api.kubeconfig(), "resume", "tiny", state="other"))
            assert again.code == 0, again.err

    asyncio.run(go())


def test_a_kill_between_the_record_of_the_end_and_its_row_loses_neither(tmp_path: Path) -> None:
    """The record comes first: in between only the directory
    that ended the experiment can go on with it.
    """
    (tmp_path / "x.yaml").write_text(experiment())

    async def go() -> None:
        async with FakeApi() as api:
            killed = await taken_over(tmp_path, api, failpoint="cluster.conclude.after")
            assert killed.code == -9, killed.err
            told = await ended(
                start(tmp_path, api.kubeconfig(), "get", "experiments", "-o", "json", state="other")
            )
            assert json.loads(told.out)[0]["state"] == "running"
            expire_lease(api)
            before = created(api)
            refused = await ended(start(tmp_path, api.kubeconfig(), "resume", "tiny"))
            assert (refused.code, "tiny has succeeded elsewhere" in refused.err) == (6, True), (
                refused.err
            )
            done = await ended(start(tmp_path, api.kubeconfig(), "resume", "tiny", state="other"))
            assert done.code == 0, done.err
            assert created(api) == before

    asyncio.run(go())
