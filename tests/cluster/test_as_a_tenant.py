"""The commands of a user with trials on a cluster,
with the rights of deploy/rbac.yaml and no others.
"""

from __future__ import annotations

import json
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


def test_a_tenant_runs_a_search_within_a_quota_and_sees_its_state(
    level_b: ControlPlane, me: Searcher
) -> None:
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
    out, err = running.communicate(timeout=90)
    assert running.returncode == 0, err
    assert "tiny: best score 0." in out
    trials = me.trials()
    assert [trial["state"] for trial in trials] == ["succeeded"] * 6
    assert [len(trial["attempts"]) for trial in trials] == [1] * 6
    assert all(trial["value"] == pytest.approx(trial["parameters"]["x"]) for trial in trials)
    assert all(trial["attempts"][0]["node"].startswith("fake-") for trial in trials)
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
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "detaching; running trials continue" in err
    before = left(level_b, me)
    resumed = me.start("resume", "tiny")
    eventually(lambda: me.states() == {"running": 2}, every_s=0.3)
    assert sorted(left(level_b, me)) == sorted(before)
    code, _, err = me.tuner("stop", "tiny")
    assert code == 0, err
    _, err = resumed.communicate(timeout=30)
    assert resumed.returncode == 143, err
    assert me.states() == {"cancelled": 2}
    assert left(level_b, me) == []
    code, _, err = me.tuner("delete", "tiny", "--yes")
    assert code == 0, err
    ours = f"{CORE}/namespaces/{me.namespace}/configmaps"
    assert level_b.api().items(ours, labelSelector="tuner.dev/uid") == []


def test_a_tenant_recovers_an_experiment_from_the_cluster_alone(
    level_b: ControlPlane, me: Searcher
) -> None:
    process = me.start("run", me.file(trials=5, spec="  parallelism: 2\n", env={"KWOK_RUN": "3s"}))
    eventually(lambda: me.state.exists() and me.states().get("succeeded") == 2, every_s=0.3)
    eventually(lambda: len(left(level_b, me)) == 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    shutil.rmtree(me.state)
    code, _, err = me.tuner("resume", "tiny", "--from-cluster")
    assert code == 0, err
    assert "trials 0-1 were lost with the database" in err
    trials = me.trials()
    assert [trial["number"] for trial in trials] == [2, 3, 4, 5, 6]
    assert {(trial["state"], len(trial["attempts"])) for trial in trials} == {("succeeded", 1)}


def test_what_another_directory_finished_is_not_run_again_and_is_swept_after_30_days(
    level_b: ControlPlane, me: Searcher, tmp_path: Path
) -> None:
    api, leases = level_b.api(), f"/apis/coordination.k8s.io/v1/namespaces/{me.namespace}/leases"
    process = me.start("run", me.file(trials=2, env={"KWOK_RUN": "4s"}))
    eventually(lambda: len(left(level_b, me)) == 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    (tmp_path / "other").mkdir()
    other = Searcher(tmp_path / "other", Path(me.env["KUBECONFIG"]), me.namespace)
    code, _, err = other.tuner("resume", "tiny", "--from-cluster")
    assert code == 0, err
    code, _, err = me.tuner("resume", "tiny")
    assert code == 6, err
    assert "tiny has succeeded elsewhere" in err
    assert left(level_b, me) == []
    (lease,) = api.items(leases, labelSelector="tuner.dev/ended=succeeded")
    record = json.loads(lease["metadata"]["annotations"]["tuner.dev/ended"])
    aged = {"tuner.dev/ended": json.dumps(record | {"time": "2020-01-01T00:00:00Z"})}
    api.patch(f"{leases}/{lease['metadata']['name']}", {"metadata": {"annotations": aged}})
    code, _, err = other.tuner("run", other.file(name="next", trials=1))
    assert code == 0, err
    anchors = api.items(
        f"{CORE}/namespaces/{me.namespace}/configmaps", labelSelector="tuner.dev/uid"
    )
    assert [each["metadata"]["labels"]["tuner.dev/experiment"] for each in anchors] == ["next"]
    assert eventually(lambda: len(api.items(leases)) == 1), "the lease goes with its owner"
    other.close()
