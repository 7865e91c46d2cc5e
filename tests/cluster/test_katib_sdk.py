"""Katib's SDK, unmodified, against the controller on a real API server."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import CORE
from tests.cluster.conftest import lacks
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import WITH_POLICIES, Installed

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-katib" / "bin" / "python"
EXAMPLES = ROOT / "examples" / "katib"
SETTINGS = ("katib.enabled=true", WITH_POLICIES)


@pytest.fixture
def installed(level_b: ControlPlane, tmp_path: Path) -> Iterator[Installed]:
    made = Installed(level_b, tmp_path, *SETTINGS)
    try:
        made.start("--katib")
        yield made
    finally:
        made.close()


def sdk(cluster: ControlPlane, script: str, *words: object) -> dict[str, Any]:
    """Run a script of this folder against a cluster; return what it found."""
    return in_sdk(script, *words, KUBECONFIG=str(cluster.kubeconfig()))


def in_sdk(script: str, *words: object, **variables: str) -> dict[str, Any]:
    """Run a script of this folder in the environment of Katib's SDK; return what it found."""
    if not PYTHON.exists():
        lacks("`make .venv-katib/stamp` installs Katib's SDK")
    env = os.environ | variables
    command = [PYTHON, Path(__file__).with_name(script), *map(str, words)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    print(done.stderr)
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_the_pytorch_jobs_of_tune_are_those_that_other_tests_run() -> None:
    kept = json.loads((ROOT / "tests" / "fixtures" / "katib_sdk" / "tuned.json").read_text())
    assert in_sdk("katib_tuned.py") == kept


STATES = [
    "Created True ExperimentCreated",
    "Running False ExperimentRunning",
    "Succeeded True ExperimentMaxTrialsReached",
]
OF_ONE_PARAMETER = (
    "random",
    "tpe",
    "multivariate-tpe",
    "bayesianoptimization",
    "sobol",
    "grid",
    "pbt",
)
COMPLETE = 'status.conditions.#(type=="Complete")#|#(status=="True")#'
NETWORK = ["algorithm-settings", "num-layers", "search-space"]
# By the names of the stories.
ANSWERS: dict[str, object] = {
    "names": {
        "again": True,
        "missing": True,
        "delete": True,
        "trial": True,
        "none": [],
        "suggestions": True,
    },
    "notebook": {
        "defaults": [3, "Never", "uniform", "StdOut", ["max", "max"], COMPLETE],
        "loss": "2",
        "is_value": True,
        "trial": "Succeeded",
        "details": [["metrics", "name", "parameter_assignments"]] * 3,
        "suggestion": "Succeeded",
    },
    "states": {
        "before": None,
        "running": ["created", "running"],
        "counts": True,
        "succeeded": ["created", "succeeded"],
        "conditions": STATES,
        "best": True,
        "restarting": True,
        "again": [STATES[0], "Restarting True ExperimentRestarting", *STATES[1:]],
    },
    "budgets": {"ended_before_all": True, "nothing": "ValueError", "spec": 2},
    "suspended": {"suspended": [["created"], "Running False ExperimentSuspended"], "trials": 3},
    "recreated": {"none_of_earlier": True, "suggestion": True},
    "policies": {
        "Never": ["Succeeded"],
        "LongRunning": ["Running"],
        "FromVolume": ["Succeeded"],
        "claims": ["fromvolume-random"],
    },
    "failing": {
        "raised": "RuntimeError",
        "in": ["created", "failed"],
        "last": ["ExperimentFailed", "Experiment has failed because max failed count has reached"],
        "running": ["Running False ExperimentRunning"],
        "trials": True,
        "trial": ["Failed", "TrialFailed", True],
        "details": [],
        "best": None,
        "at_once": True,
    },
    "unavailable": {"trial": ["MetricsUnavailable", "MetricsUnavailable"], "count": True},
    "stopped_early": {"listed": True, "reasons": ["TrialEarlyStopped"], "observed": True},
    "algorithms": {
        **{name: [True, ["x"]] for name in OF_ONE_PARAMETER},
        "cmaes": [True, ["x", "n"]],
        "hyperband": [True, ["x", "n"]],
    },
    "networks": {
        "darts": [1, "Genotype(normal=", NETWORK],
        "enas": [3, "0.5", ["architecture", "nn_config"]],
    },
    "tuned": {
        "trials": 4,
        "spaces": ["kind", "layers", "lr"],
        "distributions": ["uniform"],
        "strategies": ["min", "min"],
        "best": ["kind", "layers", "lr"],
        "value": True,
        "again": True,
    },
    "unlimited": {"before": None, "goes_on": True, "ends": STATES[-1]},
    "waiting": {"late": "TimeoutError", "gone": "RuntimeError"},
    "edited": {
        "conditions": STATES,
        "counts": [3, 3, True],
        "suggestion": True,
        "trial": "Succeeded",
        "best": True,
    },
    "invalid": {"refused": True, "failed": "ExperimentInvalid"},
}


def test_calls_in_orders_that_nobody_planned_get_what_katib_answers(
    installed: Installed, level_b: ControlPlane, namespace: str
) -> None:
    found = sdk(level_b, "katib_orders.py", namespace)
    level_b.api().delete(f"{CORE}/persistentvolumes/pbt-{namespace}")
    for story, answers in ANSWERS.items():
        assert found[story] == answers, f"{story}: {found[story]}"
    listed = {each: columns(installed, namespace, each) for each in COLUMNS}
    assert listed == COLUMNS


# What kubectl prints above them.
COLUMNS = {
    "experiments": "NAME TYPE STATUS AGE",
    "trials": "NAME TYPE STATUS AGE",
    "suggestions": "NAME TYPE STATUS REQUESTED ASSIGNED AGE",
}


def columns(installed: Installed, namespace: str, plural: str) -> str:
    listed = installed.kubectl("get", f"{plural}.kubeflow.org", "-n", namespace)
    return " ".join(listed.splitlines()[0].split())


def on_fake_nodes(document: dict[str, Any]) -> dict[str, Any]:
    """Return an example whose pods are fake, and print its metrics."""
    found = copy.deepcopy(document)
    objective = found["spec"]["objective"]
    metrics = [objective["objectiveMetricName"], *objective.get("additionalMetricNames", ())]
    life = {"KWOK_LOG": " ".join(f"{each}=0.5" for each in metrics), "KWOK_RUN": "300ms"}
    template = found["spec"]["trialTemplate"]["trialSpec"]
    for container in template["spec"]["template"]["spec"]["containers"]:
        given = [{"name": name, "value": value} for name, value in life.items()]
        container["env"] = [*given, *container.get("env", ())]
    return found


# The other examples have metrics in files or in the DBManager, which fake pods do not write.
ON_FAKE_NODES = (
    "random",
    "grid",
    "sobol",
    "tpe",
    "multivariate-tpe",
    "bayesian-optimization",
    "cma-es",
    "hyperband",
    "distributions",
    "early-stopping",
    "metric-strategies",
    "resume-and-metadata",
    "enas/enas-cpu",
)


def test_what_katibs_own_test_checks_holds_for_the_examples(
    installed: Installed, level_b: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    documents = [yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()) for name in ON_FAKE_NODES]
    for policy in ("Never", "LongRunning", "FromVolume"):
        resumed = copy.deepcopy(documents[0])
        resumed["metadata"]["name"] = f"{policy.lower()}-resume"
        resumed["spec"]["resumePolicy"] = policy
        documents.append(resumed)
    paths: list[Path] = []
    for document in map(on_fake_nodes, documents):
        paths.append(tmp_path / f"{document['metadata']['name']}.yaml")
        paths[-1].write_text(yaml.safe_dump(document))
    found = sdk(level_b, "katib_e2e.py", namespace, *paths)
    assert found == {path.stem: "passed" for path in paths}
