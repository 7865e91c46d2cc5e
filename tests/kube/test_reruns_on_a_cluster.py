"""Trials run again whose search ran as Jobs of a fake cluster."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from controller.core.model import uid_of_resource
from tests.kube.console import ended, experiment, start, tuner
from tests.kube.fake_api import FakeApi
from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE, Installation, on_a_cluster
from tests.kube.operated import experiment as resource


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
            (before,) = [
                job for name, job in jobs.items() if re.fullmatch(r"tiny-[a-z2-7]{5}-1", name)
            ]
            assert seed_of(again) == seed_of(before)

            await done("pack", "tiny")
            await done("unpack", "tiny.tar.gz", state="elsewhere")
            await done("extend", "tiny", "--trials", "4", state="elsewhere")
            trials = await tuner(api, tmp_path, "get", "trials", "tiny", "-o", "name")
            assert len(trials.out.splitlines()) == 3

    asyncio.run(go())


@on_a_cluster()
async def test_a_search_of_the_controller_ends_with_its_best_trials_run_again(
    installed: Installation,
) -> None:
    jobs: dict[str, dict[str, Any]] = {}

    def script(job: dict[str, Any]) -> Script:
        jobs[job["metadata"]["name"]] = job
        return Script(lines=("score=0.5",))

    installed.api.kubelet.play(script)
    installed.apply(resource(confirm={"top": 2, "seeds": 2}))
    await installed.until_state("succeeded", "tiny-confirm")
    made = installed.api.get("experiments", NAMESPACE, "tiny-confirm")
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Experiment", "tiny")
    seeds = [seed_of(job) for name, job in jobs.items() if name.startswith("tiny-confirm-")]
    assert (len(seeds), len(set(seeds))) == (4, 2)
    assert not installed.api.get("experiments", NAMESPACE, "tiny")["metadata"].get("finalizers")


@on_a_cluster()
async def test_reruns_mount_the_files_that_were_sent_with_their_search(
    installed: Installation,
) -> None:
    mounted: dict[str, str] = {}

    def script(job: dict[str, Any]) -> Script:
        volumes = job["spec"]["template"]["spec"]["volumes"]
        (name,) = [each["configMap"]["name"] for each in volumes if "configMap" in each]
        mounted[job["metadata"]["name"]] = name
        return Script(lines=("score=0.5",))

    installed.api.kubelet.play(script)
    command = {"image": "tiny:1", "command": ["python", "train.py"]}
    files = {"files": ["train.py"], "filesDigest": "0123456789"}
    installed.apply(resource(confirm={"top": 2, "seeds": 2}, trial={**command, **files}))
    await installed.until_state("succeeded", "tiny-confirm")
    uid = uid_of_resource(installed.api.get("experiments", NAMESPACE, "tiny")["metadata"]["uid"])
    again = [job for job in mounted if job.startswith("tiny-confirm-")]
    assert len(again) == 4
    assert set(mounted.values()) == {f"tiny-{uid[:5]}-files-0123456789"}


@on_a_cluster()
async def test_a_controller_that_comes_back_creates_the_reruns_once(
    installed: Installation,
) -> None:
    installed.api.forbid("create", "experiments")
    installed.apply(resource(confirm={"top": 1, "seeds": 2}))
    await installed.until_state("succeeded")
    await installed.stop()
    assert installed.api.find("experiments", NAMESPACE, "tiny-confirm") is None
    installed.api.permit()
    installed.start()
    await installed.until_state("succeeded", "tiny-confirm")
    await installed.until(
        lambda: not installed.api.get("experiments", NAMESPACE, "tiny")["metadata"]["finalizers"]
    )
    installed.delete("tiny-confirm")
    await installed.stop()
    installed.start()
    await installed.until(lambda: installed.serves)
    assert installed.api.find("experiments", NAMESPACE, "tiny-confirm") is None
