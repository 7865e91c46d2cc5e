"""Objects as a real Katib 0.19 leaves them on the API server: what its webhook has completed, its
controller written. And the part of that controller that takes note of an Experiment which has ended.

`tests/operators/test_katib.py` holds the same beside the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.kube.fake_api import FakeApi
from tests.kube.operated import NAMESPACE
from tests.kube.small_cluster import eventually

Raw = dict[str, Any]
EXPERIMENTS = "experiments.kubeflow.org"
_THEN = "2026-11-28T22:00:00Z"
_JOB = 'status.conditions.#(type=="{}")#|#(status=="True")#'


def condition(kind: str, *, is_true: bool = True, of: str = "Trial", message: str = "") -> Raw:
    return {
        "type": kind,
        "status": "True" if is_true else "False",
        "reason": f"{of}{kind}",
        "message": message or f"{of} is {kind.lower()}",
        "lastUpdateTime": _THEN,
        "lastTransitionTime": _THEN,
    }


def experiment(name: str = "tiny", *, image: str = "tiny:1", **spec: object) -> Raw:
    """Return an Experiment that Katib runs, with these keys of spec besides."""
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [
                        {
                            "name": "main",
                            "image": image,
                            "command": ["train", "--x=${trialParameters.x}"],
                        }
                    ],
                }
            }
        },
    }
    return {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Experiment",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "generation": 1,
            "finalizers": ["update-prometheus-metrics"],
        },
        "spec": {
            "objective": {
                "type": "maximize",
                "objectiveMetricName": "score",
                "additionalMetricNames": ["loss"],
                "metricStrategies": [
                    {"name": "score", "value": "max"},
                    {"name": "loss", "value": "max"},
                ],
            },
            "algorithm": {"algorithmName": "random"},
            "parallelTrialCount": 3,
            "maxTrialCount": 6,
            "resumePolicy": "Never",
            "metricsCollectorSpec": {"collector": {"kind": "StdOut"}},
            "parameters": [
                {
                    "name": "x",
                    "parameterType": "double",
                    "feasibleSpace": {"min": "0", "max": "1", "distribution": "uniform"},
                }
            ],
            "trialTemplate": {
                "primaryContainerName": "main",
                "successCondition": _JOB.format("Complete"),
                "failureCondition": _JOB.format("Failed"),
                "trialParameters": [{"name": "x", "reference": "x"}],
                "trialSpec": job,
            },
            **spec,
        },
        "status": {
            "startTime": _THEN,
            "completionTime": None,
            "conditions": [
                condition("Created", of="Experiment"),
                condition("Running", of="Experiment"),
            ],
        },
    }


def trial(owner: Raw, suffix: str, x: float, *ends: str, score: str = "", loss: str = "") -> Raw:
    """Return a Trial; ends: the types of its conditions that are true besides Created."""
    about = owner["metadata"]
    reference = {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Experiment",
        "name": about["name"],
        "uid": about["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metrics = [
        {"name": name, "min": value, "max": value, "latest": value}
        for name, value in (("score", score), ("loss", loss))
        if value
    ]
    conditions = [condition("Created")]
    if ends and ends != ("Running",):
        conditions.append(condition("Running", is_true=False))
    conditions += [condition(each) for each in ends]
    return {
        "metadata": {
            "name": f"{about['name']}-{suffix}",
            "namespace": about["namespace"],
            "labels": {"katib.kubeflow.org/experiment": about["name"]},
            "finalizers": ["clean-metrics-in-db"],
            "ownerReferences": [reference],
        },
        "spec": {
            "objective": owner["spec"]["objective"],
            "parameterAssignments": [{"name": "x", "value": str(x)}],
            "metricsCollector": {"collector": {"kind": "StdOut"}},
        },
        "status": {
            "startTime": _THEN,
            "conditions": conditions,
            **({"observation": {"metrics": metrics}} if metrics else {}),
        },
    }


class KatibController:
    """What a real one does about an Experiment that has ended, once for each change."""

    def __init__(self, api: FakeApi) -> None:
        self._api = api

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            await eventually(self._corrects, within_s=600)

    def _corrects(self) -> bool:
        for each in self._api.all(EXPERIMENTS):
            name, status = each["metadata"]["name"], each["status"]
            ends = [
                each for each in status["conditions"] if each["type"] in ("Failed", "Succeeded")
            ]
            if ends and self._correct(each, name):
                return True
        return False

    def _correct(self, found: Raw, name: str) -> bool:
        """Count the Trials, and mark the Suggestion succeeded."""
        label = "katib.kubeflow.org/experiment"
        trials = self._api.labelled("trials", NAMESPACE, label, name)
        running = sum(each["status"]["conditions"][-1]["type"] == "Running" for each in trials)
        if found["status"].get("trialsRunning", 0) in (0, running) or not trials:
            return False
        self._api.change(
            EXPERIMENTS, NAMESPACE, name, lambda each: each["status"].update(trialsRunning=running)
        )
        over = condition("Succeeded", of="Suggestion")
        if self._api.find("suggestions", NAMESPACE, name) is not None:
            self._api.change(
                "suggestions",
                NAMESPACE,
                name,
                lambda each: each["status"]["conditions"].append(over),
            )
        return True
