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
    """Runs the Jobs of an API from now on, each pod of their workers.

    started: the names of the pods, in the order of their starts. printed: what each has printed.
    """

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self._api = api
        self._folder = folder
        self._tasks: list[asyncio.Task[None]] = []
        self.started: list[str] = []
        self.printed: dict[str, bytes] = {}
        api.kubelet.play(self._take)

    def _take(self, job: Raw) -> None:
        self._tasks.append(asyncio.create_task(self._run(job)))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, job: Raw) -> None:
        """Run the Job's pods, one for each of its workers."""
        about, workers = job["metadata"], range(job["spec"].get("completions", 1))
        await asyncio.gather(*(self._run_pod(job, worker) for worker in workers))
        self._api.kubelet.finish_job(about["namespace"], about["name"])

    async def _run_pod(self, job: Raw, worker: int) -> None:
        at, name = job["metadata"]["namespace"], job["metadata"]["name"]
        index = worker if "completions" in job["spec"] else None
        pod = self._api.kubelet.make_pod(at, name, index=index)
        self.started.append(pod)
        self._api.kubelet.start((at, pod))
        folder = self._folder / pod
        folder.mkdir()
        spec = job["spec"]["template"]["spec"]
        if any(volume["name"] == "tuner-files" for volume in spec["volumes"]):
            materialized(self._api, job, folder)
        container = spec["containers"][0]
        env = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        env["RANK"] = str(worker)
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        answers = Path(env[PARAMETER_ANSWERS])
        assert str(answers.parent) in mounts
        env[PARAMETER_ANSWERS] = str(folder / answers.name)
        env["TUNER_OUTPUT_DIR"] = str(folder)
        words = [word.replace("/tuner/files", str(folder)) for word in container["command"][1:]]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-S",
            *words,
            cwd=folder,
            env=env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        shown = asyncio.create_task(self._show(at, pod, folder / answers.name))
        try:
            assert process.stdout is not None
            async for line in process.stdout:
                self.printed[pod] = self.printed.get(pod, b"") + line
                self._api.kubelet.print((at, pod), line.rstrip(b"\n"))
            code = await process.wait()
        finally:
            shown.cancel()
            if process.returncode is None:
                process.kill()
                await process.wait()
        self._api.kubelet.end((at, pod), exit_code=code)

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
