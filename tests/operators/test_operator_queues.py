"""Trials behind Kueue's queue, each kind that Kueue takes: waiting, admitted, preempted and requeued."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.kwok import uid_number
from tests.cluster.objects import job, jobs
from tests.cluster.searcher import Searcher
from tests.cluster.waiting import eventually
from tests.operators.experiments import (
    MAIN,
    WITHIN_S,
    ended,
    experiment,
    last_main_value,
    running_main,
    verdict,
)
from tests.operators.kinds import GPUS, QUEUED, Kind
from tests.operators.queues import LOCAL_QUEUE, PRIORITY_LABEL, QUEUE_LABEL, V1, add_queue

Seen = Callable[[str], None]
each_queued_kind = pytest.mark.parametrize("kind", QUEUED, ids=str)


@pytest.fixture(autouse=True)
def queue(cluster: ControlPlane, namespace: str) -> Iterator[None]:
    """Room for one object."""
    add_queue(cluster.api(), namespace, gpus=GPUS)
    yield
    cluster.api().delete(f"{V1}/clusterqueues/{namespace}")


def until_waiting(me: Searcher, *, said: str) -> str:
    """The reason of a trial that waits, once it says this."""

    def reasons() -> list[str]:
        trials = me.trials() if me.states() else []
        return [trial["reason"] for trial in trials if trial["state"] == "queued" and said in (trial["reason"] or "")]

    return eventually(reasons, within_s=WITHIN_S, shows=lambda: me.tuner("describe", "tiny"))[0]


def urgent(namespace: str, api: Api) -> Object:
    labels = {QUEUE_LABEL: LOCAL_QUEUE, PRIORITY_LABEL: "high"}
    made = job("urgent", gpus=GPUS, KWOK_RUN="3s")
    made["metadata"]["labels"] = labels
    return api.post(jobs(namespace), made)


@each_queued_kind
@pytest.mark.outcome("queued by Kueue")
def test_a_trial_waits_for_kueue_and_is_admitted(cluster: ControlPlane, me: Searcher, kind: Kind, seen: Seen) -> None:
    main = {**MAIN, "KWOK_RUN": "4s"}
    process = me.start("run", experiment(me, kind, main, trials=2, parallelism=2, queue=LOCAL_QUEUE))
    reason = until_waiting(me, said="Kueue")
    assert "insufficient unused quota" in reason
    code, err = ended(process)
    assert code == 0, err
    trials = me.trials()
    assert [trial["value"] for trial in trials] == [trial["parameters"]["x"] for trial in trials]
    assert [len(trial["attempts"]) for trial in trials] == [1, 1], trials
    seen(verdict(trials[1]))


@each_queued_kind
@pytest.mark.outcome("preempted by Kueue")
def test_a_preempted_trial_goes_on_as_the_same_attempt_with_the_value_of_its_second_life(
    cluster: ControlPlane, me: Searcher, kind: Kind, seen: Seen
) -> None:
    api = cluster.api()
    main = {"KWOK_LOG": "score={uid}", "KWOK_RUN": "4s"}
    path = experiment(me, kind, main, labels={PRIORITY_LABEL: "low"}, queue=LOCAL_QUEUE)
    process = me.start("run", path)
    first = uid_number(running_main(api, me, kind)["metadata"]["uid"])
    eventually(lambda: me.states() == {"running": 1})
    urgent(me.namespace, api)
    until_waiting(me, said="Kueue")
    value = last_main_value(api, me, kind, process)
    code, err = ended(process)
    assert code == 0, err
    (trial,) = me.trials()
    assert (trial["state"], trial["value"], len(trial["attempts"])) == ("succeeded", value, 1), trial
    assert value != first
    seen(verdict(trial))
