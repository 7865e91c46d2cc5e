"""A complete search through a queue of Kueue: `tuner run` with a FakeApi and a simulated Kueue."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kube.console import ended, experiment, start, tuner
from tests.kube.fake_api import FakeApi
from tests.kube.fake_kueue import NAMESPACE, QUEUE, FakeKueue
from tests.kube.small_cluster import eventually

Raw = dict[str, Any]

FILE = experiment(trial=f"queue: {QUEUE}\n    resources: {{gpu: 1}}").replace(
    "trials: 3", "trials: 1"
)
NEEDED = "insufficient unused quota for cpu in flavor default, 500m more needed"


async def the_trial(api: FakeApi, folder: Path) -> Raw:
    (found,) = json.loads((await tuner(api, folder, "get", "trials", "tiny", "-o", "json")).out)
    return dict(found)


async def until(api: FakeApi, folder: Path, *, state: str, reason: str = "") -> Raw:
    shown: Raw = {}
    give_up_at = time.monotonic() + 30
    while time.monotonic() < give_up_at:
        shown = await the_trial(api, folder)
        if (shown["state"], shown.get("reason", "")) == (state, reason):
            return shown
        await asyncio.sleep(0.05)
    raise AssertionError(f"never {state}: {shown}")


async def held(api: FakeApi, folder: Path) -> str:
    """Return what `top` shows about this experiment's GPUs."""
    line = (await tuner(api, folder, "top", "tiny")).out.splitlines()[1]
    return line.rpartition("; ")[2]


def test_a_preempted_trial_gives_its_gpu_back_and_runs_again_as_the_same_attempt(
    tmp_path: Path,
) -> None:
    (tmp_path / "x.yaml").write_text(FILE)

    async def go() -> None:
        async with FakeApi() as api:
            kueue = FakeKueue(api)
            kueue.queue()
            run = start(tmp_path, api.kubeconfig(), "run", "x.yaml")
            try:
                await eventually(lambda: len(api.all("jobs", NAMESPACE)) == 1, within_s=30)
                name = api.all("jobs", NAMESPACE)[0]["metadata"]["name"]
                kueue.hold("jobs", name)
                await until(
                    api,
                    tmp_path,
                    state="queued",
                    reason=f"queued by Kueue (queue {QUEUE}): {NEEDED}",
                )
                first = kueue.admit("jobs", name)
                running = await until(api, tmp_path, state="running")
                assert running["attempts"][0]["node"] == api.kubelet.node
                assert await held(api, tmp_path) == "this experiment holds 1"
                kueue.preempt("jobs", name, first)
                kueue.hold("jobs", name)
                waits = f"preempted by Kueue, waits in queue {QUEUE}: {NEEDED}"
                (waiting,) = (await until(api, tmp_path, state="queued", reason=waits))["attempts"]
                assert {"node", "startTime", "exitCode"} & set(waiting) == set()
                assert await held(api, tmp_path) == "this experiment holds 0"
                described = (await tuner(api, tmp_path, "describe", "tiny/0")).out
                assert f"Why: it waits, and starts by itself: {waits}" in described
                second = kueue.admit("jobs", name)
                await until(api, tmp_path, state="running")
                api.kubelet.print((NAMESPACE, second), "score=0.9")
                api.kubelet.end((NAMESPACE, second))
                done = await ended(run)
                assert done.code == 0, done.err
                trial = await the_trial(api, tmp_path)
                assert (trial["state"], trial["value"], len(trial["attempts"])) == (
                    "succeeded",
                    0.9,
                    1,
                )
            finally:
                if run.poll() is None:
                    run.kill()
                    await ended(run)

    asyncio.run(go())


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        (
            True,
            "LocalQueue team-a is not in user1; create it, or name another one in "
            "spec.trial.queue: team-b",
        ),
        (False, "the cluster has no Kueue"),
    ],
)
def test_a_queue_that_cannot_admit_anything_is_refused_before_anything_is_made(
    tmp_path: Path, installed: bool, said: str
) -> None:
    (tmp_path / "x.yaml").write_text(FILE)

    async def go() -> None:
        async with FakeApi() as api:
            if installed:
                FakeKueue(api).queue("team-b")
            version = api.version
            run = start(tmp_path, api.kubeconfig(), "run", "x.yaml")
            refused = await ended(run)
            assert refused.code == 2, refused.err
            assert said in refused.err
            assert "spec.trial.queue" in refused.err
            assert api.version == version

    asyncio.run(go())
