"""`tuner confirm`, `reproduce` and `pack` of a search whose trials are Jobs of a fake cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.kube.console import ended, experiment, start, tuner
from tests.kube.fake_api import FakeApi
from tests.kube.fake_kubelet import Script


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]["containers"][0]
    return found


def seed_of(job: dict[str, Any]) -> str:
    (seed,) = [each["value"] for each in container_of(job)["env"] if each["name"] == "TUNER_SEED"]
    return str(seed)


def test_trials_run_again_with_their_seed_and_image_and_elsewhere_after_a_pack(
    tmp_path: Path,
) -> None:
    (tmp_path / "x.yaml").write_text(experiment())
    jobs: dict[str, dict[str, Any]] = {}

    def script(job: dict[str, Any]) -> Script:
        jobs[job["metadata"]["name"]] = job
        return Script(lines=(f"score=0.{int(seed_of(job)) % 97:02}",), seconds=0.05)

    def named(part: str) -> list[dict[str, Any]]:
        return [job for name, job in sorted(jobs.items()) if name.startswith(part)]

    async def go() -> None:
        async with FakeApi() as api:
            api.kubelet.play(script)

            async def done(*words: str, state: str = "state") -> str:
                found = await ended(start(tmp_path, api.kubeconfig(), *words, state=state))
                assert found.code == 0, found.err
                return found.out + found.err

            await done("run", "x.yaml")
            shown = await done("confirm", "tiny", "--top", "2", "--seeds", "2")
            assert "Reruns of tiny, with 2 new seeds" in shown
            seeds = [seed_of(job) for job in named("tiny-confirm-")]
            assert (len(seeds), len(set(seeds))) == (4, 2)

            shown = await done("reproduce", "tiny/1")
            assert "the recorded value is reproduced exactly" in shown
            assert "image: example/tiny:1@sha256:0" in shown
            (again,) = named("tiny-reproduce-1-")
            assert container_of(again)["image"] == "example/tiny:1@sha256:0"
            (before,) = [job for job in named("tiny-") if job["metadata"]["name"][-2:] == "-1"][-1:]
            assert seed_of(again) == seed_of(before)

            await done("pack", "tiny")
            await done("unpack", "tiny.tar.gz", state="elsewhere")
            await done("extend", "tiny", "--trials", "4", state="elsewhere")
            trials = await tuner(api, tmp_path, "get", "trials", "tiny", "-o", "name")
            assert len(trials.out.splitlines()) == 3

    asyncio.run(go())
