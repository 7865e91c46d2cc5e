"""Pods that the cluster refuses to an operator, and pods that crash repeatedly.

Each kind has a reason to wait.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.api import CORE
from tests.cluster.controlplane import ControlPlane
from tests.cluster.objects import job, jobs, quota
from tests.cluster.searcher import Searcher
from tests.operators.experiments import (
    LONG_WORKER,
    MAIN,
    ended,
    experiment,
    nothing_left,
    until_message,
    verdict,
)
from tests.operators.kinds import GPUS, KINDS, Kind

Seen = Callable[[str], None]
_HEAD = {"template": {"spec": {"containers": [{"name": "head", "image": "tiny:1"}]}}}
RAY_JOB = {
    "apiVersion": "ray.io/v1",
    "kind": "RayJob",
    "spec": {"entrypoint": "python train.py --x=${x}", "rayClusterSpec": {"headGroupSpec": _HEAD}},
}
each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


@each_kind
@pytest.mark.outcome("pod refused by quota")
def test_a_trial_whose_pod_the_quota_refuses_waits(
    cluster: ControlPlane, me: Searcher, kind: Kind, seen: Seen
) -> None:
    api = cluster.api()
    path = f"{CORE}/namespaces/{me.namespace}/resourcequotas"
    api.post(path, quota("gpus", gpus=str(GPUS)))
    api.until(f"{path}/gpus", lambda now: now.get("status", {}).get("used"))
    api.post(jobs(me.namespace), job("other", gpus=1, KWOK_RUN="1h"))
    api.until(f"{path}/gpus", lambda now: now["status"]["used"]["requests.nvidia.com/gpu"] == "1")
    process = me.start("run", experiment(me, kind))
    until_message(me, "requests.nvidia.com/gpu", state="queued")
    api.delete(jobs(me.namespace, "other") + "?propagationPolicy=Background")
    code, err = ended(process)
    assert code == 0, err
    (trial,) = me.trials()
    assert (trial["value"], len(trial["attempts"])) == (trial["parameters"]["x"], 1), trial
    seen(verdict(trial))


@each_kind
@pytest.mark.outcome("pod refused by admission")
def test_a_pod_that_admission_refuses_pauses_the_experiment(
    cluster: ControlPlane, me: Searcher, kind: Kind, seen: Seen
) -> None:
    enforced = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    cluster.api().patch(f"{CORE}/namespaces/{me.namespace}", enforced)
    code, _, err = me.tuner("run", experiment(me, kind, trials=3))
    assert code == 8, err
    assert 'violates PodSecurity "restricted' in err
    (trial,) = me.trials()
    assert trial["attempts"][0]["failureClass"] == "configuration", trial
    assert nothing_left(cluster.api(), me, kind)
    seen(f"paused ({trial['attempts'][0]['failureClass']})")


@each_kind
@pytest.mark.outcome("crash loop")
def test_a_crash_loop_ends_as_a_failure(
    cluster: ControlPlane, me: Searcher, kind: Kind, seen: Seen
) -> None:
    crashing = {**MAIN, "KWOK_CRASHES": "1000", "KWOK_RUN": "200ms"}
    code, _, err = me.tuner("run", experiment(me, kind, crashing, LONG_WORKER, restart="OnFailure"))
    assert code == 3, err
    (trial,) = me.trials()
    assert (trial["state"], trial["attempts"][0]["failureClass"]) == ("failed", "userError"), trial
    assert "restarted" in trial["reason"]
    assert nothing_left(cluster.api(), me, kind)
    seen(verdict(trial))


def test_a_kind_without_an_operator_is_reported_before_anything_runs(me: Searcher) -> None:
    ray = Kind("RayJob", "ray.io/v1/rayjobs", lambda *behaviors: RAY_JOB, (), {}, "")
    code, _, err = me.tuner("run", experiment(me, ray))
    assert code == 2, err
    assert "RayJob" in err
    assert "ray.io/v1" in err
    assert me.states() == {}
