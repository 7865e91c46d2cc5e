"""Clusters that change under running experiments: quotas, operators, clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controller.operator import managed
from controller.operator.policy import Policy
from tests.kube import fake_api
from tests.kube.fake_kubelet import Script
from tests.kube.fake_operator import (
    API_VERSION,
    KIND,
    PLURAL,
    READING,
    TRAINING_JOB,
    FakeOperator,
)
from tests.kube.operated import NAMESPACE, Installation, Raw, experiment, on_a_cluster

FOREVER = Script(lines=("score=0.5",), forever=True)


def set_quota(installed: Installation, *, hard: int, used: int) -> None:
    """Set how many Jobs the namespace may have."""
    limits = {"count/jobs.batch": str(hard)}
    installed.api.put(
        "resourcequotas",
        {
            "metadata": {"name": "team", "namespace": NAMESPACE},
            "spec": {"hard": limits},
            "status": {"hard": limits, "used": {"count/jobs.batch": str(used)}},
        },
    )


def reason(installed: Installation) -> str:
    return str(installed.status().get("reason", ""))


@on_a_cluster(FOREVER)
async def test_a_quota_that_is_lowered_stops_nothing_and_keeps_the_next_trials_waiting(
    installed: Installation,
) -> None:
    set_quota(installed, hard=2, used=0)
    installed.apply(experiment(parallelism=2, budget={"trials": 4}))
    await installed.until(lambda: installed.status().get("running") == 2)
    before = {job["metadata"]["uid"] for job in installed.jobs}
    set_quota(installed, hard=0, used=2)
    installed.edit("tiny", parallelism=3)
    await installed.until(lambda: "quota team" in reason(installed))
    assert {job["metadata"]["uid"] for job in installed.jobs} == before
    set_quota(installed, hard=3, used=2)
    await installed.until(lambda: installed.status().get("running") == 3)
    set_quota(installed, hard=1, used=3)
    installed.edit("tiny", parallelism=4)
    await installed.until(lambda: "quota team" in reason(installed))
    installed.api.remove("resourcequotas", NAMESPACE, "team")
    await installed.until(lambda: installed.status().get("running") == 4)
    assert before < {job["metadata"]["uid"] for job in installed.jobs}


def with_template() -> Raw:
    resource = experiment(parallelism=1, budget={"trials": 1})
    resource["spec"]["trial"] = {"template": TRAINING_JOB, **READING}
    return resource


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try what was refused again after a second instead of a minute."""
    monkeypatch.setattr(managed, "_AGAIN_S", 0.5)
    monkeypatch.setattr(managed, "_RESYNC_S", 0.5)


def remove_kind(installed: Installation) -> None:
    """Remove the kind of the operator with its objects and their pods."""
    for pod in installed.api.all("pods", NAMESPACE):
        installed.api.remove("pods", NAMESPACE, pod["metadata"]["name"])
    for job in installed.api.all(PLURAL, NAMESPACE):
        installed.api.remove(PLURAL, NAMESPACE, job["metadata"]["name"])
    installed.api.undefine(API_VERSION, PLURAL)
    installed.api.drop_connections()


@pytest.mark.usefixtures("hurried")
def test_an_operator_that_is_missing_is_named_and_waited_for(tmp_path: Path) -> None:
    @on_a_cluster()
    async def check(installed: Installation) -> None:
        await installed.stop()
        group = API_VERSION.partition("/")[0]
        installed.policy = Policy(kinds=frozenset({f"{group}/{KIND}"}))
        installed.start()
        missing = f"has no kind {KIND} in {API_VERSION}; install its definition"

        installed.apply(with_template())
        await installed.until_state("invalid")
        assert missing in installed.condition("Accepted")["message"]

        operator = FakeOperator(installed.api)
        await installed.until(lambda: installed.api.all(PLURAL, NAMESPACE))
        (job,) = installed.api.all(PLURAL, NAMESPACE)
        operator.make_pods(job["metadata"]["name"])
        await installed.until(lambda: installed.status().get("running") == 1)
        await installed.until(lambda: installed.condition("Accepted")["status"] == "True")

        remove_kind(installed)
        await installed.until(lambda: missing in installed.condition("Running")["message"])
        operator = FakeOperator(installed.api)
        await installed.until(lambda: installed.api.all(PLURAL, NAMESPACE), within_s=40)
        (again,) = installed.api.all(PLURAL, NAMESPACE)
        assert again["metadata"]["name"] == f"{job['metadata']['name']}-r2"
        operator.make_pods(again["metadata"]["name"])
        await installed.until(lambda: installed.status().get("running") == 1)
        await installed.until(lambda: installed.condition("Running")["status"] == "True")

    check(tmp_path)


@pytest.mark.parametrize("ahead_s", [-3600, 3600], ids=["an hour behind", "an hour ahead"])
def test_a_cluster_with_another_clock_times_nothing_out(
    ahead_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cluster_time() -> str:
        return (datetime.now(UTC) + timedelta(seconds=ahead_s)).strftime("%Y-%m-%dT%H:%M:%SZ")

    monkeypatch.setattr(fake_api, "now", cluster_time)

    @on_a_cluster(Script(lines=("score=0.5",), seconds=1.0))
    async def check(installed: Installation) -> None:
        await installed.stop()
        installed.api.ahead_s = installed.api.kubelet.ahead_s = ahead_s
        installed.start()
        resource = experiment(budget={"trials": 3, "wallClock": "30m"})
        resource["spec"]["trial"]["timeout"] = "30m"
        installed.apply(resource)
        await installed.until_state("succeeded")
        assert installed.status()["trials"] == {"succeeded": 3}

    check(tmp_path)


@on_a_cluster(FOREVER)
async def test_of_many_experiments_that_are_applied_at_once_a_few_begin_at_a_time(
    installed: Installation,
) -> None:
    count = 40
    installed.api.hold("POST", "/jobs")
    for number in range(count):
        installed.apply(experiment(f"many-{number}", parallelism=1))
    await installed.until(lambda: installed.api.held == 16)
    await installed.until(
        lambda: all(installed.status(f"many-{number}") for number in range(count))
    )
    assert installed.api.held == 16
    assert "applied before it" in installed.status("many-39")["reason"]
    installed.delete("many-39")
    await installed.until(lambda: not installed.api.find("experiments", NAMESPACE, "many-39"))
    other = experiment(parallelism=1)
    other["metadata"]["namespace"] = "default"
    installed.apply(other)
    await installed.until(lambda: installed.api.held == 17)
    installed.api.release()
    await installed.until(lambda: len(installed.jobs) == count - 1, within_s=60)


@on_a_cluster()
async def test_a_status_that_the_server_refuses_is_told_by_an_event(
    installed: Installation,
) -> None:
    installed.api.answer(413, times=3, method="PATCH", path="/status")
    installed.apply(experiment(budget={"trials": 0}))
    await installed.until(
        lambda: "the status would be" in str(installed.api.all("events", NAMESPACE))
    )
    await installed.until_state("invalid")
