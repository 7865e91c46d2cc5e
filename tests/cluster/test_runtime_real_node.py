"""`tuner run` with real containers on a real kubelet: the digits search, a quota, several workers,
and logs that grow.

GPUs are counted by the scheduler, the quota and the kubelet; no device is attached.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import images
from tests.cluster.objects import pods, quota
from tests.cluster.realnode import RealNode
from tests.cluster.searcher import Searcher
from tests.cluster.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "digits"
HERE = (
    "--set",
    f"spec.trial.image={images.DIGITS}",
    "--set",
    "spec.trial.imagePullPolicy=Never",
    "--set",
    "spec.trial.gracePeriod=2s",
)


@pytest.fixture
def me(level_c: RealNode, namespace: str, tmp_path: Path) -> Iterator[Searcher]:
    images.digits()
    level_c.load(images.DIGITS)
    person = Searcher(tmp_path, level_c.kubeconfig(namespace=namespace), namespace)
    yield person
    person.close()


def run(me: Searcher, file: str, *flags: str) -> tuple[str | Path, ...]:
    return (
        "run",
        EXAMPLES / file,
        "--runtime",
        "kubernetes",
        "--namespace",
        me.namespace,
        *HERE,
        *flags,
    )


def test_the_digits_search_finds_a_good_network_on_two_gpus(me: Searcher) -> None:
    # Proposals depend on which of four trials ends first;
    # no network diverges at the remaining learning rates.
    changes = (
        "parallelism=4",
        "budget.trials=20",
        "trial.resources={gpu: 1, cpu: 800m, memory: 256Mi}",
        "parameters.lr.max=0.1",
    )
    flags = [part for change in changes for part in ("--set", f"spec.{change}")]
    code, out, err = me.tuner(*run(me, "experiment.yaml", *flags), within_s=800)
    assert code == 0, err
    best = re.search(r"best accuracy (\S+)", out)
    assert best is not None
    assert float(best[1]) >= 0.95
    trials = me.trials("digits")
    assert len(trials) == 20
    assert {trial["state"] for trial in trials} <= {"succeeded", "pruned"}
    assert any(trial["state"] == "pruned" for trial in trials)
    assert all(trial["attempts"][-1]["node"] for trial in trials)


def test_a_quota_for_two_pods_runs_two_trials_at_a_time(level_c: RealNode, me: Searcher) -> None:
    level_c.api().post(f"/api/v1/namespaces/{me.namespace}/resourcequotas", quota("two", pods="2"))
    flags = (
        "--set",
        "spec.parallelism=4",
        "--set",
        "spec.budget.trials=6",
        "--set",
        "spec.trial.resources={cpu: 400m}",
    )
    running = me.start(*run(me, "random.yaml", *flags))
    most = 0
    while running.poll() is None:
        alive = [
            p
            for p in level_c.api().items(pods(me.namespace))
            if p["status"]["phase"] in ("Pending", "Running")
        ]
        most = max(most, len(alive))
        time.sleep(0.1)
    _, err = running.communicate()
    assert running.returncode == 0, err
    assert most == 2
    assert all(len(trial["attempts"]) == 1 for trial in me.trials("digits-random"))


def test_two_workers_train_one_network_and_a_lost_one_is_replaced(
    level_c: RealNode, me: Searcher
) -> None:
    flags = (
        "--set",
        "spec.parallelism=1",
        "--set",
        "spec.budget.trials=2",
        "--set",
        "spec.trial.resources={cpu: 400m}",
    )
    running = me.start(*run(me, "distributed.yaml", *flags))
    api = level_c.api()

    def worker() -> str:
        for pod in api.items(pods(me.namespace)):
            index = pod["metadata"]["labels"].get("batch.kubernetes.io/job-completion-index")
            if index == "1" and pod["status"]["phase"] == "Running":
                return str(pod["metadata"]["name"])
        return ""

    name = eventually(worker, within_s=180)
    api.delete(pods(me.namespace, name) + "?gracePeriodSeconds=1")
    _, err = running.communicate(timeout=200)
    assert running.returncode == 0, err
    first, second = me.trials("digits-distributed")
    assert [attempt["state"] for attempt in first["attempts"]][-1] == "succeeded"
    assert first["attempts"][0].get("failureClass") == "infrastructure"
    # Pods report whole seconds: the other worker, which the Job then deletes,
    # may have ended in the same second.
    assert re.match(r"worker [01] of 2: ", first["attempts"][0]["reason"])
    assert second["state"] == "succeeded"


def test_a_hopeless_trial_is_pruned_after_the_line_that_shows_it(me: Searcher) -> None:
    program = (
        "import sys,time\\nn=6 if sys.argv[1]=='0.9' else 600\\n"
        "for i in range(n):\\n  print('epoch=%d score=%s' % (i, sys.argv[1]), flush=True); "
        "time.sleep(.2)"
    )
    path = me.folder / "slow.yaml"
    path.write_text(
        f"""\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {{name: slow, namespace: {me.namespace}}}
spec:
  objective: {{metric: score, direction: maximize}}
  parameters: {{x: [0.9, 0.1]}}
  initial: [{{x: 0.9}}, {{x: 0.1}}]
  algorithm: {{name: grid}}
  pruning: {{name: median, warmupSteps: 0, minTrials: 1}}
  runtime: kubernetes
  trial:
    image: {images.DIGITS}
    imagePullPolicy: Never
    command: [python, -c, "{program}", "${{x}}"]
    resources: {{cpu: 400m}}
    gracePeriod: 10s
"""
    )
    code, _, err = me.tuner("run", path)
    assert code == 0, err
    good, bad = me.trials("slow")
    assert (good["state"], bad["state"]) == ("succeeded", "pruned")
    assert bad["step"] <= 60, (
        "of 600; usually some five, for a decision within a second and a second to reach the pod"
    )
