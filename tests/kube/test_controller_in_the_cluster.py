"""`tuner controller`: what becomes of a custom resource, on the small API server."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import pytest

from controller.core.model import Experiment, ExperimentSpec
from controller.experiment_store import SqlExperimentStore
from controller.operator import managed
from controller.operator.resource import FINALIZER
from tests.kube.fake_kubelet import Script
from tests.kube.fake_kueue import FakeKueue
from tests.kube.operated import NAMESPACE, Installation, experiment, on_a_cluster

FOREVER = Script(lines=("score=0.5",), forever=True)


@on_a_cluster()
async def test_a_resource_is_run_and_shows_its_result(installed: Installation) -> None:
    installed.apply(experiment())
    await installed.until_state("succeeded")
    status = installed.status()
    assert (status["done"], status["trials"], status["revision"]) == ("3/3", {"succeeded": 3}, 1)
    assert status["best"]["value"] == 0.5
    assert installed.condition("Succeeded")["status"] == "True"
    assert installed.condition("Succeeded")["reason"] == "TrialsDone"


def specs_in_memory() -> int:
    gc.collect()
    # By type(): a proxy of torch that is asked for its class warns.
    return sum(type(each) is ExperimentSpec for each in gc.get_objects())


@on_a_cluster()
async def test_what_has_ended_or_never_begun_is_not_kept_in_memory(
    installed: Installation,
) -> None:
    before = specs_in_memory()
    installed.apply(experiment())
    installed.apply(experiment("suspended", suspend=True))
    await installed.until_state("succeeded")
    await installed.until_state("suspended", "suspended")
    await installed.until(lambda: specs_in_memory() <= before)


@on_a_cluster()
async def test_a_resource_that_is_suspended_from_the_start_is_checked_and_begins_later(
    installed: Installation,
) -> None:
    installed.apply(experiment(suspend=True))
    await installed.until_state("suspended")
    assert installed.condition("Accepted")["status"] == "True"
    assert installed.condition("Paused")["status"] == "True"
    assert not installed.jobs
    installed.edit("tiny", suspend=False)
    await installed.until_state("succeeded")


TWO = Script(lines=("score=0.5 cost=1",))


@on_a_cluster(TWO)
async def test_a_status_has_the_size_of_the_pareto_front(installed: Installation) -> None:
    resource = experiment()
    del resource["spec"]["objective"]
    resource["spec"]["objectives"] = [
        {"metric": "score", "direction": "maximize"},
        {"metric": "cost", "direction": "minimize"},
    ]
    installed.apply(resource)
    await installed.until_state("succeeded")
    # equal values count once
    assert installed.status()["optimal"] == 1


def label_namespace(installed: Installation, queue: str) -> None:
    """Give a namespace with Kueue a default queue, and a second queue."""
    kueue = FakeKueue(installed.api)
    kueue.queue(queue)
    kueue.queue("urgent")
    about = {"name": NAMESPACE, "labels": {"tuner.dev/queue": queue}}
    installed.api.put("namespaces", {"metadata": about, "status": {"phase": "Active"}})


@on_a_cluster(FOREVER)
async def test_trials_that_name_no_queue_have_that_of_their_namespace(
    installed: Installation,
) -> None:
    label_namespace(installed, "team-a")
    installed.apply(experiment())
    await installed.until(lambda: installed.jobs)
    assert installed.jobs[0]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"


@on_a_cluster(FOREVER)
async def test_the_queue_of_a_trial_comes_before_that_of_its_namespace(
    installed: Installation,
) -> None:
    label_namespace(installed, "team-a")
    resource = experiment()
    resource["spec"]["trial"]["queue"] = "urgent"
    installed.apply(resource)
    await installed.until(lambda: installed.jobs)
    assert installed.jobs[0]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "urgent"


@on_a_cluster()
async def test_nothing_holds_a_resource_whose_experiment_has_ended(
    installed: Installation,
) -> None:
    installed.apply(experiment())
    await installed.until_state("succeeded")
    await installed.until(
        lambda: not installed.api.get("experiments", NAMESPACE, "tiny")["metadata"]["finalizers"]
    )


@on_a_cluster(FOREVER)
async def test_the_resource_owns_its_jobs(installed: Installation) -> None:
    installed.apply(experiment())
    await installed.until(lambda: installed.jobs)
    (owner,) = installed.jobs[0]["metadata"]["ownerReferences"]
    uid = installed.api.get("experiments", NAMESPACE, "tiny")["metadata"]["uid"]
    assert (owner["kind"], owner["uid"]) == ("Experiment", uid)
    assert not installed.api.all("configmaps", NAMESPACE)


@on_a_cluster()
async def test_a_status_has_any_character_of_a_parameter(installed: Installation) -> None:
    name, value = "rate🚀", "𝕏 \u2028 \x85 \x7f \\ud83d"
    resource = experiment(parameters={name: [value]})
    resource["spec"]["trial"]["command"] = ["train", f"${{{name}}}"]
    installed.apply(resource)
    await installed.until_state("succeeded")
    assert installed.status()["best"]["parameters"] == {name: value}


@on_a_cluster()
async def test_a_wrong_spec_is_refused_in_the_words_of_the_file(installed: Installation) -> None:
    installed.apply(
        experiment(budget={"trials": -1}, parameters={"x": {"type": "float", "min": 2}})
    )
    await installed.until_state("invalid")
    accepted = installed.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "Invalid")
    assert "spec.budget.trials" in accepted["message"]
    assert "spec.parameters.x" in accepted["message"]
    assert not installed.jobs


@on_a_cluster()
async def test_a_spec_that_was_refused_runs_when_it_is_right(installed: Installation) -> None:
    installed.apply(experiment(budget={"trials": -1}))
    await installed.until_state("invalid")
    installed.edit("tiny", budget={"trials": 1})
    await installed.until_state("succeeded")


@on_a_cluster(FOREVER)
async def test_an_edit_applies_while_it_runs_and_interrupts_no_trial(
    installed: Installation,
) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    before = {job["metadata"]["uid"] for job in installed.jobs}
    installed.edit("tiny", parallelism=2)
    await installed.until(lambda: installed.status().get("running") == 2)
    assert installed.status()["revision"] == 2
    assert before < {job["metadata"]["uid"] for job in installed.jobs}


@on_a_cluster(FOREVER)
async def test_a_wider_range_applies_while_it_runs(installed: Installation) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    installed.edit("tiny", parameters={"x": {"type": "float", "min": 0, "max": 2}})
    await installed.until(lambda: installed.status().get("revision") == 2)
    assert installed.condition("Accepted")["status"] == "True"


@on_a_cluster(FOREVER)
async def test_another_search_under_the_name_is_refused_and_the_old_one_runs_on(
    installed: Installation,
) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    installed.edit("tiny", objective={"metric": "loss", "direction": "minimize"})
    await installed.until(lambda: installed.condition("Accepted").get("status") == "False")
    accepted = installed.condition("Accepted")
    assert accepted["reason"] == "ChangeRefused"
    assert "spec.objective" in accepted["message"]
    await installed.until(lambda: installed.condition("Running")["reason"] == "TrialsRunning")
    assert installed.status()["revision"] == 1


@on_a_cluster(FOREVER)
async def test_a_suspended_experiment_stops_and_goes_on(installed: Installation) -> None:
    installed.apply(experiment(parallelism=2))
    await installed.until(lambda: installed.status().get("running") == 2)
    installed.edit("tiny", suspend=True)
    await installed.until_state("suspended")
    await installed.until(lambda: not installed.jobs)
    assert installed.condition("Paused")["reason"] == "Suspended"
    installed.edit("tiny", suspend=False)
    await installed.until(lambda: installed.status().get("running") == 2)
    assert installed.status()["revision"] == 1


@on_a_cluster(FOREVER)
async def test_a_controller_that_goes_on_writes_no_status_that_says_the_same(
    installed: Installation,
) -> None:
    names = [f"e{number}" for number in range(20)]
    for name in names:
        installed.apply(experiment(name, parallelism=1))
    await installed.until(lambda: all(installed.status(each).get("running") for each in names))
    await installed.stop()
    before = [installed.status(name) for name in names]
    installed.api.requests.clear()
    installed.start()
    installed.apply(experiment("next", parallelism=1))
    await installed.until(lambda: installed.status("next").get("running") == 1)
    assert [installed.status(name) for name in names] == before
    written = [path for _, path, _ in installed.api.requests if path.endswith("/status")]
    assert {path.split("/")[-2] for path in written} == {"next"}


@on_a_cluster(FOREVER)
async def test_an_edit_of_a_suspended_experiment_is_checked_at_once(
    installed: Installation,
) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    installed.edit("tiny", suspend=True)
    await installed.until_state("suspended")
    installed.edit("tiny", objective={"metric": "loss", "direction": "minimize"})
    await installed.until(lambda: installed.condition("Accepted").get("reason") == "ChangeRefused")
    assert "spec.objective.direction" in installed.condition("Accepted")["message"]
    assert installed.status()["state"] == "suspended"
    installed.edit("tiny", objective={"metric": "score", "direction": "maximize"})
    await installed.until(lambda: installed.condition("Accepted").get("status") == "True")
    assert installed.status()["revision"] == 1


@on_a_cluster(FOREVER)
async def test_what_was_suspended_without_a_controller_is_stopped_by_the_next(
    installed: Installation,
) -> None:
    installed.apply(experiment(parallelism=2))
    await installed.until(lambda: installed.status().get("running") == 2)
    await installed.stop()
    installed.edit("tiny", suspend=True)
    installed.start()
    await installed.until_state("suspended")
    await installed.until(lambda: not installed.jobs)


@on_a_cluster(FOREVER)
async def test_a_finalizer_that_meets_a_change_is_added_again(installed: Installation) -> None:
    installed.api.answer(409, method="PATCH", path="/experiments/tiny")
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    assert installed.api.get("experiments", NAMESPACE, "tiny")["metadata"]["finalizers"] == [
        FINALIZER
    ]


@on_a_cluster(FOREVER)
async def test_a_finalizer_that_somebody_has_removed_is_added_again(
    installed: Installation,
) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    where = "experiments", NAMESPACE, "tiny"
    installed.api.change(*where, lambda each: each["metadata"].pop("finalizers"))
    await installed.until(
        lambda: installed.api.get(*where)["metadata"].get("finalizers") == [FINALIZER]
    )


@on_a_cluster(FOREVER)
async def test_a_deleted_resource_goes_when_its_jobs_have_ended(installed: Installation) -> None:
    installed.apply(experiment(parallelism=2))
    await installed.until(lambda: installed.status().get("running") == 2)
    finalizers = installed.api.get("experiments", NAMESPACE, "tiny")["metadata"]["finalizers"]
    assert finalizers == [FINALIZER]
    installed.delete()
    await installed.until(lambda: installed.api.find("experiments", NAMESPACE, "tiny") is None)
    assert not installed.jobs
    assert not list(installed.state.experiments.iterdir())


@on_a_cluster(FOREVER)
async def test_a_resource_of_an_earlier_name_gets_none_of_its_trials(
    installed: Installation,
) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    first = {job["metadata"]["name"] for job in installed.jobs}
    installed.api.remove("experiments", NAMESPACE, "tiny")
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    assert not first & {job["metadata"]["name"] for job in installed.jobs}


@on_a_cluster(FOREVER)
async def test_the_next_controller_adopts_what_runs(installed: Installation) -> None:
    installed.apply(experiment(parallelism=2))
    await installed.until(lambda: installed.status().get("running") == 2)
    before = {job["metadata"]["uid"] for job in installed.jobs}
    await installed.stop()
    assert {job["metadata"]["uid"] for job in installed.jobs} == before
    installed.start()
    installed.edit("tiny", parallelism=3)
    await installed.until(lambda: installed.status().get("running") == 3)
    assert before < {job["metadata"]["uid"] for job in installed.jobs}


@on_a_cluster(FOREVER)
async def test_two_namespaces_with_one_name_are_two_experiments(installed: Installation) -> None:
    installed.api.put("namespaces", {"metadata": {"name": "user2"}})
    for namespace in (NAMESPACE, "user2"):
        resource = experiment(parallelism=1)
        resource["metadata"]["namespace"] = namespace
        installed.apply(resource)
    await installed.until(lambda: len(installed.api.all("jobs")) == 2)
    assert {job["metadata"]["namespace"] for job in installed.api.all("jobs")} == {
        NAMESPACE,
        "user2",
    }


@on_a_cluster(FOREVER)
async def test_a_status_that_somebody_changes_is_set_right(installed: Installation) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    installed.api.change(
        "experiments", NAMESPACE, "tiny", lambda each: each.update(status={"state": "succeeded"})
    )
    await installed.until_state("running")


@on_a_cluster(FOREVER)
async def test_a_missing_right_is_told_and_tried_again(installed: Installation) -> None:
    installed.api.forbid("create", "jobs")
    installed.apply(experiment())
    await installed.until(lambda: "jobs" in installed.status().get("reason", ""))
    installed.api.permit()
    await installed.until(lambda: installed.status().get("running") == 1)


@on_a_cluster()
async def test_events_say_how_the_state_changes(installed: Installation) -> None:
    installed.apply(experiment())
    await installed.until_state("succeeded")
    await installed.until(
        lambda: "Succeeded" in {event["reason"] for event in installed.api.all("events")}
    )


@on_a_cluster()
async def test_a_template_may_not_ask_for_more_than_an_ordinary_pod(
    installed: Installation,
) -> None:
    resource = experiment()
    resource["spec"]["trial"]["serviceAccount"] = "admin"
    installed.apply(resource)
    await installed.until_state("invalid")
    message = installed.condition("Accepted")["message"]
    assert "spec.trial.serviceAccount: 'admin' is refused" in message
    assert not installed.jobs


@on_a_cluster()
async def test_an_experiment_that_helm_installs_runs(installed: Installation) -> None:
    resource = experiment()
    resource["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "Helm", "team": "vision"}
    installed.apply(resource)
    await installed.until_state("succeeded")


def test_a_status_of_a_running_experiment_costs_no_read_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Counter[str]()
    read = SqlExperimentStore.experiment

    def counted(store: SqlExperimentStore, namespace: str, name: str) -> Experiment | None:
        reads[name] += 1
        return read(store, namespace, name)

    monkeypatch.setattr(SqlExperimentStore, "experiment", counted)
    monkeypatch.setattr(managed, "_RESYNC_S", 3600.0)

    @on_a_cluster(FOREVER)
    async def claim(installed: Installation) -> None:
        installed.apply(experiment())
        await installed.until(lambda: installed.status().get("running") == 1)
        before = reads["tiny"]
        for _ in range(3):
            installed.api.change(
                "experiments", NAMESPACE, "tiny", lambda each: each["status"].update(running=7)
            )
            await installed.until(lambda: installed.status()["running"] == 1)
        assert reads["tiny"] == before
        installed.edit("tiny", suspend=True)
        await installed.until(lambda: reads["tiny"] > before)

    claim(tmp_path)
