"""`tuner run` on a real control plane: Jobs and pods are real objects,
containers are simulated by kwok.

What a user sees, and what is left, when all goes well and when something fails during the run.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.cluster.objects import jobs, pods, quota
from tests.cluster.searcher import Searcher
from tests.cluster.waiting import eventually

SEED = random.randrange(1 << 30)


@pytest.fixture
def me(level_b: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Searcher]:
    person = Searcher(tmp_path, level_b.kubeconfig(namespace=namespace), namespace)
    yield person
    person.close()


def left(level_b: ControlPlane, namespace: str) -> list[str]:
    return [job["metadata"]["name"] for job in level_b.api().items(jobs(namespace))]


def test_a_finished_search_prints_its_best_trial_and_leaves_no_job(
    level_b: ControlPlane, me: Searcher
) -> None:
    code, out, err = me.tuner("run", me.file(trials=12, spec="  parallelism: 4\n"))
    assert code == 0, err
    assert "tiny: best score 0." in out
    trials = me.trials()
    assert [trial["state"] for trial in trials] == ["succeeded"] * 12
    assert all(trial["value"] == pytest.approx(trial["parameters"]["x"]) for trial in trials)
    assert {trial["attempts"][0]["node"] for trial in trials} <= {f"fake-{n}" for n in range(8)}
    assert left(level_b, me.namespace) == []


def test_trials_beyond_the_quota_wait_with_a_reason_and_never_fail(
    level_b: ControlPlane, me: Searcher
) -> None:
    level_b.api().post(f"/api/v1/namespaces/{me.namespace}/resourcequotas", quota("gpus", gpus="2"))
    running = me.start("run", me.file(trials=8, spec="  parallelism: 4\n", env={"KWOK_RUN": "1s"}))
    most, reasons = 0, set()
    while running.poll() is None:
        alive = [
            pod
            for pod in level_b.api().items(pods(me.namespace))
            if pod["status"]["phase"] in ("Pending", "Running")
        ]
        most = max(most, len(alive))
        if me.state.exists():
            code, out, _ = me.tuner("describe", "tiny")
            reasons |= {line for line in out.splitlines() if code == 0 and "QuotaExceeded" in line}
        time.sleep(0.1)
    out, err = running.communicate()
    assert running.returncode == 0, err
    assert most == 2
    assert any("requests.nvidia.com/gpu" in line for line in reasons), err
    assert me.states() == {"succeeded": 8}
    assert all(len(trial["attempts"]) == 1 for trial in me.trials())


def test_a_controller_killed_at_random_moments_loses_and_repeats_nothing(
    level_b: ControlPlane, me: Searcher
) -> None:
    path, moments = (
        me.file(trials=20, spec="  parallelism: 4\n", env={"KWOK_RUN": "700ms"}),
        random.Random(SEED),
    )
    code, err = me.killed(path, times=5, moments=moments, least_s=0.8)
    assert code == 0, (SEED, err)
    trials = me.trials()
    assert [trial["number"] for trial in trials] == list(range(20)), SEED
    assert {trial["state"] for trial in trials} == {"succeeded"}, SEED
    assert all(len(trial["attempts"]) == 1 for trial in trials), SEED
    assert left(level_b, me.namespace) == [], SEED


def test_ctrl_c_detaches_and_resume_adopts_the_running_trials(
    level_b: ControlPlane, me: Searcher
) -> None:
    process = me.start("run", me.file(trials=4, spec="  parallelism: 2\n", env={"KWOK_RUN": "4s"}))
    eventually(lambda: len(left(level_b, me.namespace)) == 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "detaching; running trials continue" in err
    before = left(level_b, me.namespace)
    assert len(before) == 2
    code, _, err = me.tuner("resume", "tiny")
    assert code == 0, err
    assert me.states() == {"succeeded": 4}
    assert all(len(trial["attempts"]) == 1 for trial in me.trials())


def test_stop_cancels_running_trials(level_b: ControlPlane, me: Searcher) -> None:
    process = me.start("run", me.file(trials=4, spec="  parallelism: 2\n", env={"KWOK_RUN": "60s"}))
    eventually(lambda: len(left(level_b, me.namespace)) == 2)
    assert me.tuner("stop", "tiny")[0] == 0
    process.communicate(timeout=20)
    assert process.returncode == 143
    assert me.states() == {"cancelled": 2}
    assert left(level_b, me.namespace) == []


def test_a_job_deleted_by_hand_is_run_again_as_the_next_attempt(
    level_b: ControlPlane, me: Searcher
) -> None:
    process = me.start("run", me.file(trials=2, env={"KWOK_RUN": "2s"}))
    (name,) = eventually(lambda: left(level_b, me.namespace))
    level_b.api().until(
        pods(me.namespace),
        lambda found: any(p["status"]["phase"] == "Running" for p in found["items"]),
    )
    level_b.api().delete(jobs(me.namespace, name) + "?propagationPolicy=Background")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    first = me.trials()[0]
    assert [attempt["state"] for attempt in first["attempts"]] == ["failed", "succeeded"]
    assert first["attempts"][0]["failureClass"] == "infrastructure"
    assert "deleted" in first["attempts"][0]["reason"]


def test_an_outage_of_the_api_server_is_waited_out(level_b: ControlPlane, me: Searcher) -> None:
    process = me.start("run", me.file(trials=6, spec="  parallelism: 2\n", env={"KWOK_RUN": "1s"}))
    eventually(lambda: left(level_b, me.namespace))
    level_b.stop_api_server()
    time.sleep(4)
    level_b.start_api_server()
    _, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert me.states() == {"succeeded": 6}
    assert all(len(trial["attempts"]) == 1 for trial in me.trials()), me.trials()


def test_an_experiment_whose_database_is_lost_is_rebuilt_from_the_cluster(
    level_b: ControlPlane, me: Searcher
) -> None:
    process = me.start("run", me.file(trials=5, spec="  parallelism: 2\n", env={"KWOK_RUN": "3s"}))
    eventually(lambda: me.state.exists() and me.states().get("succeeded") == 2, every_s=0.3)
    eventually(lambda: len(left(level_b, me.namespace)) == 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    shutil.rmtree(me.state)
    code, _, err = me.tuner("resume", "tiny", "--from-cluster", "--namespace", me.namespace)
    assert code == 0, err
    assert "trials 0-1 were lost with the database" in err
    trials = me.trials()
    assert [(trial["number"], trial["state"]) for trial in trials] == [
        (n, "succeeded") for n in range(2, 7)
    ]
    assert all(len(trial["attempts"]) == 1 for trial in trials)


@pytest.mark.parametrize(
    ("env", "state", "failure_class", "words"),
    [
        ({"KWOK_EXIT": "3"}, "failed", "userError", "exit code 3"),
        ({"KWOK_EXIT": "137", "KWOK_REASON": "OOMKilled"}, "failed", "outOfMemory", "memory"),
        ({"KWOK_EXIT": "42"}, "infeasible", None, ""),
        ({"KWOK_LOG": "nothing"}, "failed", "metricsMissing", "no line of its log"),
    ],
)
def test_the_end_of_a_pod_determines_the_failure_class(
    me: Searcher, env: dict[str, str], state: str, failure_class: str | None, words: str
) -> None:
    code, _, err = me.tuner("run", me.file(trials=1, env=env))
    assert code == 3, err
    (trial,) = me.trials()
    assert trial["state"] == state
    assert trial["attempts"][0].get("failureClass") == failure_class
    assert words in trial["reason"]


def test_an_image_that_cannot_be_pulled_pauses_the_experiment_with_the_reason(me: Searcher) -> None:
    code, _, err = me.tuner("run", me.file(trials=4, env={"KWOK_WAITING": "ErrImagePull"}))
    assert code == 8, err
    assert "tiny is paused" in err
    assert "image" in err
