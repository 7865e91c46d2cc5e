"""The defaults that are written back into Katib's Experiments, as its webhook writes them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from controller.operator.katib_defaults import with_defaults

Raw = dict[str, Any]
COMPLETE = 'status.conditions.#(type=="Complete")#|#(status=="True")#'
FAILED = 'status.conditions.#(type=="Failed")#|#(status=="True")#'
SUCCEEDED = 'status.conditions.#(type=="Succeeded")#|#(status=="True")#'
MASTER = {"training.kubeflow.org/job-role": "master"}
NODE = {
    "jobset.sigs.k8s.io/replicatedjob-name": "node",
    "batch.kubernetes.io/job-completion-index": "0",
}


def template(kind: str, **others: object) -> Raw:
    return {"trialTemplate": {"trialSpec": {"kind": kind}, **others}}


def filled(kind: str, success: str, **others: object) -> Raw:
    ends = {"successCondition": success, "failureCondition": FAILED}
    return template(kind, **ends, **others)


def collected(kind: str, **source: object) -> Raw:
    return {"metricsCollectorSpec": {"collector": {"kind": kind}, "source": source}}


def objective(kind: str, strategies: object = None, *others: str) -> Raw:
    found = {"type": kind, "objectiveMetricName": "a", "additionalMetricNames": list(others)}
    return {"objective": found | ({} if strategies is None else {"metricStrategies": strategies})}


def strategy(name: str, value: str) -> Raw:
    return {"name": name, "value": value}


LOG = {"path": "/var/log/katib/metrics.log", "kind": "File", "format": "TEXT"}
# What is given, and the keys that are in the result.
TABLE: dict[str, tuple[Raw, Raw]] = {
    "an empty spec": (
        {},
        {
            "parallelTrialCount": 3,
            "resumePolicy": "Never",
            "metricsCollectorSpec": {"collector": {"kind": "StdOut"}},
        },
    ),
    "no more trials at a time than there are": (
        {"maxTrialCount": 2},
        {"parallelTrialCount": 2},
    ),
    "what is written stays": (
        {"parallelTrialCount": 7, "resumePolicy": "FromVolume"},
        {"parallelTrialCount": 7, "resumePolicy": "FromVolume"},
    ),
    "an empty text is nothing": (
        {"resumePolicy": "", "parameters": [{"feasibleSpace": {"distribution": ""}}]},
        {
            "resumePolicy": "Never",
            "parameters": [{"feasibleSpace": {"distribution": "uniform"}}],
        },
    ),
    "labels of no pod": (
        template("TFJob", primaryPodLabels={}),
        filled("TFJob", SUCCEEDED, primaryPodLabels=MASTER),
    ),
    "0 at a time suspends": ({"parallelTrialCount": 0}, {"parallelTrialCount": 0}),
    "the least is best": (objective("minimize"), objective("minimize", [strategy("a", "min")])),
    "each metric has a strategy": (
        objective("maximize", None, "b"),
        objective("maximize", [strategy("a", "max"), strategy("b", "max")], "b"),
    ),
    "one that is written comes first": (
        objective("maximize", [strategy("b", "latest")], "b"),
        objective("maximize", [strategy("b", "latest"), strategy("a", "max")], "b"),
    ),
    "a direction that is none": (objective("up"), objective("up")),
    "each parameter is uniform": (
        {"parameters": [{"feasibleSpace": {"list": ["a"]}}, {"feasibleSpace": {}}, 3]},
        {
            "parameters": [
                {"feasibleSpace": {"list": ["a"], "distribution": "uniform"}},
                {"feasibleSpace": {"distribution": "uniform"}},
                3,
            ]
        },
    ),
    "a distribution that is written": (
        {"parameters": [{"feasibleSpace": {"distribution": "logUniform"}}]},
        {"parameters": [{"feasibleSpace": {"distribution": "logUniform"}}]},
    ),
    "a file": (
        {"metricsCollectorSpec": {"collector": {"kind": "File"}}},
        collected("File", fileSystemPath=LOG),
    ),
    "a file of its own": (
        collected("File", fileSystemPath={"path": "/a", "format": "JSON"}),
        collected("File", fileSystemPath={"path": "/a", "format": "JSON", "kind": "File"}),
    ),
    "events of TensorFlow": (
        {"metricsCollectorSpec": {"collector": {"kind": "TensorFlowEvent"}}},
        collected(
            "TensorFlowEvent",
            fileSystemPath={"path": "/var/log/katib/tfevent/", "kind": "Directory"},
        ),
    ),
    "an endpoint": (
        {"metricsCollectorSpec": {"collector": {"kind": "PrometheusMetric"}}},
        collected("PrometheusMetric", httpGet={"path": "/metrics", "port": 8080}),
    ),
    "reports": (
        {"metricsCollectorSpec": {"collector": {"kind": "Push"}}},
        {"metricsCollectorSpec": {"collector": {"kind": "Push"}}},
    ),
    "a Job": (template("Job"), filled("Job", COMPLETE)),
    "a TrainJob": (
        template("TrainJob"),
        filled("TrainJob", COMPLETE, primaryPodLabels=NODE),
    ),
    "a PyTorchJob": (
        template("PyTorchJob"),
        filled("PyTorchJob", SUCCEEDED, primaryPodLabels=MASTER),
    ),
    "an MPIJob": (template("MPIJob"), filled("MPIJob", SUCCEEDED, primaryPodLabels=MASTER)),
    "another kind": (template("Workflow"), template("Workflow")),
    "conditions that are written": (
        template("Job", successCondition="a", failureCondition="b"),
        template("Job", successCondition="a", failureCondition="b"),
    ),
    "a template of a ConfigMap": (
        {"trialTemplate": {"configMap": {"configMapName": "a"}}},
        {"trialTemplate": {"configMap": {"configMapName": "a"}}},
    ),
}


@pytest.mark.parametrize("what", TABLE)
def test_a_spec_has_katibs_defaults(what: str) -> None:
    given, expected = TABLE[what]
    whole = with_defaults(given)
    assert {key: whole[key] for key in expected} == expected


@pytest.mark.parametrize("what", TABLE)
def test_a_complete_spec_is_not_changed_and_neither_is_the_given_one(what: str) -> None:
    given, _ = TABLE[what]
    before = copy.deepcopy(given)
    whole = with_defaults(given)
    assert given == before
    assert with_defaults(whole) == whole
