"""`tuner migrate katib` beside a real Katib: who acts on an Experiment, and when.

Trials are Jobs on fake nodes that run until the test ends their pods, or for two seconds.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.api import CORE, Object, RequestRefused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import Installed
from tests.cluster.waiting import eventually
from tests.kube import katib_objects
from tests.operators import katib
from tests.operators.conftest import lacks
from tests.operators.katib import GROUP, INJECTION, Katib

LONG, SHORT = "1h", "2s"
SETTINGS = ("katib.enabled=true", "katib.definitions=false")
JOBS = "/apis/batch/v1/namespaces/{}/jobs"


@pytest.fixture(scope="module")
def beside() -> Iterator[Katib]:
    lacks("Katib takes root" if os.geteuid() != 0 else katib.missing())
    cluster = ControlPlane(fake_nodes=2)
    try:
        katib_there = Katib(cluster)
        yield katib_there
        katib_there.close()
    finally:
        cluster.close()


@pytest.fixture
def namespace(beside: Katib) -> Iterator[str]:
    name = f"test-{random.getrandbits(40):x}"
    api = beside.cluster.api()
    api.post(f"{CORE}/namespaces", {"metadata": {"name": name, "labels": INJECTION}})
    api.until(f"{CORE}/namespaces/{name}/serviceaccounts/default", bool)
    yield name
    api.delete(f"{CORE}/namespaces/{name}")


@pytest.fixture
def installed(
    beside: Katib, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Installed]:
    for name, value in beside.variables.items():
        monkeypatch.setenv(name, value)
    made = Installed(beside.cluster, tmp_path, *SETTINGS)
    try:
        made.start("--katib", "annotated")
        yield made
    finally:
        made.close()


class Search:
    """One Experiment of Katib's, with what both controllers make of it."""

    def __init__(self, beside: Katib, namespace: str, *, runs: str, **spec: object) -> None:
        self.beside, self.namespace = beside, namespace
        self._path = GROUP.format(namespace=namespace, plural="experiments")
        beside.cluster.api().post(self._path, experiment(namespace, runs=runs, **spec))

    @property
    def trials(self) -> list[Object]:
        return self.beside.objects(self.namespace, "trials")

    def ended(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.trials if _is_true(each, "Succeeded")]

    def running(self) -> list[str]:
        return [
            each["metadata"]["name"]
            for each in self.trials
            if _is_true(each, "Running") and not _is_true(each, "Succeeded")
        ]

    def jobs(self) -> list[Object]:
        return self.beside.cluster.api().items(JOBS.format(self.namespace))

    def ours(self) -> list[Object]:
        """Return the Jobs that Tuner has begun."""
        katibs = {each["metadata"]["name"] for each in self.trials}
        return [each for each in self.jobs() if each["metadata"]["name"] not in katibs]

    def end(self, name: str) -> None:
        """Let one of Katib's Jobs succeed."""
        selector = f"batch.kubernetes.io/job-name={name}"
        api = self.beside.cluster.api()
        pods = f"{CORE}/namespaces/{self.namespace}/pods"
        for pod in api.items(pods, labelSelector=selector):
            path = f"{pods}/{pod['metadata']['name']}/status"
            api.patch(path, {"status": {"phase": "Succeeded"}})

    @contextmanager
    def suggested(self) -> Iterator[None]:
        """Answer for the service of suggestions as long as the context lasts."""
        over = threading.Event()

        def suggest() -> None:
            while not over.wait(0.2):
                self.beside.suggest(self.namespace)

        thread = threading.Thread(target=suggest)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def migrate(self, *words: str) -> subprocess.CompletedProcess[str]:
        config = self.beside.cluster.kubeconfig(namespace=self.namespace)
        return subprocess.run(
            [sys.executable, "-m", "controller", "migrate", "katib", "--context", "test", *words],
            env={**os.environ, "KUBECONFIG": str(config)},
            capture_output=True,
            text=True,
            check=False,
        )


def _is_true(resource: Object, kind: str) -> bool:
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def experiment(namespace: str, *, runs: str, **spec: object) -> Object:
    env = [
        {"name": "KWOK_LOG", "value": "score=0.25"},
        {"name": "KWOK_RUN", "value": runs},
    ]
    container = {
        "name": "main",
        "image": "tiny:1",
        "command": ["train", "--x=${trialParameters.x}"],
        "env": env,
    }
    return {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Experiment",
        "metadata": {"name": "tiny", "namespace": namespace},
        "spec": {
            "objective": {"type": "maximize", "objectiveMetricName": "score"},
            "algorithm": {"algorithmName": "random"},
            "parallelTrialCount": 3,
            "maxTrialCount": 6,
            "parameters": [
                {
                    "name": "x",
                    "parameterType": "double",
                    "feasibleSpace": {"min": "0", "max": "1"},
                }
            ],
            "trialTemplate": {
                "primaryContainerName": "main",
                "retain": True,
                "trialParameters": [{"name": "x", "reference": "x"}],
                "trialSpec": {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "spec": {
                        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}
                    },
                },
            },
            **spec,
        },
    }


