"""A tenant that misbehaves, beside one with a small experiment: the second one is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller.kube import client
from controller.operator import managed, manager
from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE, Installation, experiment, on_a_cluster

Raw = dict[str, Any]
OTHER = "team-a"
JOBS = f"/apis/batch/v1/namespaces/{OTHER}/jobs"
STATUS = f"/apis/tuner.dev/v1/namespaces/{OTHER}/experiments/a0/status"
QUICK = Script(lines=("score=0.5",), seconds=0.01)
MANY = {"trials": 1000, "failedTrials": "none"}


def misbehaving(installed: Installation, count: int, **spec: object) -> None:
    """Apply experiments of the other tenant."""
    installed.api.put("namespaces", {"metadata": {"name": OTHER}})
    for n in range(count):
        resource = experiment(f"a{n}", **spec)
        resource["metadata"]["namespace"] = OTHER
        installed.apply(resource)


def uid_of(job: Raw) -> str:
    return str(job["metadata"]["labels"]["tuner.dev/uid"])


def asked(installed: Installation, method: str, path: str) -> int:
    return sum(each[:2] == (method, path) for each in installed.api.requests)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the controller wait for each answer, however long it takes."""
    monkeypatch.setattr(client, "_RESPONSE_S", 600.0)
    monkeypatch.setattr(client, "_REQUEST_S", 600.0)


@pytest.mark.usefixtures("patient")
@on_a_cluster(QUICK)
async def test_creates_that_nobody_answers_keep_neither_others_nor_the_lease_waiting(
    installed: Installation,
) -> None:
    misbehaving(installed, 5, parallelism=16, budget=MANY, canary="0s")
    await installed.until(
        lambda: len({uid_of(job) for job in installed.api.all("jobs")}) == 5, within_s=60
    )
    installed.api.hold("POST", JOBS)
    await installed.until(lambda: installed.api.held >= 64, within_s=60)
    installed.apply(experiment())
    await installed.until_state("succeeded", within_s=60)
    lease = "/apis/coordination.k8s.io/v1/namespaces/user1/leases/tuner-controller"
    renewals = asked(installed, "PATCH", lease)
    await installed.until(lambda: asked(installed, "PATCH", lease) > renewals)
    installed.api.release()


@pytest.mark.usefixtures("patient")
@on_a_cluster(QUICK)
async def test_a_status_that_nobody_answers_keeps_no_other_waiting(
    installed: Installation,
) -> None:
    installed.api.hold("PATCH", STATUS)
    misbehaving(installed, 1, budget=MANY)
    await installed.until(lambda: installed.api.held == 1)
    installed.apply(experiment())
    await installed.until_state("succeeded")
    installed.api.release()


@pytest.mark.parametrize("code", [409, 500])
def test_a_status_that_is_refused_is_written_again_ever_more_seldom(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "STATUS_S", 0.01)

    @on_a_cluster(QUICK)
    async def claim(installed: Installation) -> None:
        installed.api.answer(code, times=1000, path=STATUS)
        misbehaving(installed, 1, budget=MANY)
        await installed.until(lambda: asked(installed, "PATCH", STATUS))
        installed.apply(experiment(budget={"trials": 10}))
        await installed.until_state("succeeded", within_s=60)
        assert asked(installed, "PATCH", STATUS) < 10

    claim(tmp_path)


@on_a_cluster(QUICK)
async def test_a_template_that_is_refused_is_created_ever_more_seldom(
    installed: Installation,
) -> None:
    def refuse(plural: str, obj: Raw) -> str:
        is_other = plural == "jobs" and obj["metadata"]["namespace"] == OTHER
        return "no such image here" if is_other else ""

    misbehaving(installed, 1, budget=MANY, breaker="off", canary="0s", parallelism=1)
    await installed.until(lambda: installed.api.all("jobs"))
    installed.api.refuse = refuse
    before = asked(installed, "POST", JOBS)
    await installed.until(lambda: asked(installed, "POST", JOBS) > before)
    installed.apply(experiment(budget={"trials": 10}))
    await installed.until_state("succeeded", within_s=60)
    assert asked(installed, "POST", JOBS) < before + 15


def test_an_edit_waits_until_the_one_before_it_was_in_force_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managed, "_REVISION_S", 1000.0)

    @on_a_cluster(QUICK)
    async def claim(installed: Installation) -> None:
        installed.apply(experiment("edited", budget=MANY))
        await installed.until(lambda: installed.status("edited").get("revision") == 1)
        installed.edit("edited", parallelism=2)
        await installed.until(lambda: installed.status("edited")["revision"] == 2)
        installed.edit("edited", parallelism=3)
        installed.apply(experiment())
        await installed.until_state("succeeded")
        status = installed.status("edited")
        assert (status["revision"], status["observedGeneration"]) == (2, 2)

    claim(tmp_path)


