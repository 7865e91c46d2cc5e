"""The commands of a user with trials on a cluster, with the rights of deploy/rbac.yaml and no others."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import CORE
from tests.cluster.controlplane import ControlPlane
from tests.cluster.objects import jobs, quota
from tests.cluster.searcher import Searcher
from tests.cluster.tenant import tenant
from tests.cluster.waiting import eventually


@pytest.fixture
def me(level_b: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Searcher]:
    person = Searcher(tmp_path, tenant(level_b, namespace), namespace)
    yield person
    person.close()


def left(level_b: ControlPlane, me: Searcher) -> list[str]:
    return [job["metadata"]["name"] for job in level_b.api().items(jobs(me.namespace))]


def test_a_tenant_runs_a_search_within_a_quota_and_sees_its_state(level_b: ControlPlane, me: Searcher) -> None:
    level_b.api().post(f"{CORE}/namespaces/{me.namespace}/resourcequotas", quota("gpus", gpus="2"))
    path = me.file(trials=6, spec="  parallelism: 4\n", env={"KWOK_RUN": "5s"})
    running = me.start("run", path)
    eventually(lambda: len(left(level_b, me)) == 2)
    code, out, _ = me.tuner("top", "tiny")
    assert code == 0
    assert "nvidia.com/gpu" in out
    code, out, _ = me.tuner("describe", "tiny")
    assert code == 0
    assert "QuotaExceeded" in out
    _, err = running.communicate(timeout=90)
    assert running.returncode == 0, err
    assert me.states() == {"succeeded": 6}
    assert [len(trial["attempts"]) for trial in me.trials()] == [1] * 6
    code, out, _ = me.tuner("logs", "tiny/0")
    assert (code, out[:6]) == (0, "score=")
    code, out, err = me.tuner("doctor", path)
    assert code == 0, out + err
    assert "FAIL" not in out
    assert left(level_b, me) == []


def test_a_tenant_detaches_resumes_stops_and_deletes(level_b: ControlPlane, me: Searcher) -> None:
    process = me.start("run", me.file(trials=4, spec="  parallelism: 2\n", env={"KWOK_RUN": "90s"}))
    eventually(lambda: len(left(level_b, me)) == 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    before = left(level_b, me)
    resumed = me.start("resume", "tiny")
    eventually(lambda: me.states() == {"running": 2}, every_s=0.3)
    assert sorted(left(level_b, me)) == sorted(before)
    code, _, err = me.tuner("stop", "tiny")
    assert code == 0, err
    _, err = resumed.communicate(timeout=30)
    assert resumed.returncode == 143, err
    assert left(level_b, me) == []
    code, _, err = me.tuner("delete", "tiny", "--yes")
    assert code == 0, err
    ours = f"{CORE}/namespaces/{me.namespace}/configmaps"
    assert level_b.api().items(ours, labelSelector="tuner.dev/uid") == []


def test_a_tenant_recovers_an_experiment_from_the_cluster_alone(level_b: ControlPlane, me: Searcher) -> None:
    process = me.start("run", me.file(trials=2, spec="  parallelism: 2\n", env={"KWOK_RUN": "4s"}))
    eventually(lambda: len(left(level_b, me)) == 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    shutil.rmtree(me.state)
    code, _, err = me.tuner("resume", "tiny", "--from-cluster")
    assert code == 0, err
    assert [(trial["state"], len(trial["attempts"])) for trial in me.trials()] == [("succeeded", 1)] * 2
