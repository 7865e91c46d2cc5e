"""Credentials that expire during a run: renewed ones are used,
and without them no trial is lost.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.kube.console import ended, experiment, start
from tests.kube.fake_api import FakeApi
from tests.kube.fake_kubelet import Script
from tests.kube.small_cluster import eventually

PLUGIN = """
test -s token || { echo "log in first" >&2; touch refused; exit 1; }
cat <<END
{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "$(cat token)"}}
END
"""


def test_a_run_waits_while_its_plugin_gives_no_credentials(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(experiment())

    async def go() -> None:
        async with FakeApi() as api:
            api.kubelet.play(lambda job: Script(lines=("score=0.5",), forever=True))
            config = api.kubeconfig()
            plugin = {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": "sh",
                "args": ["-c", f"cd {tmp_path}\n{PLUGIN}"],
            }
            config["users"][0]["user"] = {"exec": plugin}
            api.token = "first"
            (tmp_path / "token").write_text("first")
            running = start(tmp_path, config, "run", "x.yaml")
            await eventually(lambda: len(api.all("pods", "user1")) == 1, within_s=30)
            (tmp_path / "token").write_text("")
            api.token = "second"
            api.drop_connections()
            await eventually((tmp_path / "refused").exists, within_s=30)
            (pod,) = (each["metadata"]["name"] for each in api.all("pods", "user1"))
            api.kubelet.play(lambda job: Script(lines=("score=0.5",)))
            api.kubelet.end(pod)
            api.kubelet.finish_job("user1", pod.rpartition("-")[0])
            (tmp_path / "token").write_text("second")
            done = await ended(running)
            assert done.code == 0, done.err
            assert "log in first" in done.err

    asyncio.run(go())


def test_a_fixed_token_that_expires_ends_the_run_and_no_trial(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(experiment())

    async def go() -> None:
        async with FakeApi() as api:
            api.kubelet.play(lambda job: Script(lines=("score=0.5",), forever=True))
            api.token = "first"
            running = start(tmp_path, api.kubeconfig(token="first"), "run", "x.yaml")
            await eventually(lambda: len(api.all("pods", "user1")) == 1, within_s=30)
            api.token = "second"
            api.drop_connections()
            done = await ended(running)
            assert done.code == 4, done.err
            assert "log in again" in done.err
            (pod,) = (each["metadata"]["name"] for each in api.all("pods", "user1"))
            api.kubelet.play(lambda job: Script(lines=("score=0.5",)))
            again = start(tmp_path, api.kubeconfig(token="second"), "resume", "tiny")
            api.kubelet.end(pod)
            api.kubelet.finish_job("user1", pod.rpartition("-")[0])
            done = await ended(again)
            assert done.code == 0, done.err
            made = [
                query
                for method, path, query in api.requests
                if method == "POST" and path.endswith("/jobs")
            ]
            assert len([query for query in made if "dryRun" not in query]) == 3, (
                "one Job for each trial"
            )

    asyncio.run(go())