@on_a_cluster(Script(forever=True))
async def test_the_last_of_many_edits_comes_into_force(installed: Installation) -> None:
    installed.apply(experiment(budget=MANY, canary="0s"))
    await installed.until(lambda: installed.status().get("running") == 1)
    for parallelism in (2, 1, 4, 3):
        installed.edit("tiny", parallelism=parallelism)
        await installed.until(lambda: True)
    await installed.until(lambda: installed.status()["running"] == 3)
    assert installed.status()["observedGeneration"] == 5


async def with_at_most(installed: Installation, experiments: int) -> None:
    """Start another controller that runs only so many experiments at a time."""
    await installed.stop()
    installed.running_experiments = experiments
    installed.start()


def jobs_of(installed: Installation, namespace: str) -> int:
    return len(installed.api.all("jobs", namespace))


def with_jobs(installed: Installation) -> set[str]:
    jobs = installed.api.all("jobs", NAMESPACE)
    return {job["metadata"]["labels"]["tuner.dev/experiment"] for job in jobs}


@on_a_cluster(Script(forever=True))
async def test_at_most_so_many_experiments_run_and_the_others_say_what_they_wait_for(
    installed: Installation,
) -> None:
    await with_at_most(installed, 8)
    names = [f"e{n}" for n in range(6)]
    for name in names:
        installed.apply(experiment(name, parallelism=1, budget={"trials": 1}))
    await installed.until(lambda: all(map(installed.status, names)), within_s=60)
    waiting = [name for name in names if "ended" in installed.status(name).get("reason", "")]
    assert len(waiting) == 2
    # Its spec is right, so that `tuner apply` and `kubectl wait` do not wait for the others' ends.
    accepted = installed.condition("Accepted", waiting[0])
    assert (accepted["status"], accepted["reason"]) == ("True", "Valid")
    assert "at most 8 run at a time" in accepted["message"]
    assert installed.status(waiting[0])["observedGeneration"] == 1
    installed.apply(experiment("wrong", budget={"trials": -1}))
    await installed.until_state("invalid", "wrong")
    misbehaving(installed, 1, parallelism=1)
    await installed.until(lambda: jobs_of(installed, OTHER) == 1)
    await installed.until(lambda: jobs_of(installed, NAMESPACE) == 4)
    installed.delete(waiting[0])
    await installed.until(lambda: not installed.api.find("experiments", NAMESPACE, waiting[0]))
    running = next(name for name in names if name not in waiting)
    installed.edit(running, suspend=True)
    await installed.until(lambda: installed.status(waiting[1]).get("running") == 1)
    installed.edit(running, suspend=False)
    await installed.until(lambda: "ended" in installed.status(running).get("reason", ""))
    installed.delete(waiting[1])
    await installed.until(lambda: installed.status(running).get("running") == 1)


@pytest.mark.usefixtures("patient")
@on_a_cluster(Script(forever=True))
async def test_what_may_run_does_not_wait_for_the_statuses_of_the_many_that_may_not(
    installed: Installation,
) -> None:
    await with_at_most(installed, 8)
    installed.api.hold("PATCH", "/status")
    for n in range(100):
        installed.apply(experiment(f"e{n}", parallelism=1, budget=MANY))
    await installed.until(lambda: len(with_jobs(installed)) == 4)
    await installed.until(lambda: installed.api.held >= 16)
    began = with_jobs(installed)
    installed.delete(min(began))
    await installed.until(lambda: with_jobs(installed) - began)
    installed.api.release()


@on_a_cluster(Script(lines=("score=0.5",), forever=True))
async def test_what_runs_goes_on_although_the_next_controller_runs_fewer(
    installed: Installation,
) -> None:
    names = [f"e{n}" for n in range(4)]
    for name in names:
        installed.apply(experiment(name, parallelism=1, budget={"trials": 1}))
    await installed.until(lambda: all(installed.status(n).get("running") == 1 for n in names))
    await with_at_most(installed, 2)
    for pod in installed.api.all("pods", NAMESPACE):
        installed.api.kubelet.end(pod["metadata"]["name"])
    for name in names:
        await installed.until_state("succeeded", name)
    installed.apply(experiment("next", parallelism=1))
    await installed.until(lambda: installed.status("next"))
