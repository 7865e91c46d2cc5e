"""Each kind as a trial under its real operator: how it ends, stops, is retried and adopted.

Nodes and pods are fake.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.cluster.kwok import uid_number
from tests.cluster.objects import pods
from tests.cluster.searcher import Searcher
from tests.operators.experiments import (
    LONG,
    LONG_WORKER,
    MAIN,
    WORKER,
    ended,
    experiment,
    last_main_value,
    nothing_left,
    running_main,
    until_message,
    verdict,
)
from tests.operators.kinds import KINDS, Kind
from tests.operators.operators import Operators

Seen = Callable[[str], None]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
OPERATED = [kind for kind in KINDS if kind.operators]
each_operated_kind = pytest.mark.parametrize("kind", OPERATED, ids=str)


@each_kind
@pytest.mark.outcome("succeeds")
def test_the_value_of_a_trial_is_the_one_its_main_pod_prints(
    cluster: ControlPlane, me: Searcher, kind: Kind, seen: Seen
) -> None:
    code, _, err = me.tuner("run", experiment(me, kind, trials=2, parallelism=2))
    assert code == 0, err
    trials = me.trials()
    assert [trial["value"] for trial in trials] == [trial["parameters"]["x"] for trial in trials]
    assert [len(trial["attempts"]) for trial in trials] == [1, 1]
    assert nothing_left(cluster.api(), me, kind)
    seen(verdict(trials[0]))


@each_kind
@pytest.mark.outcome("main pod fails")
def test_a_main_pod_that_fails_is_a_failed_trial(
    cluster: ControlPlane, me: Searcher, kind: Kind, seen: Seen
) -> None:
    code, _, err = me.tuner("run", experiment(me, kind, {**MAIN, "KWOK_EXIT": "3"}, LONG_WORKER))
    assert code == 3, err
    (trial,) = me.trials()
    assert (trial["state"], trial["attempts"][0]["failureClass"]) == ("failed", "userError"), trial
    assert "exit code 3" in trial["reason"]
    assert nothing_left(cluster.api(), me, kind)
    seen(verdict(trial))


@each_kind
@pytest.mark.outcome("worker fails")
def test_a_worker_that_fails_is_a_failed_trial(
    cluster: ControlPlane, me: Searcher, kind: Kind, seen: Seen
) -> None:
    code, _, err = me.tuner("run", experiment(me, kind, LONG, {**WORKER, "KWOK_EXIT": "4"}))
    assert code == 3, err
    (trial,) = me.trials()
    assert (trial["state"], trial["attempts"][0]["failureClass"]) == ("failed", "userError"), trial
    assert "exit code 4" in trial["reason"]
    assert nothing_left(cluster.api(), me, kind)
    seen(verdict(trial))


@each_kind
@pytest.mark.outcome("`tuner stop`")
def test_stop_deletes_the_pods_of_a_trial(
    cluster: ControlPlane, me: Searcher, kind: Kind, seen: Seen
) -> None:
    process = me.start("run", experiment(me, kind, LONG, LONG_WORKER))
    running_main(cluster.api(), me, kind)
    assert me.tuner("stop", "tiny")[0] == 0
    code, err = ended(process)
    assert code == 143, err
    (trial,) = me.trials()
    assert trial["state"] == "cancelled"
    assert nothing_left(cluster.api(), me, kind)
    seen(verdict(trial))


@each_kind
@pytest.mark.outcome("deleted by hand")
def test_a_trial_whose_object_was_deleted_by_hand_runs_again(
    cluster: ControlPlane, me: Searcher, kind: Kind, seen: Seen
) -> None:
    process = me.start("run", experiment(me, kind, {**MAIN, "KWOK_RUN": "3s"}))
    running_main(cluster.api(), me, kind)
    (first,) = cluster.api().items(kind.objects(me.namespace))
    cluster.api().delete(
        kind.objects(me.namespace, first["metadata"]["name"]) + "?propagationPolicy=Background"
    )
    code, err = ended(process)
    assert code == 0, err
    (trial,) = me.trials()
    assert [attempt["state"] for attempt in trial["attempts"]] == ["failed", "succeeded"]
    assert trial["attempts"][0]["failureClass"] == "infrastructure"
    assert trial["value"] == trial["parameters"]["x"]
    seen(verdict(trial))


@each_kind
@pytest.mark.outcome("main pod evicted")
def test_the_value_of_a_retried_trial_is_that_of_the_pod_that_finished(
    cluster: ControlPlane, me: Searcher, kind: Kind, seen: Seen
) -> None:
    api = cluster.api()
    process = me.start("run", experiment(me, kind, {"KWOK_LOG": "score={uid}", "KWOK_RUN": "3s"}))
    evicted = running_main(api, me, kind)["metadata"]["name"]
    request = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": evicted}}
    api.post(f"{pods(me.namespace, evicted)}/eviction", request)
    value = last_main_value(api, me, kind, process)
    code, err = ended(process)
    assert code == 0, err
    (trial,) = me.trials()
    assert (trial["state"], trial["value"]) == ("succeeded", value), trial
    seen(verdict(trial))


@each_kind
@pytest.mark.outcome("controller killed")
def test_a_controller_resumed_after_a_kill_adopts_running_objects(
    cluster: ControlPlane, me: Searcher, kind: Kind, seen: Seen
) -> None:
    api = cluster.api()
    path = experiment(me, kind, {"KWOK_LOG": "score={uid}", "KWOK_RUN": "6s"})
    process = me.start("run", path)
    first = uid_number(running_main(api, me, kind)["metadata"]["uid"])
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = me.start("run", path)
    assert last_main_value(api, me, kind, process) == first
    code, err = ended(process)
    assert code == 0, err
    (trial,) = me.trials()
    assert (len(trial["attempts"]), trial["value"]) == (1, first), trial
    seen(verdict(trial))


@each_operated_kind
@pytest.mark.outcome("operator restarted")
def test_an_operator_that_restarts_costs_no_attempt(
    fakes: Operators, me: Searcher, kind: Kind, seen: Seen
) -> None:
    process = me.start("run", experiment(me, kind, {**MAIN, "KWOK_RUN": "3s"}, trials=2))
    running_main(fakes.cluster.api(), me, kind)
    for name in kind.operators:
        fakes.restart(name)
    code, err = ended(process)
    assert code == 0, err
    trials = me.trials()
    assert [trial["value"] for trial in trials] == [trial["parameters"]["x"] for trial in trials]
    assert [len(trial["attempts"]) for trial in trials] == [1, 1], trials
    seen(verdict(trials[0]))


@each_operated_kind
@pytest.mark.outcome("operator down at the start")
def test_a_trial_waits_for_an_operator_that_is_down(
    fakes: Operators, me: Searcher, kind: Kind, seen: Seen
) -> None:
    fakes.stop(kind.operators[0])
    try:
        process = me.start("run", experiment(me, kind))
        # "is its operator running?", or the same question about its kind
        until_message(me, "running?", state="queued")
    finally:
        fakes.start(kind.operators[0])
    code, err = ended(process)
    assert code == 0, err
    (trial,) = me.trials()
    assert trial["value"] == trial["parameters"]["x"]
    seen(verdict(trial))
