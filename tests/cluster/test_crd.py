"""The definition of Experiment on a real API server: what it accepts, explains and refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.spec import rules
from controller.spec.trial_section import INSTEAD_OF_TEMPLATE
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import DEFINITION, Kubectl, experiment, rendered

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def kubectl(level_b: ControlPlane) -> Kubectl:
    client = Kubectl(level_b.kubeconfig())
    client.apply([each for each in rendered() if each["kind"] == "CustomResourceDefinition"])
    client.established(DEFINITION)
    return client


def dry(kubectl: Kubectl, document: dict[str, Any]) -> str:
    return kubectl("create", "--dry-run=server", "-f", "-", given=json.dumps(document))


def native() -> Iterator[Path]:
    for path in sorted(ROOT.glob("examples/**/*.yaml")):
        document = next(iter(yaml.safe_load_all(path.read_text(encoding="utf-8"))), None)
        if isinstance(document, dict) and document.get("apiVersion") == "tuner.dev/v1":
            yield path


def test_every_example_is_accepted(kubectl: Kubectl, namespace: str) -> None:
    paths = list(native())
    assert len(paths) > 5
    for path in paths:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        document["metadata"]["namespace"] = namespace
        assert "created" in dry(kubectl, document), path


GOAL = {"metric": "a", "direction": "maximize"}
JOB = {"apiVersion": "batch/v1", "kind": "Job"}
# What the refusal says: the place, and what is wrong there.
WRONG: dict[str, dict[str, Any]] = {
    "spec.budget.trials: Invalid value: 0: ": {"budget": {"trials": 0}},
    "spec.budget.wallClock: Invalid value": {"budget": {"wallClock": "soon"}},
    "spec.budget.failedTrials: Invalid value": {"budget": {"failedTrials": [1]}},
    'spec.objective.direction: Unsupported value: "up"': {
        "objective": {"metric": "a", "direction": "up"}
    },
    "spec.objective.metric: Required value": {"objective": {"direction": "maximize"}},
    f"spec.objective: Invalid value: {rules.NO_OBJECTIVE}": {"objective": None},
    f"spec.objectives: Invalid value: {rules.BOTH_OBJECTIVES}": {"objectives": [GOAL]},
    f"spec.constraints[0]: Invalid value: {rules.NO_BOUND}": {"constraints": [{"metric": "b"}]},
    "spec.constraints[1]: Invalid value: min is above max; no value satisfies both": {
        "constraints": [{"metric": "b", "min": 1}, {"metric": "c", "min": 2, "max": 1}]
    },
    f"spec.budget.regretBelow: Invalid value: {rules.REGRET_OF_SEVERAL}": {
        "budget": {"regretBelow": 0.1},
        "constraints": [{"metric": "b", "max": 1}],
    },
    f"spec.budget.overrun: Invalid value: {rules.OVERRUN_OF_NOTHING}": {
        "budget": {"overrun": "stop"}
    },
    "spec.fidelity.min: Invalid value: is not above 0": {
        "fidelity": {"parameter": "epochs", "min": 0, "max": 9}
    },
    "spec.fidelity.max: Invalid value: is below min times eta": {
        "fidelity": {"parameter": "epochs", "min": 1, "max": 2.5}
    },
    f"spec.metrics.format: Invalid value: {rules.FORMAT_OF_NO_FILE}": {
        "metrics": {"format": "json"}
    },
    f"spec.metrics.step: Invalid value: {rules.STEP_OF_EVENTS}": {
        "metrics": {"format": "tensorboard", "file": "runs", "step": "epoch"}
    },
    "spec.metrics.prometheus.port: Invalid value": {"metrics": {"prometheus": {"port": 0}}},
    f"spec.final: Invalid value: {rules.FINAL_OF_TEMPLATE}": {
        "final": {"command": ["a"]},
        "trial": {"template": JOB},
    },
    "spec.parallelism: Invalid value": {"parallelism": "many"},
    'unknown field "spec.parallelsm"': {"parallelsm": 2},
    'unknown field "spec.trial.comand"': {"trial": {"image": "a", "comand": ["b"]}},
    "spec.parameters: Invalid value": {"parameters": []},
    "spec.initial[0]: Invalid value": {"initial": [3]},
    "spec.suspend: Invalid value": {"suspend": "yes"},
    "spec.trial: Required value": {"trial": None},
    "spec.trial.image: Invalid value": {"trial": {"image": ""}},
    "spec.trial.retries.timeout: Invalid value": {"trial": {"retries": {"timeout": -1}}},
    "spec.trial.volumes.data.mount: Required value": {"trial": {"volumes": {"data": {}}}},
    "spec.canary: Invalid value": {"canary": [1]},
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_object_is_refused_with_its_place(
    kubectl: Kubectl, namespace: str, said: str
) -> None:
    document = experiment(namespace)
    document["spec"] |= copy.deepcopy(WRONG[said])
    with pytest.raises(AssertionError) as refused:
        dry(kubectl, document)
    # A rule between keys shows no value.
    assert said in str(refused.value).replace('Invalid value: "object": ', "Invalid value: ")


@pytest.mark.parametrize("name", ["a" * 41, "a.b"])
def test_a_name_that_pods_cannot_have_is_refused(
    kubectl: Kubectl, namespace: str, name: str
) -> None:
    with pytest.raises(AssertionError, match=r"metadata\.name: .*; use (at most 40|lower-case)"):
        dry(kubectl, experiment(namespace, name))


def test_keys_with_nothing_in_them_are_as_absent_ones(kubectl: Kubectl, namespace: str) -> None:
    document = experiment(namespace, canary=None, constraints=None, pruning=None)
    document["spec"]["objective"]["target"] = None
    assert "created" in dry(kubectl, document)


def test_kubectl_explains_keys_and_status(kubectl: Kubectl) -> None:
    assert "The metric to optimize" in kubectl("explain", "texp.spec.objective")
    assert "The best trial" in kubectl("explain", "texp.status.best")


def test_the_server_writes_defaults(kubectl: Kubectl, namespace: str) -> None:
    document = experiment(namespace)
    given = json.dumps(document)
    made = json.loads(kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", given=given))
    spec = made["spec"]
    assert (spec["parallelism"], spec["objective"]["value"]) == (1, "last")
    assert spec["trial"]["retries"]["infrastructure"] == 3


def test_nothing_is_written_beside_a_template(kubectl: Kubectl, namespace: str) -> None:
    document = experiment(namespace, trial={"template": JOB})
    given = json.dumps(document)
    made = json.loads(kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", given=given))
    assert not INSTEAD_OF_TEMPLATE & made["spec"]["trial"].keys()


def test_a_map_of_the_status_may_become_empty(kubectl: Kubectl, namespace: str) -> None:
    """As the counts of trials do when failures are set aside, so that they run again."""
    document = experiment(namespace, suspend=True)
    kubectl.apply([document])
    apply = ("apply", "--server-side", "--subresource=status", "-o", "json", "-f", "-")
    for status in (
        {"trials": {"failed": 2}, "best": {"parameters": {"x": 1}}},
        {"trials": {}, "best": {"parameters": {}}},
    ):
        about = {key: document[key] for key in ("apiVersion", "kind", "metadata")}
        applied = kubectl(*apply, given=json.dumps(about | {"status": status}))
        assert json.loads(applied)["status"] == status
