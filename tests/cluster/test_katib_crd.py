"""The definition of Katib's Experiment on a real API server: what it accepts, fills in and refuses."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest
import yaml

from controller.kube.client import Kind, KubernetesClient
from controller.kube.custom_resource import KATIB_EXPERIMENTS, KATIB_SUGGESTIONS, KATIB_TRIALS
from controller.kube.errors import ApiError
from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import ROOT, Kubectl, rendered

DEFINITION = "experiments.kubeflow.org"
KIND = "experiments.kubeflow.org"


@pytest.fixture(scope="module")
def kubectl(level_b: ControlPlane) -> Kubectl:
    client = Kubectl(level_b.kubeconfig())
    definitions = [
        each
        for each in rendered("katib.enabled=true")
        if each["kind"] == "CustomResourceDefinition" and "kubeflow" in each["metadata"]["name"]
    ]
    client.apply(definitions)
    client.established(DEFINITION)
    return client


def katib(namespace: str, **spec: object) -> Object:
    """Return an Experiment with these keys of spec; None removes a key."""
    text = (ROOT / "examples" / "katib" / "random.yaml").read_text(encoding="utf-8")
    document: Object = yaml.safe_load(text)
    document["metadata"] = {"name": "tiny", "namespace": namespace}
    whole = document["spec"] | copy.deepcopy(spec)
    document["spec"] = {key: value for key, value in whole.items() if value is not None}
    return document


def tried(kubectl: Kubectl, document: Object) -> Object:
    """Return the object as the server would store it."""
    words = ("create", "--dry-run=server", "-o", "json", "-f", "-")
    return dict(json.loads(kubectl(*words, given=json.dumps(document))))


def test_every_example_is_accepted(kubectl: Kubectl, namespace: str) -> None:
    paths = sorted((ROOT / "examples" / "katib").glob("**/*.yaml"))
    documents = [next(yaml.safe_load_all(path.read_text(encoding="utf-8"))) for path in paths]
    experiments = [each for each in documents if each.get("kind") == "Experiment"]
    assert len(experiments) > 10
    for document in experiments:
        document["metadata"]["namespace"] = namespace
        tried(kubectl, document)


def test_defaults_that_clients_read_are_there_at_once(kubectl: Kubectl, namespace: str) -> None:
    spec = tried(kubectl, katib(namespace))["spec"]
    assert {each["feasibleSpace"].get("distribution") for each in spec["parameters"]} <= {
        "uniform",
        "logUniform",
    }
    assert spec["resumePolicy"] == "Never"
    assert spec["metricsCollectorSpec"] == {"collector": {"kind": "StdOut"}}


def test_what_go_reads_as_absent_is_accepted(kubectl: Kubectl, namespace: str) -> None:
    number = {"min": "0", "max": "1", "step": "", "list": [], "distribution": ""}
    choice = {"list": ["a"], "min": "", "max": "", "step": "", "distribution": ""}
    for parameters in (space("double", **number), space("categorical", **choice)):
        whole = katib(namespace, parameters=parameters, resumePolicy="")
        whole["spec"]["objective"]["goal"] = None
        tried(kubectl, whole)


def test_choices_may_be_where_katibs_sdk_sends_them(kubectl: Kubectl, namespace: str) -> None:
    tried(kubectl, katib(namespace, parameters=space("categorical", distribution=["a", 1])))


def test_an_experiment_may_have_no_limit_of_trials(kubectl: Kubectl, namespace: str) -> None:
    tried(kubectl, katib(namespace, maxTrialCount=None))


def test_unknown_keys_stay_for_the_controller_to_name(kubectl: Kubectl, namespace: str) -> None:
    assert tried(kubectl, katib(namespace, paralelTrialCount=2))["spec"]["paralelTrialCount"] == 2


JOB = {"apiVersion": "batch/v1", "kind": "Job", "spec": {}}
TEMPLATE: dict[str, Any] = {"primaryContainerName": "main", "trialParameters": []}
MAP = {"configMapName": "a", "configMapNamespace": "b", "templatePath": "c"}


def space(kind: str, **feasible: object) -> list[Object]:
    return [{"name": "x", "parameterType": kind, "feasibleSpace": feasible}]


# What Katib's webhook refuses as well, and what the refusal says.
WRONG: dict[str, dict[str, Any]] = {
    "spec.maxFailedTrialCount: Invalid value: -1": {"maxFailedTrialCount": -1},
    "spec.maxFailedTrialCount: Invalid value: should be less than or equal": {
        "maxFailedTrialCount": 99
    },
    "spec.maxTrialCount: Invalid value: 0": {"maxTrialCount": 0},
    "spec.parallelTrialCount: Invalid value: -1": {"parallelTrialCount": -1},
    "spec.parallelTrialCount: Invalid value: should be less than or equal": {
        "parallelTrialCount": 99
    },
    "spec.objective: Required value": {"objective": None},
    'spec.objective.type: Unsupported value: "up"': {
        "objective": {"type": "up", "objectiveMetricName": "a"}
    },
    "spec.objective.objectiveMetricName: Required value": {"objective": {"type": "maximize"}},
    "spec.objective.additionalMetricNames: Invalid value: should not contain": {
        "objective": {
            "type": "maximize",
            "objectiveMetricName": "a",
            "additionalMetricNames": ["b", "a"],
        }
    },
    'spec.objective.metricStrategies[0].value: Unsupported value: "mean"': {
        "objective": {
            "type": "maximize",
            "objectiveMetricName": "a",
            "metricStrategies": [{"name": "a", "value": "mean"}],
        }
    },
    "spec.algorithm: Required value": {"algorithm": None},
    "spec.algorithm.algorithmName: Required value": {"algorithm": {}},
    "spec.algorithm.algorithmSettings[0].value: Invalid value": {
        "algorithm": {"algorithmName": "tpe", "algorithmSettings": [{"name": "a", "value": 3}]}
    },
    "spec.earlyStopping.algorithmName: Required value": {"earlyStopping": {}},
    'spec.resumePolicy: Unsupported value: "Always"': {"resumePolicy": "Always"},
    "spec.parameters or spec.nasConfig must be specified": {"parameters": None},
    "only one of spec.parameters and spec.nasConfig can be specified": {"nasConfig": {}},
    'spec.parameters[0].parameterType: Unsupported value: "float"': {"parameters": space("float")},
    'spec.parameters[0].feasibleSpace.distribution: Unsupported value: "flat"': {
        "parameters": space("int", min="1", max="2", distribution="flat")
    },
    "spec.parameters[0].feasibleSpace: Required value": {
        "parameters": [{"name": "x", "parameterType": "int"}]
    },
    "spec.parameters[0].feasibleSpace.min: Invalid value: must be specified": {
        "parameters": space("int", max="2")
    },
    "spec.parameters[0].feasibleSpace.max: Invalid value: must be specified": {
        "parameters": space("double", min="2")
    },
    "spec.parameters[0].feasibleSpace.list: Invalid value: a parameter of type int or double": {
        "parameters": space("int", min="1", max="2", list=["1"])
    },
    "spec.parameters[0].feasibleSpace: Invalid value: a discrete or categorical parameter": {
        "parameters": space("discrete", list=["1"], step="1")
    },
    "spec.trialTemplate: Required value": {"trialTemplate": None},
    "spec.trialTemplate.primaryContainerName: Required value": {
        "trialTemplate": {"trialParameters": [], "trialSpec": JOB}
    },
    "spec.trialTemplate.trialParameters: Required value": {
        "trialTemplate": {"primaryContainerName": "main", "trialSpec": JOB}
    },
    "spec.trialTemplate: Invalid value: has trialSpec or configMap, exactly one": {
        "trialTemplate": {**TEMPLATE, "trialSpec": JOB, "configMap": MAP}
    },
    "spec.trialTemplate.configMap.templatePath: Required value": {
        "trialTemplate": {**TEMPLATE, "configMap": {**MAP, "templatePath": None}}
    },
    "spec.trialTemplate.trialSpec.kind: Required value": {
        "trialTemplate": {**TEMPLATE, "trialSpec": {"apiVersion": "batch/v1"}}
    },
    "each trial gets its own name and namespace": {
        "trialTemplate": {**TEMPLATE, "trialSpec": {**JOB, "metadata": {"name": "x"}}}
    },
    "spec.metricsCollectorSpec.collector.kind: Unsupported value": {
        "metricsCollectorSpec": {"collector": {"kind": "Logs"}}
    },
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_object_is_refused_with_its_place(
    kubectl: Kubectl, namespace: str, said: str
) -> None:
    with pytest.raises(AssertionError) as refused:
        tried(kubectl, katib(namespace, **WRONG[said]))
    # A rule between keys shows no value.
    text = str(refused.value)
    for shown in ('"object"', '"null"', '"integer"', '"array"', '"string"'):
        text = text.replace(f"Invalid value: {shown}: ", "Invalid value: ")
    assert said in text


@pytest.mark.parametrize("name", ["a" * 41, "a.b", "1a"])
def test_a_name_that_katib_refuses_is_refused(kubectl: Kubectl, namespace: str, name: str) -> None:
    document = katib(namespace)
    document["metadata"]["name"] = name
    with pytest.raises(AssertionError, match="use 1 to 40 lower-case letters"):
        tried(kubectl, document)


@pytest.mark.parametrize(
    "kind", [KATIB_EXPERIMENTS, KATIB_TRIALS, KATIB_SUGGESTIONS], ids=lambda kind: kind.kind
)
def test_a_late_status_is_not_that_of_a_later_object_of_its_name(
    kubectl: Kubectl,
    level_b: ControlPlane,
    namespace: str,
    kind: Kind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = katib(namespace) | {"kind": kind.kind}
    if kind is not KATIB_EXPERIMENTS:
        document["spec"] = {}
    first, second = {"startTime": "2026-11-29T00:00:00Z"}, {"startTime": "2026-11-29T00:00:01Z"}

    async def made(client: KubernetesClient) -> str:
        found = await client.create(kind, namespace, document)
        return str(found["metadata"]["uid"])

    async def attempts() -> None:
        async with await KubernetesClient.connect() as client:
            earlier = await made(client)
            await client.replace_status(kind, namespace, "tiny", first, uid=earlier)
            await client.delete(kind, namespace, "tiny")
            with pytest.raises(ApiError) as gone:
                await client.replace_status(kind, namespace, "tiny", first, uid=earlier)
            later = await made(client)
            with pytest.raises(ApiError, match="another object has this name now") as other:
                await client.replace_status(kind, namespace, "tiny", first, uid=earlier)
            assert (gone.value.status, other.value.status) == (404, 409)
            assert "status" not in await client.get(kind, namespace, "tiny")
            written = await client.replace_status(kind, namespace, "tiny", second, uid=later)
            assert written["status"] == second
            if kind is KATIB_EXPERIMENTS:  # What the schema refuses is told as such.
                wrong = {"conditions": "none"}
                with pytest.raises(ApiError) as refused:
                    await client.replace_status(kind, namespace, "tiny", wrong, uid=later)
                assert refused.value.status == 422

    monkeypatch.setenv("KUBECONFIG", str(level_b.kubeconfig()))
    asyncio.run(attempts())
