"""Credentials that expire during a run: renewed ones are used, and without them no trial is lost."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from tests.kube.console import experiment
from tests.kube.fake_api import FakeApi, Raw
from tests.kube.fake_kubelet import Script
from tests.kube.small_cluster import eventually
from tests.kube.test_operators import TUNER

PLUGIN = """
test -s token || { echo "log in first" >&2; touch refused; exit 1; }
cat <<END
{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "$(cat token)"}}
END
"""


async def start(folder: Path, config: Raw, *words: str) -> asyncio.subprocess.Process:
    write(folder, config)
    env = {key: value for key, value in os.environ.items() if not key.startswith("TUNER_")}
    env |= {"KUBECONFIG": str(folder / "kubeconfig"), "TUNER_STATE_DIR": str(folder / "state")}
    nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        TUNER, *words, cwd=folder, env=env, stdin=nothing, stdout=nothing, stderr=pipe
    )


def write(folder: Path, config: Raw) -> None:
    (folder / "kubeconfig").write_text(json.dumps(config))


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    _, err = await process.communicate()
    return process.returncode, err.decode()


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
            running = await start(tmp_path, config, "run", "x.yaml")
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
            code, err = await ended(running)
            assert code == 0, err
            assert "log in first" in err

    asyncio.run(go())


def test_a_fixed_token_that_expires_ends_the_run_and_no_trial(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(experiment())

    async def go() -> None:
        async with FakeApi() as api:
            api.kubelet.play(lambda job: Script(lines=("score=0.5",), forever=True))
            api.token = "first"
            running = await start(tmp_path, api.kubeconfig(token="first"), "run", "x.yaml")
            await eventually(lambda: len(api.all("pods", "user1")) == 1, within_s=30)
            api.token = "second"
            api.drop_connections()
            code, err = await ended(running)
            assert code == 4, err
            assert "log in again" in err
            (pod,) = (each["metadata"]["name"] for each in api.all("pods", "user1"))
            api.kubelet.play(lambda job: Script(lines=("score=0.5",)))
            again = await start(tmp_path, api.kubeconfig(token="second"), "resume", "tiny")
            api.kubelet.end(pod)
            api.kubelet.finish_job("user1", pod.rpartition("-")[0])
            code, err = await ended(again)
            assert code == 0, err
            made = [query for method, path, query in api.requests if method == "POST" and path.endswith("/jobs")]
            assert len([query for query in made if "dryRun" not in query]) == 3, "one Job for each trial"

    asyncio.run(go())
