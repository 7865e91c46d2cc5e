"""Labels and owners of objects that somebody changes by hand, while their trials wait or run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from controller.core.model import UID_LABEL
from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE, Installation, Raw, created_jobs, experiment, on_a_cluster

FOREVER = Script(lines=("score=0.5",), forever=True)
TRIAL_LABEL = "tuner.dev/trial"


def without_ours(labels: Raw) -> None:
    for key in [key for key in labels if key.startswith("tuner.dev/")]:
        del labels[key]


# By the name of the experiment whose objects are changed.
CHANGES: dict[str, Callable[[Raw], object]] = {
    "no-uid": lambda labels: labels.pop(UID_LABEL),
    "other-uid": lambda labels: labels.update({UID_LABEL: "another"}),
    "no-trial": lambda labels: labels.pop(TRIAL_LABEL),
    "other-trial": lambda labels: labels.update({TRIAL_LABEL: "7"}),
    "no-labels": without_ours,
}


def objects(installed: Installation, plural: str, experiment_name: str) -> list[Raw]:
    found = installed.api.all(plural, NAMESPACE)
    return [obj for obj in found if obj["metadata"]["name"].startswith(f"{experiment_name}-")]


def change_labels(installed: Installation, plurals: Sequence[str]) -> None:
    for plural in plurals:
        for name, change in CHANGES.items():
            for obj in objects(installed, plural, name):
                installed.api.change(
                    plural,
                    NAMESPACE,
                    obj["metadata"]["name"],
                    lambda each, change=change: change(each["metadata"]["labels"]),
                )


def apply_all(installed: Installation) -> None:
    for name in CHANGES:
        installed.apply(experiment(name, parallelism=1, budget={"trials": 1}))


def all_run(installed: Installation) -> bool:
    return all(installed.status(name).get("running") == 1 for name in CHANGES)


async def a_while(installed: Installation) -> None:
    """Return after several turns of the loops and of the statuses."""
    await asyncio.sleep(1.5)
    assert created_jobs(installed) == len(CHANGES)


async def each_succeeds_once(installed: Installation) -> None:
    for pod in installed.api.all("pods", NAMESPACE):
        installed.api.kubelet.end(pod["metadata"]["name"])
    for job in installed.jobs:
        installed.api.kubelet.finish_job(NAMESPACE, job["metadata"]["name"])
    for name in CHANGES:
        await installed.until_state("succeeded", name)
    assert created_jobs(installed) == len(CHANGES)
    assert not installed.jobs


@pytest.mark.parametrize("plurals", [["jobs"], ["pods"], ["jobs", "pods"]], ids="+".join)
def test_a_trial_whose_labels_change_while_it_runs_goes_on(
    plurals: Sequence[str], tmp_path: Path
) -> None:
    @on_a_cluster(FOREVER)
    async def check(installed: Installation) -> None:
        apply_all(installed)
        await installed.until(lambda: all_run(installed))
        change_labels(installed, plurals)
        await a_while(installed)
        await each_succeeds_once(installed)

    check(tmp_path)


@on_a_cluster()
async def test_a_trial_whose_labels_change_before_it_has_a_pod_waits_for_it(
    installed: Installation,
) -> None:
    installed.api.kubelet.play(lambda _job: None)
    apply_all(installed)
    await installed.until(lambda: len(installed.jobs) == len(CHANGES))
    change_labels(installed, ["jobs"])
    await a_while(installed)
    for job in installed.jobs:
        name, script = job["metadata"]["name"], Script(lines=("score=0.5",))
        await installed.api.kubelet.run(NAMESPACE, name, script)
    for name in CHANGES:
        await installed.until_state("succeeded", name)
    assert created_jobs(installed) == len(CHANGES)
    assert not installed.jobs


@pytest.mark.parametrize("plurals", [["jobs"], ["pods"], ["jobs", "pods"]], ids="+".join)
def test_the_next_controller_finds_objects_with_other_labels(
    plurals: Sequence[str], tmp_path: Path
) -> None:
    @on_a_cluster(FOREVER)
    async def check(installed: Installation) -> None:
        apply_all(installed)
        await installed.until(lambda: all_run(installed))
        await installed.stop()
        change_labels(installed, plurals)
        for pod in installed.api.all("pods", NAMESPACE):
            installed.api.kubelet.print(pod["metadata"]["name"], "score=0.75")
        installed.start()
        await installed.until(lambda: installed.serves)
        await a_while(installed)
        assert all_run(installed)
        await each_succeeds_once(installed)
        for name in CHANGES:
            assert installed.status(name)["best"]["value"] == 0.75

    check(tmp_path)


@on_a_cluster(FOREVER)
async def test_a_job_without_labels_is_stopped_and_deleted_with_its_experiment(
    installed: Installation,
) -> None:
    apply_all(installed)
    await installed.until(lambda: all_run(installed))
    change_labels(installed, ["jobs", "pods"])
    await a_while(installed)
    for name in CHANGES:
        installed.delete(name)
    await installed.until(lambda: not installed.api.all("experiments", NAMESPACE))
    assert not installed.jobs
    assert not installed.api.all("pods", NAMESPACE)


def disown_jobs(installed: Installation) -> None:
    for job in installed.jobs:
        installed.api.change(
            "jobs",
            NAMESPACE,
            job["metadata"]["name"],
            lambda each: each["metadata"].pop("ownerReferences"),
        )


@pytest.mark.parametrize("forced", [False, True], ids=["in order", "without finalizers"])
def test_a_job_without_its_owner_ends_with_its_experiment(forced: bool, tmp_path: Path) -> None:
    @on_a_cluster(FOREVER)
    async def check(installed: Installation) -> None:
        installed.apply(experiment(parallelism=2))
        await installed.until(lambda: installed.status().get("running") == 2)
        disown_jobs(installed)
        if forced:
            installed.api.remove("experiments", NAMESPACE, "tiny")
        else:
            installed.delete()
        for plural in ("jobs", "pods", "experiments"):
            await installed.until(lambda plural=plural: not installed.api.all(plural, NAMESPACE))

    check(tmp_path)


def test_a_trial_that_deletes_its_own_job_fails_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @on_a_cluster()
    async def check(installed: Installation) -> None:
        def deletes_itself(job: Raw) -> Script:
            asyncio.get_running_loop().call_later(
                0.05, installed.api.remove, "jobs", NAMESPACE, job["metadata"]["name"]
            )
            return FOREVER

        installed.api.kubelet.play(deletes_itself)
        resource = experiment(budget={"trials": 1})
        resource["spec"]["trial"]["retries"] = {"infrastructure": 1}
        installed.apply(resource)
        await installed.until_state("failed")
        assert created_jobs(installed) == 2

    with caplog.at_level("INFO"):
        check(tmp_path)
    assert "deleted by someone else" in caplog.text


@on_a_cluster()
async def test_a_trial_that_deletes_its_own_experiment_ends_only_that(
    installed: Installation,
) -> None:
    def deletes_experiment(job: Raw) -> Script:
        if job["metadata"]["name"].startswith("tiny-"):
            asyncio.get_running_loop().call_later(0.05, installed.delete, "tiny")
        return FOREVER

    installed.api.kubelet.play(deletes_experiment)
    installed.apply(experiment("other", parallelism=1))
    installed.apply(experiment(parallelism=2))
    await installed.until(lambda: not installed.api.find("experiments", NAMESPACE, "tiny"))
    await installed.until(lambda: installed.status("other").get("running") == 1)
    assert len(installed.jobs) == 1
