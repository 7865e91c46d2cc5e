"""Katib's example for Argo Workflows, run on a FakeApi: two steps, one after the other, of which
the second trains.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import yaml

from tests.kube.console import ended, start, tuner
from tests.kube.fake_api import FakeApi
from tests.kube.fake_kinds import NAMESPACE, FakeKind
from tests.kube.small_cluster import eventually

Raw = dict[str, Any]

TRAINS = {"katib.kubeflow.org/model-training": "true"}
WORKFLOW: Raw = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Workflow",
    "spec": {
        "serviceAccountName": "argo",
        "entrypoint": "hp-workflow",
        "templates": [
            {
                "name": "hp-workflow",
                "steps": [
                    [{"name": "prepare", "template": "gen-epochs"}],
                    [{"name": "train", "template": "model-training"}],
                ],
            },
            {
                "name": "gen-epochs",
                "script": {"image": "python", "command": ["python"], "source": "print(2)"},
            },
            {
                "name": "model-training",
                "metadata": {"labels": TRAINS},
                "container": {
                    "image": "mnist",
                    "command": ["train", "--lr=${trialParameters.learningRate}"],
                },
            },
        ],
    },
}
EXPERIMENT: Raw = {
    "apiVersion": "kubeflow.org/v1beta1",
    "kind": "Experiment",
    "metadata": {"namespace": NAMESPACE, "name": "katib-argo"},
    "spec": {
        "objective": {"type": "minimize", "goal": 0.001, "objectiveMetricName": "loss"},
        "algorithm": {"algorithmName": "random"},
        "parallelTrialCount": 1,
        "maxTrialCount": 2,
        "maxFailedTrialCount": 1,
        "parameters": [
            {
                "name": "lr",
                "parameterType": "double",
                "feasibleSpace": {"min": "0.01", "max": "0.03"},
            }
        ],
        "trialTemplate": {
            "retain": True,
            "primaryPodLabels": TRAINS,
            "primaryContainerName": "main",
            "successCondition": 'status.[@this].#(phase=="Succeeded")#',
            "failureCondition": 'status.[@this].#(phase=="Failed")#',
            "trialParameters": [{"name": "learningRate", "reference": "lr"}],
            "trialSpec": WORKFLOW,
        },
    },
}


def workflows(api: FakeApi) -> list[Raw]:
    return list(api.all("workflows", NAMESPACE))


def step(spec: Raw) -> Raw:
    return {"metadata": spec["podMetadata"]}


def test_katibs_workflow_runs_and_the_step_that_trains_has_the_value(tmp_path: Path) -> None:
    (tmp_path / "argo.yaml").write_text(yaml.safe_dump(EXPERIMENT))

    async def go() -> None:
        async with FakeApi() as api:
            argo = FakeKind(api, WORKFLOW, "workflows")
            run = start(
                tmp_path,
                api.kubeconfig(namespace=NAMESPACE),
                "run",
                "argo.yaml",
                "--runtime",
                "kubernetes",
            )
            await eventually(lambda: len(workflows(api)) == 1, within_s=30)
            name = workflows(api)[0]["metadata"]["name"]
            argo.say(name, phase="Running")
            prepare = argo.start_pod(name, "prepare", step)
            api.kubelet.print(prepare, "loss=0.9")
            api.kubelet.end(prepare)
            train = argo.start_pod(name, "train", step, **TRAINS)
            api.kubelet.print(train, "loss=0.25")
            api.kubelet.end(train)
            argo.say(name, phase="Succeeded")

            def second() -> Raw | None:
                return next(
                    (each for each in workflows(api) if each["metadata"]["name"] != name), None
                )

            await eventually(lambda: second() is not None, within_s=30)
            failing = second()
            assert failing is not None
            argo.say(
                failing["metadata"]["name"],
                phase="Error",
                message="the workflow pod was not created",
            )
            done = await ended(run)
            assert done.code == 1, done.err
            listed = await tuner(api, tmp_path, "get", "trials", "katib-argo", "-o", "json")
            first, other = json.loads(listed.out)
            assert (first["state"], first["value"]) == ("succeeded", 0.25)
            assert (other["state"], other["reason"]) == (
                "failed",
                "its Workflow failed: the workflow pod was not created",
            )

    asyncio.run(go())
