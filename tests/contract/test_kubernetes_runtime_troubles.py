"""A cluster that is slow, or refuses or loses requests: nothing is lost, and nothing else waits.

On a small API server in this process. Errors are `RuntimeLost`, after which the loop retries.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controller.core.attempt import RuntimeLost
from controller.core.model import ExperimentState, FailureClass
from controller.runtime.kubernetes import admission, logs
from controller.runtime.protocol import Conclusion
from tests.kube.experiment import (
    NAMESPACE,
    Experiment,
    ended,
    look,
    look_until,
    on_a_loop,
    refusal_of,
    running,
)
from tests.kube.fake_kubelet import Script
from tests.kube.small_cluster import eventually

FOREVER = Script(lines=("epoch=1",), forever=True)
FRESH = "status unknown for quota: team, resources: requests.cpu"
ROOMY = {
    "metadata": {"name": "team", "namespace": NAMESPACE},
    "spec": {"hard": {"pods": "9"}},
    "status": {"hard": {"pods": "9"}, "used": {"pods": "0"}},
}


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setattr(admission, "_AGAIN_S", 0.05)  # time is not what is claimed here
    monkeypatch.setattr(logs, "SOON_S", 0.0)
    return Experiment(tmp_path)


def pod_of(experiment: Experiment, trial: int) -> str:
    pods = experiment.api.all("pods", NAMESPACE)
    return next(
        p["metadata"]["name"]
        for p in pods
        if p["metadata"]["labels"]["job-name"] == experiment.name(trial)
    )


@on_a_loop
async def test_a_timeout_is_enforced_until_the_cluster_has_accepted_it(
    experiment: Experiment,
) -> None:
    experiment.api.kubelet.play(lambda job: FOREVER)
    experiment.api.answer(500, times=2, method="DELETE", path="/pods/")
    runtime, refusals = await experiment.open(), list[str]()
    await runtime.start(experiment.launch(0, timeout_s=0.3))
    seen = await look_until(runtime, ended(experiment.name(0)), refusals=refusals)
    exit = seen[experiment.name(0)].exit
    assert exit is not None
    assert exit.timed_out
    assert len(refusals) == 2
    assert experiment.asked("DELETE", "/pods/") == 3


@on_a_loop
async def test_a_timeout_counts_by_the_clock_of_the_server(experiment: Experiment) -> None:
    experiment.api.kubelet.play(lambda job: FOREVER)
    # than this machine and the start time below: the trial has run for an hour
    experiment.api.ahead_s = 3600.0
    runtime = await experiment.open()
    await runtime.start(experiment.launch(0, timeout_s=600.0))
    exit = (await look_until(runtime, ended(experiment.name(0))))[experiment.name(0)].exit
    assert exit is not None
    assert exit.timed_out


@on_a_loop
async def test_a_server_that_stamps_no_review_tells_its_time_in_a_header(
    experiment: Experiment,
) -> None:
    experiment.api.answer(404, path="/selfsubjectreviews")
    experiment.api.ahead_s = 3600.0
    async with experiment.api.client() as client:
        time = await client.clock()
    assert time is not None
    assert (time - datetime.now(UTC)).total_seconds() == pytest.approx(3600, abs=30)


@pytest.mark.parametrize(("proxy_s", "node_s"), [(3600.0, 0.0), (0.0, -3600.0)])
@on_a_loop
async def test_a_proxy_ahead_or_a_node_behind_ends_no_trial_early(
    experiment: Experiment, proxy_s: float, node_s: float
) -> None:
    experiment.api.kubelet.play(lambda job: FOREVER)
    experiment.api.date_ahead_s = proxy_s
    experiment.api.kubelet.ahead_s = node_s
    runtime, name = await experiment.open(), experiment.name(0)
    await runtime.start(experiment.launch(0, timeout_s=600.0))
    await look_until(runtime, running(name))
    assert (await look(runtime))[name].exit is None
    assert experiment.asked("DELETE", "/pods/") == 0


@on_a_loop
async def test_a_node_whose_clock_is_ahead_delays_no_timeout(experiment: Experiment) -> None:
    experiment.api.kubelet.play(lambda job: FOREVER)
    experiment.api.kubelet.ahead_s = 3600.0
    runtime, name = await experiment.open(), experiment.name(0)
    await runtime.start(experiment.launch(0, timeout_s=0.3))
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit.timed_out


@on_a_loop
async def test_a_watch_of_pods_that_stalls_makes_no_success_a_failure(
    experiment: Experiment,
) -> None:
    experiment.api.kubelet.play(lambda job: Script(lines=("score=0.5",)))
    runtime, name = await experiment.open(), experiment.name(0)
    await look(runtime)
    experiment.api.unwatched = {"pods"}
    await runtime.start(experiment.launch(0))
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert (exit.code, exit.log_end_lost) == (0, "")
    assert b"score=0.5" in await runtime.read_log(name, 0)


# What is made slowly


@on_a_loop
async def test_a_slow_create_does_not_block_other_attempts(experiment: Experiment) -> None:
    experiment.api.kubelet.play(lambda job: FOREVER)
    runtime, first = await experiment.open(), experiment.name(0)
    await runtime.start(experiment.launch(0))
    await look_until(runtime, running(first))
    experiment.api.hold("POST", "/jobs")
    for trial in range(1, 41):
        await runtime.start(experiment.launch(trial))
    await eventually(lambda: experiment.api.held == 16)
    seen = await look(runtime)
    assert len(seen) == 41
    assert [name for name, each in seen.items() if each.start_time is not None] == [first]
    experiment.api.kubelet.print(pod_of(experiment, 0), "epoch=2")
    while b"epoch=2" not in await runtime.read_log(first, 0):
        await runtime.wait(1.0, log_growth=True)
    await runtime.stop(first, grace_s=1.0)
    await look_until(runtime, ended(first))
    assert experiment.api.held == 16
    assert experiment.jobs() == [first]
    experiment.api.release()
    await look_until(runtime, running(*map(experiment.name, range(1, 41))))


@on_a_loop
async def test_closing_waits_for_creates_in_progress(experiment: Experiment) -> None:
    experiment.api.kubelet.play(lambda job: FOREVER)
    experiment.api.hold("POST", "/jobs")
    runtime = await experiment.open()
    await runtime.start(experiment.launch(0))
    await eventually(lambda: experiment.api.held == 1)
    closing = asyncio.create_task(runtime.close())
    _, unfinished = await asyncio.wait([closing], timeout=0.1)
    assert unfinished
    experiment.api.release()
    await closing
    assert experiment.jobs() == [experiment.name(0)]
    uid = experiment.api.get("jobs", NAMESPACE, experiment.name(0))["metadata"]["uid"]
    assert experiment.records.rows[0, 1].uid == uid
    successor = await experiment.open()
    await successor.start(experiment.launch(0))
    await look_until(successor, running(experiment.name(0)))
    assert experiment.asked("POST", "/jobs") == 1


@on_a_loop
async def test_an_attempt_that_is_stopped_while_it_is_created_ends_once_it_exists(
    experiment: Experiment,
) -> None:
    experiment.api.kubelet.play(lambda job: FOREVER)
    experiment.api.hold("POST", "/jobs")
    runtime, name = await experiment.open(), experiment.name(0)
    await runtime.start(experiment.launch(0))
    await eventually(lambda: experiment.api.held == 1)
    stopping = asyncio.create_task(runtime.stop(name, grace_s=1.0))
    _, unfinished = await asyncio.wait([stopping], timeout=0.1)
    assert unfinished
    experiment.api.release()
    await stopping
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit.stopped


# What is refused


@on_a_loop
async def test_a_refused_create_is_reported_each_turn_and_retried_until_it_succeeds(
    experiment: Experiment,
) -> None:
    experiment.api.kubelet.play(lambda job: FOREVER)
    experiment.api.answer(500, times=1000, method="POST", path="/jobs")
    runtime = await experiment.open()
    await runtime.start(experiment.launch(0))
    for _ in range(400):  # the first is on its way for a while
        if await refusal_of(look(runtime)):
            break
        await runtime.wait(0.02, log_growth=False)
    assert all([await refusal_of(look(runtime)) for _ in range(5)])
    experiment.api.mend()
    await look_until(runtime, running(experiment.name(0)))
    assert experiment.jobs() == [experiment.name(0)]


@on_a_loop
async def test_a_refused_delete_is_reported_and_repeated_until_it_succeeds(
    experiment: Experiment,
) -> None:
    gone, stays = experiment.name(0), experiment.name(1)
    experiment.api.kubelet.play(
        lambda job: FOREVER if job["metadata"]["name"] == stays else Script()
    )
    runtime, refusals = await experiment.open(), list[str]()
    for trial in (0, 1):
        await runtime.start(experiment.launch(trial))
    await look_until(runtime, lambda seen: ended(gone)(seen) and running(stays)(seen))
    experiment.api.answer(500, times=3, method="DELETE", path="/jobs/")
    await runtime.remove(gone)
    await look_until(
        runtime, lambda seen: gone not in seen and experiment.jobs() == [stays], refusals=refusals
    )
    assert len(refusals) == 2  # no caller waits for the first
    assert experiment.asked("DELETE", "/jobs/") == 4


@on_a_loop
async def test_a_kind_that_is_not_served_for_a_while_is_waited_for(experiment: Experiment) -> None:
    experiment.api.kubelet.play(lambda job: Script())
    runtime, name = await experiment.open(), experiment.name(0)
    experiment.api.answer(404, times=5, method="POST", path="/jobs")
    await runtime.start(experiment.launch(0))
    await look_until(runtime, lambda seen: "the cluster does not serve jobs" in seen[name].waiting)
    await look_until(runtime, ended(name))
    experiment.api.answer(404, method="DELETE", path="/jobs/")
    with pytest.raises(RuntimeLost):
        await runtime.remove(name)
    await runtime.remove(name)
    assert experiment.jobs() == []


@on_a_loop
async def test_closing_waits_for_the_last_removal(experiment: Experiment) -> None:
    experiment.api.kubelet.play(lambda job: Script())
    runtime, name = await experiment.open(), experiment.name(0)
    await runtime.start(experiment.launch(0))
    await look_until(runtime, ended(name))
    experiment.api.answer(500, method="DELETE", path="/jobs/")
    with pytest.raises(RuntimeLost):
        await runtime.remove(name)
    await runtime.remove(name)
    assert experiment.jobs() == []


@on_a_loop
async def test_no_object_is_left_whose_removal_has_failed_when_the_experiment_ends(
    experiment: Experiment,
) -> None:
    experiment.api.kubelet.play(lambda job: Script())
    runtime, names = await experiment.open(), [experiment.name(0), experiment.name(1)]
    for trial in (0, 1):
        await runtime.start(experiment.launch(trial))
    await look_until(runtime, ended(*names))
    experiment.api.answer(500, times=2, method="DELETE", path=f"/jobs/{names[0]}")
    with pytest.raises(RuntimeLost):
        await runtime.remove(names[0])
    await runtime.remove(names[1])
    succeeded = Conclusion(ExperimentState.SUCCEEDED, "")
    with pytest.raises(RuntimeLost):
        await runtime.conclude(succeeded)
    await runtime.conclude(succeeded)
    assert experiment.jobs() == []


@on_a_loop
async def test_closing_finishes_removals_in_progress(experiment: Experiment) -> None:
    gone, stays = experiment.name(0), experiment.name(1)
    experiment.api.kubelet.play(
        lambda job: FOREVER if job["metadata"]["name"] == stays else Script()
    )
    runtime = await experiment.open()
    for trial in (0, 1):
        await runtime.start(experiment.launch(trial))
    await look_until(runtime, lambda seen: ended(gone)(seen) and running(stays)(seen))
    experiment.api.hold("DELETE", "/jobs/")
    await runtime.remove(gone)
    await eventually(lambda: experiment.api.held == 1)
    closing = asyncio.create_task(runtime.close())
    _, unfinished = await asyncio.wait([closing], timeout=0.1)
    assert unfinished
    experiment.api.release()
    await closing
    assert experiment.jobs() == [stays]


# Quotas that were made just now


@on_a_loop
async def test_a_job_that_a_fresh_quota_refuses_waits_for_room(experiment: Experiment) -> None:
    experiment.api.kubelet.play(lambda job: FOREVER)
    experiment.api.refuse = lambda plural, obj: FRESH if plural == "jobs" else ""
    runtime, name = await experiment.open(), experiment.name(0)
    await runtime.start(experiment.launch(0))
    seen = await look_until(runtime, lambda seen: bool(seen[name].waiting))
    assert (seen[name].exit, seen[name].start_time) == (None, None)
    experiment.api.refuse = lambda plural, obj: ""
    await look_until(runtime, running(name))


@on_a_loop
async def test_a_pod_that_a_fresh_quota_refuses_is_taken_back_and_waits_for_room(
    experiment: Experiment,
) -> None:
    made: list[str] = []
    experiment.api.put("resourcequotas", ROOMY)
    api, runtime, name = experiment.api, await experiment.open(), experiment.name(0)

    def play(job: dict[str, Any]) -> Script | None:
        made.append(job["metadata"]["uid"])
        return FOREVER if len(made) > 1 else None

    api.kubelet.play(play)
    launch = experiment.launch(0)
    await runtime.start(launch)
    await look_until(runtime, lambda seen: bool(made) and name in seen)
    event = {
        "metadata": {"generateName": f"{name}.", "namespace": NAMESPACE},
        "reason": "FailedCreate",
        "message": f'Error creating: pods "{name}-abcde" is forbidden: {FRESH}',
        "involvedObject": {"kind": "Job", "name": name, "uid": made[0]},
    }
    api.put("events", event)
    await look_until(runtime, lambda seen: name not in seen)
    await runtime.start(launch)  # as the loop does with what is not shown
    await look_until(runtime, running(name))
    assert len(made) == 2


@on_a_loop
async def test_a_pod_that_nobody_may_create_ends_the_attempt(experiment: Experiment) -> None:
    made: list[str] = []
    api, runtime, name = experiment.api, await experiment.open(), experiment.name(0)
    api.kubelet.play(lambda job: made.append(job["metadata"]["uid"]))
    await runtime.start(experiment.launch(0))
    await look_until(runtime, lambda seen: bool(made) and name in seen)
    violation = 'violates PodSecurity "restricted:latest": runAsNonRoot != true'
    event = {
        "metadata": {"generateName": f"{name}.", "namespace": NAMESPACE},
        "reason": "FailedCreate",
        "message": f'Error creating: pods "{name}-abcde" is forbidden: {violation}',
        "involvedObject": {"kind": "Job", "name": name, "uid": made[0]},
    }
    api.put("events", event)
    exit = (await look_until(runtime, ended(name)))[name].exit
    assert exit is not None
    assert exit.failure_class is FailureClass.CONFIGURATION
    assert violation in exit.reason


# What is half open, and a disk that is full


@on_a_loop
async def test_an_open_that_fails_halfway_can_be_repeated_and_watches_nothing_twice(
    experiment: Experiment,
) -> None:
    def watched(plural: str) -> int:
        return sum(
            path.endswith(f"/{plural}") and "watch" in query
            for _, path, query in experiment.api.requests
        )

    runtime = await experiment.open()
    experiment.api.answer(500, method="GET", path="/limitranges")
    experiment.api.hold("GET", "/pods")
    opening = asyncio.create_task(refusal_of(look(runtime)))
    await eventually(
        lambda: experiment.api.held == 1 and experiment.asked("GET", "/limitranges") == 1
    )
    await asyncio.wait([opening], timeout=0.1)  # what one says is known now
    experiment.api.release()
    assert await opening
    assert await look(runtime) == {}
    await eventually(lambda: watched("pods") == watched("jobs") == 1)


@on_a_loop
async def test_a_full_disk_is_reported_and_waited_for(experiment: Experiment) -> None:
    experiment.records.trouble = "controller.db: the disk is full"
    experiment.api.kubelet.play(lambda job: Script(lines=("x=1",)))
    runtime, name, refusals = await experiment.open(), experiment.name(0), list[str]()
    await runtime.start(experiment.launch(0))
    for _ in range(400):
        if len(refusals := [*refusals, *filter(None, [await refusal_of(look(runtime))])]) == 3:
            break
        await runtime.wait(0.02, log_growth=False)
    assert set(refusals) == {"controller.db: the disk is full"}
    experiment.records.trouble = ""
    await look_until(runtime, ended(name), refusals=refusals)
    uid = experiment.api.get("jobs", NAMESPACE, name)["metadata"]["uid"]
    assert experiment.records.rows[0, 1].uid == uid
    await runtime.remove(name)
    assert (await look(runtime), experiment.jobs()) == ({}, [])


@on_a_loop
async def test_lines_that_the_node_rotates_while_no_controller_reads_leave_a_mark(
    experiment: Experiment,
) -> None:
    name, kubelet = experiment.name(0), experiment.api.kubelet
    kubelet.play(lambda job: FOREVER)
    runtime = await experiment.open()
    await runtime.start(experiment.launch(0))
    await look_until(runtime, lambda seen: (experiment.directory(0, 1) / "log.txt").exists())
    await runtime.close()
    pod = NAMESPACE, pod_of(experiment, 0)
    kubelet.print(pod, "epoch=2")
    kubelet.rotate(pod)
    kubelet.print(pod, "epoch=3")
    kubelet.end(pod)
    heir = await experiment.open()
    status = (await look_until(heir, ended(name)))[name]
    assert status.exit is not None
    assert (status.exit.code, status.exit.log_end_lost) == (0, "")
    first, mark, last = (await heir.read_log(name, 0)).splitlines()
    assert (first, last) == (b"epoch=1", b"epoch=3")
    assert mark.startswith(b"# tuner: gap: lines printed between ")