@pytest.mark.parametrize("policy", ["Never", "LongRunning"])
def test_katib_begins_no_trial_of_what_was_taken_over(
    beside: Katib, namespace: str, installed: Installed, policy: str
) -> None:
    search = Search(beside, namespace, runs=LONG, resumePolicy=policy)
    with search.suggested():
        eventually(lambda: len(search.running()) == 3, within_s=60)
        search.end(search.running()[0])
        eventually(lambda: len(search.ended()) == 1, within_s=60)
        eventually(lambda: len(search.running()) == 3, within_s=60)
        tried = search.migrate()
        assert tried.returncode == 0, tried.stderr
        assert tried.stdout.splitlines()[1].split()[-3:] == ["1", "3", "2"]
        done = search.migrate("--yes")
        assert done.returncode == 0, done.stderr
        begun = {each["metadata"]["name"] for each in search.trials}
        assert len(begun) == 4
        # All of Katib's run, so there is room here only when one of them has ended.
        assert not search.ours()
        for name in search.running():
            search.end(name)
        eventually(lambda: len(search.ended()) == 4, within_s=60)
        eventually(search.ours, within_s=60)
        assert {each["metadata"]["name"] for each in search.trials} == begun
    (last,) = beside.experiment(namespace)["status"]["conditions"][-1:]
    assert (last["type"], last["reason"]) == ("Failed", "TakenOverByTuner")


def test_the_search_ends_here_with_all_trials(
    beside: Katib, namespace: str, installed: Installed
) -> None:
    search = Search(beside, namespace, runs=SHORT, maxTrialCount=24)
    with search.suggested():
        eventually(lambda: len(search.ended()) >= 2, within_s=60)
        done = search.migrate("--yes")
        assert done.returncode == 0, done.stderr
    status = installed.until(namespace, lambda status: status.get("state") == "succeeded")
    by_katib = len(search.trials)
    assert by_katib + status["trials"]["succeeded"] == 24
    assert len(search.ended()) == by_katib
    assert status["best"]["value"] == 0.5


def test_katib_goes_on_with_what_it_gets_back(
    beside: Katib, namespace: str, installed: Installed
) -> None:
    search = Search(beside, namespace, runs=LONG)
    with search.suggested():
        eventually(lambda: len(search.running()) == 3, within_s=60)
        assert search.migrate("--yes").returncode == 0
        done = search.migrate("tiny", "--undo", "--yes")
        assert done.returncode == 0, done.stderr
        assert (
            installed.cluster.api().find(
                f"/apis/tuner.dev/v1/namespaces/{namespace}/experiments/tiny"
            )
            is None
        )
        search.end(search.running()[0])
        eventually(lambda: len(search.trials) == 4, within_s=60)
        eventually(lambda: len(search.running()) == 3, within_s=60)
    assert _is_true(beside.experiment(namespace), "Running")


def test_the_objects_of_fast_tests_are_as_katib_writes_them(beside: Katib, namespace: str) -> None:
    search = Search(beside, namespace, runs=LONG)
    with search.suggested():
        eventually(lambda: len(search.running()) == 3, within_s=60)
        search.end(search.running()[0])
        eventually(lambda: len(search.ended()) == 1, within_s=60)
        eventually(lambda: len(search.running()) == 3, within_s=60)
    seen = beside.experiment(namespace)
    ours = katib_objects.experiment()
    ours["metadata"]["uid"] = seen["metadata"]["uid"]
    assert _known(seen) == _known(ours)
    metrics = [{"name": "score", "min": "0.5", "max": "0.5", "latest": "0.5"}]
    for each in search.trials:
        is_over = each["metadata"]["name"] in search.ended()
        ends = ("Succeeded",) if is_over else ("Running",)
        score = "0.5" if is_over else ""
        recorded = katib_objects.trial(ours, "aaaaaaaa", 0.25, *ends, score=score)
        assert _known(each) == _known(recorded)
        assert each["status"].get("observation") == ({"metrics": metrics} if is_over else None)


def _known(resource: Object) -> Object:
    """Return what Tuner reads of an object, and what tells Katib's from others."""
    about = resource["metadata"]
    owners = about.get("ownerReferences") or ()
    return {
        "finalizers": about["finalizers"],
        "labels": about.get("labels"),
        "owners": [(each["kind"], each["name"], each["uid"]) for each in owners],
        "conditions": [
            # Katib adds the Job's own reason, which is that of the Kubernetes version.
            (each["type"], each["status"], each["reason"].partition(".")[0])
            for each in resource["status"]["conditions"]
        ],
    }


def test_katib_acts_whatever_an_annotation_says(beside: Katib, namespace: str) -> None:
    """Why a search that is taken over goes on as another object."""
    search = Search(beside, namespace, runs=LONG)
    path = f"{GROUP.format(namespace=namespace, plural='experiments')}/tiny"
    controlled = {"metadata": {"annotations": {"tuner.dev/controlled": "true"}}}
    beside.cluster.api().patch(path, controlled)
    with pytest.raises(RequestRefused, match="parallelTrialCount"):
        beside.cluster.api().patch(path, {"spec": {"parallelTrialCount": 0}})
    with search.suggested():
        eventually(lambda: len(search.running()) == 3, within_s=60)
