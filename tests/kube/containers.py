"""Containers of a fake cluster: each pod runs its trial's program as a process of this machine.

As a kubelet does, it prints what the process prints, at once, and keeps the file with the pod's
annotation up to date. The interpreter has no installed package, as a bare image.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from controller.runtime.kubernetes.labels import ANSWERS
from controller.runtime.trial_variables import PARAMETER_ANSWERS
from tests.kube.fake_api import FakeApi, Raw
from tests.kube.test_trial_files import materialized


class Containers:
    """Runs the Jobs of an API from now on.

    started: the names of the pods, in the order of their starts.
    """

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self._api = api
        self._folder = folder
        self._tasks: list[asyncio.Task[None]] = []
        self.started: list[str] = []
        api.kubelet.play(self._take)

    def _take(self, job: Raw) -> None:
        self._tasks.append(asyncio.create_task(self._run(job)))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, job: Raw) -> None:
        about = job["metadata"]
        at, name = about["namespace"], about["name"]
        pod = self._api.kubelet.make_pod(at, name)
        self.started.append(pod)
        self._api.kubelet.start((at, pod))
        folder = self._folder / pod
        directory = materialized(self._api, job, folder)
        container = job["spec"]["template"]["spec"]["containers"][0]
        env = {each["name"]: each["value"] for each in container["env"]}
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        answers = Path(env[PARAMETER_ANSWERS])
        assert str(answers.parent) in mounts
        env[PARAMETER_ANSWERS] = str(folder / answers.name)
        env["TUNER_OUTPUT_DIR"] = str(folder)
        words = [word.replace("/tuner/files", str(directory)) for word in container["command"][1:]]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-S",
            *words,
            cwd=directory,
            env=env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        shown = asyncio.create_task(self._show(at, pod, folder / answers.name))
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                self._api.kubelet.print((at, pod), line.rstrip(b"\n"))
            code = await process.wait()
        finally:
            shown.cancel()
            if process.returncode is None:
                process.kill()
                await process.wait()
        self._api.kubelet.end((at, pod), exit_code=code)
        self._api.kubelet.finish_job(at, name)

    async def _show(self, namespace: str, pod: str, file: Path) -> None:
        while True:
            found = self._api.find("pods", namespace, pod) or {"metadata": {}}
            file.write_text((found["metadata"].get("annotations") or {}).get(ANSWERS, ""))
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def containers(api: FakeApi, folder: Path) -> AsyncIterator[Containers]:
    running = Containers(api, folder)
    try:
        yield running
    finally:
        await running.close()
