"""Trials behind Kueue's queue, each kind that Kueue takes: waiting,
admitted, preempted and requeued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.kwok import uid_number
from tests.cluster.objects import job, jobs
from tests.cluster.searcher import Searcher
from tests.operators.experiments import (
    ended,
    experiment,
    last_main_value,
    running_main,
    until_message,
    verdict,
)
from tests.operators.kinds import GPUS, QUEUED, Kind
from tests.operators.operators import KUEUE, Operators
from tests.operators.queues import LOCAL_QUEUE, PRIORITY_LABEL, QUEUE_LABEL, QUEUES, add_queue

Seen = Callable[[str], None]
URGENT = "urgent"
each_queued_kind = pytest.mark.parametrize("kind", QUEUED, ids=str)


@pytest.fixture(autouse=True)
def queue(cluster: ControlPlane, namespace: str) -> Iterator[None]:
    """Create a queue with room for one object."""
    add_queue(cluster.api(), namespace, gpus=GPUS)
    yield
    cluster.api().delete(f"{QUEUES}/clusterqueues/{namespace}")


def add_urgent(api: Api, namespace: str) -> None:
    """Create an urgent Job that takes the whole queue until it is removed."""
    urgent = job(URGENT, gpus=GPUS, KWOK_RUN="1h")
    urgent["metadata"]["labels"] = {QUEUE_LABEL: LOCAL_QUEUE, PRIORITY_LABEL: "high"}
    api.post(jobs(namespace), urgent)


def remove_urgent(api: Api, namespace: str) -> None:
    api.delete(f"{jobs(namespace, URGENT)}?propagationPolicy=Background")


@each_queued_kind
@pytest.mark.outcome("queued by Kueue")
def test_a_trial_waits_for_kueue_and_is_admitted(
    cluster: ControlPlane, me: Searcher, kind: Kind, seen: Seen
) -> None:
    api = cluster.api()
    add_urgent(api, me.namespace)
    process = me.start("run", experiment(me, kind, trials=2, parallelism=2, queue=LOCAL_QUEUE))
    until_message(me, "insufficient unused quota", state="queued")
    remove_urgent(api, me.namespace)
    code, err = ended(process)
    assert code == 0, err
    trials = me.trials()
    assert [trial["value"] for trial in trials] == [trial["parameters"]["x"] for trial in trials]
    assert [len(trial["attempts"]) for trial in trials] == [1, 1], trials
    seen(verdict(trials[1]))


@each_queued_kind
@pytest.mark.outcome("preempted by Kueue")
def test_a_preempted_trial_continues_as_the_same_attempt_with_the_value_of_its_second_run(
    cluster: ControlPlane, me: Searcher, kind: Kind, seen: Seen
) -> None:
    api = cluster.api()
    main = {"KWOK_LOG": "score={uid}", "KWOK_RUN": "8s"}
    process = me.start(
        "run", experiment(me, kind, main, labels={PRIORITY_LABEL: "low"}, queue=LOCAL_QUEUE)
    )
    first = uid_number(running_main(api, me, kind)["metadata"]["uid"])
    add_urgent(api, me.namespace)
    until_message(me, "preempted by Kueue", state="queued")
    remove_urgent(api, me.namespace)
    value = last_main_value(api, me, kind, process)
    code, err = ended(process)
    assert code == 0, err
    (trial,) = me.trials()
    assert (trial["state"], trial["value"], len(trial["attempts"])) == ("succeeded", value, 1), (
        trial
    )
    assert value != first
    seen(verdict(trial))


def test_a_queue_survives_a_restart_of_kueue(fakes: Operators, me: Searcher) -> None:
    api, job_kind = fakes.cluster.api(), QUEUED[0]
    add_urgent(api, me.namespace)
    process = me.start("run", experiment(me, job_kind, queue=LOCAL_QUEUE))
    until_message(me, "insufficient unused quota", state="queued")
    fakes.restart(KUEUE)
    remove_urgent(api, me.namespace)
    code, err = ended(process)
    assert code == 0, err
    (trial,) = me.trials()
    assert (trial["value"], len(trial["attempts"])) == (trial["parameters"]["x"], 1)


def test_a_missing_queue_is_reported_before_anything_runs(
    cluster: ControlPlane, me: Searcher
) -> None:
    code, _, err = me.tuner("run", experiment(me, QUEUED[0], queue="nosuch"))
    assert code == 2, err
    assert "LocalQueue nosuch is not in" in err
    assert cluster.api().items(QUEUED[0].objects(me.namespace)) == []
