"""The definition of Experiment on a real API server: what it accepts, explains and refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import Kubectl, experiment, rendered

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def kubectl(level_b: ControlPlane) -> Kubectl:
    client = Kubectl(level_b.kubeconfig())
    client.apply([each for each in rendered() if each["kind"] == "CustomResourceDefinition"])
    client("wait", "--for=condition=Established", "crd/experiments.tuner.dev")
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


WRONG = {
    "spec.budget.trials": {"budget": {"trials": 0}},
    "spec.objective.direction": {"objective": {"metric": "a", "direction": "up"}},
    "spec.objective.metric": {"objective": {"direction": "maximize"}},
    "write either objective or objectives": {
        "objectives": [{"metric": "b", "direction": "minimize"}]
    },
    "a constraint needs min, max or both": {"constraints": [{"metric": "b"}]},
    "spec.parallelism": {"parallelism": "many"},
    'unknown field "spec.parallelsm"': {"parallelsm": 2},
    "spec.parameters": {"parameters": []},
    "spec.suspend": {"suspend": "yes"},
    "spec.trial": {"trial": None},
    "spec.canary": {"canary": [1]},
}


@pytest.mark.parametrize("place", WRONG)
def test_a_wrong_object_is_refused_with_its_place(
    kubectl: Kubectl, namespace: str, place: str
) -> None:
    document = experiment(namespace)
    document["spec"] |= copy.deepcopy(WRONG[place])
    with pytest.raises(AssertionError) as refused:
        dry(kubectl, document)
    assert place in str(refused.value)


@pytest.mark.parametrize("name", ["a" * 41, "a.b"])
def test_a_name_that_pods_cannot_have_is_refused(
    kubectl: Kubectl, namespace: str, name: str
) -> None:
    with pytest.raises(AssertionError, match=r"metadata\.name has"):
        dry(kubectl, experiment(namespace, name))


def test_kubectl_explains_keys_and_status(kubectl: Kubectl) -> None:
    assert "The metric to optimize" in kubectl("explain", "experiment.spec.objective")
    assert "The best trial" in kubectl("explain", "texp.status.best")


def test_the_server_writes_defaults(kubectl: Kubectl, namespace: str) -> None:
    document = experiment(namespace)
    given = json.dumps(document)
    made = json.loads(kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", given=given))
    assert (made["spec"]["parallelism"], made["spec"]["objective"]["value"]) == (1, "last")
