"""A new controller whose directory is empty: the store and the cluster say what was done.

The folder of an experiment has logs and files for people; nothing of it is needed to go on.
"""

from __future__ import annotations

import shutil
from contextlib import closing

from controller.app.local_experiments import LocalExperiments
from controller.core.model import Attempt, AttemptState, FailureClass
from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE, Installation, Raw, created_jobs, experiment, on_a_cluster

FOREVER = Script(lines=("score=0.5",), forever=True)
DEAF = Script(lines=("score=0.5",), forever=True, ignores_sigterm=True)


async def lose_the_folders(installed: Installation) -> None:
    await installed.stop()
    shutil.rmtree(installed.state.experiments)


def attempts(installed: Installation) -> list[Attempt]:
    with closing(LocalExperiments(installed.state)) as store:
        return [attempt for stored in store.experiments() for attempt in store.attempts(stored.uid)]


def states(installed: Installation) -> list[AttemptState]:
    return [attempt.state for attempt in attempts(installed)]


def uids(installed: Installation) -> set[str]:
    return {job["metadata"]["uid"] for job in installed.jobs}


@on_a_cluster(FOREVER)
async def test_running_attempts_are_adopted_and_their_logs_read_again(
    installed: Installation,
) -> None:
    installed.apply(experiment(parallelism=2))
    await installed.until(lambda: installed.status().get("running") == 2)
    before = uids(installed)
    await lose_the_folders(installed)
    installed.start()
    logs = installed.state.experiments
    await installed.until(lambda: len(list(logs.glob("*/trials/*/*/log.txt"))) == 2, within_s=60)
    assert uids(installed) == before
    assert created_jobs(installed) == 2


@on_a_cluster(FOREVER)
async def test_an_attempt_that_could_not_start_yet_starts_once(installed: Installation) -> None:
    installed.api.put("resourcequotas", quota(used=1))
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: states(installed) == [AttemptState.CREATED])
    await lose_the_folders(installed)
    assert created_jobs(installed) == 0
    installed.api.put("resourcequotas", quota(used=0))
    installed.start()
    await installed.until(lambda: states(installed) == [AttemptState.RUNNING])
    assert created_jobs(installed) == 1


def quota(*, used: int) -> Raw:
    """Return the quota of one Job for the namespace."""
    hard = {"count/jobs.batch": "1"}
    return {
        "metadata": {"name": "team", "namespace": NAMESPACE},
        "spec": {"hard": hard},
        "status": {"hard": hard, "used": {"count/jobs.batch": str(used)}},
    }


@on_a_cluster(FOREVER)
async def test_an_attempt_whose_object_was_deleted_is_not_created_again(
    installed: Installation,
) -> None:
    installed.api.kubelet.play(lambda _job: None)  # no pod starts
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.jobs)
    (job,) = installed.jobs
    await lose_the_folders(installed)
    installed.api.remove("jobs", NAMESPACE, job["metadata"]["name"])
    installed.start()
    await installed.until(lambda: len(attempts(installed)) == 2)
    first, second = attempts(installed)
    assert (first.failure_class, second.number) == (FailureClass.INFRASTRUCTURE, 2)
    assert first.reason == "it was created before, and has disappeared"


@on_a_cluster(DEAF)
async def test_an_attempt_that_was_asked_to_stop_is_stopped(installed: Installation) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    installed.edit("tiny", suspend=True)
    await installed.until(lambda: states(installed) == [AttemptState.STOPPING])
    await lose_the_folders(installed)
    installed.start()
    await installed.until_state("suspended")
    # Its pod ends after its grace period of 30 s.
    await installed.until(lambda: not installed.jobs, within_s=90)
    assert created_jobs(installed) == 1


@on_a_cluster(DEAF)
async def test_an_attempt_that_has_timed_out_ends_as_such(installed: Installation) -> None:
    resource = experiment(parallelism=1, budget={"trials": 1, "failedTrials": 1})
    resource["spec"]["trial"] |= {"timeout": "1s", "gracePeriod": "2s"}
    installed.apply(resource)

    def pods() -> list[Raw]:
        return installed.api.all("pods", NAMESPACE)

    await installed.until(lambda: any("deletionTimestamp" in pod["metadata"] for pod in pods()))
    await lose_the_folders(installed)
    installed.start()
    await installed.until(lambda: attempts(installed)[0].ended, within_s=60)
    assert attempts(installed)[0].failure_class is FailureClass.TIMEOUT


@on_a_cluster()
async def test_an_attempt_that_has_ended_and_was_not_removed_counts_once(
    installed: Installation,
) -> None:
    installed.api.forbid("delete", "jobs")
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: AttemptState.SUCCEEDED in states(installed))
    await lose_the_folders(installed)
    installed.api.permit()
    installed.start()
    await installed.until_state("succeeded")
    await installed.until(lambda: not installed.jobs)
    assert states(installed) == [AttemptState.SUCCEEDED] * 3
    assert [attempt.value for attempt in attempts(installed)] == [0.5] * 3
    assert created_jobs(installed) == 3


@on_a_cluster(FOREVER)
async def test_removed_attempts_stay_removed(installed: Installation) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    installed.edit("tiny", suspend=True)
    await installed.until_state("suspended")
    await installed.until(lambda: not installed.jobs)
    await lose_the_folders(installed)
    installed.start()
    installed.edit("tiny", suspend=False)
    await installed.until(lambda: installed.status().get("running") == 1)
    assert [attempt.number for attempt in attempts(installed)] == [1, 2]
    assert created_jobs(installed) == 2


@on_a_cluster(FOREVER)
async def test_a_folder_that_cannot_be_written_is_told_and_stops_no_other_experiment(
    installed: Installation,
) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1, within_s=60)
    (folder,) = installed.state.experiments.glob("*/trials")
    obstacle = folder / "1"
    obstacle.touch()
    installed.edit("tiny", parallelism=2)
    await installed.until(lambda: str(obstacle) in installed.status().get("reason", ""))
    installed.apply(experiment("other", parallelism=1))
    await installed.until(lambda: installed.status("other").get("running") == 1)
    obstacle.unlink()
    await installed.until(lambda: created_jobs(installed) == 3, within_s=60)
