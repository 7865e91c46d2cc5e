"""What Katib's own end-to-end test does with an example, written down from what it is known to
check: prints a JSON object, with "passed" or what went wrong for each file.

    python katib_e2e.py NAMESPACE FILE...

It runs in the environment of katib_orders.py, with the unmodified kubeflow-katib 0.19.0, and asks the
cluster of KUBECONFIG. Files run side by side.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from kubeflow.katib import ApiClient, KatibClient
from kubeflow.katib.utils.utils import FakeResponse
from kubernetes import client as kubernetes

TIMEOUT_S = 60 * 10
NOT_FOUND = 404

namespace = sys.argv[1]
client = KatibClient(config_file=os.environ["KUBECONFIG"], namespace=namespace)
# By default the calls of all threads wait for each other.
client.custom_api.api_client.pool_threads = 16


class Differs(Exception):
    """Something is not as Katib's test expects it."""


def run(path: str) -> str:
    given = yaml.safe_load(Path(path).read_text())
    experiment = ApiClient().deserialize(FakeResponse(given), "V1beta1Experiment")
    experiment.metadata.namespace = namespace
    name = experiment.metadata.name
    try:
        client.create_experiment(experiment, namespace)
        ended = wait(name, "Succeeded")
        verify(ended, name)
        if ended.spec.resume_policy in ("LongRunning", "FromVolume"):
            most = ended.spec.max_trial_count + 1
            client.edit_experiment_budget(name, namespace, max_trial_count=most)
            wait(name, "Restarting")
            verify(wait(name, "Succeeded"), name)
        client.get_experiment(name, namespace)
        client.get_suggestion(name, namespace)
    finally:
        client.delete_experiment(name, namespace)
    return "passed"


def wait(name: str, condition: str) -> Any:
    return client.wait_for_experiment_condition(
        name, namespace, condition, timeout=TIMEOUT_S, polling_interval=1
    )


def verify(experiment: Any, name: str) -> None:
    objective, status = experiment.spec.objective, experiment.status
    (best, *_) = [
        metric
        for metric in status.current_optimal_trial.observation.metrics
        if metric.name == objective.objective_metric_name
    ] or [None]
    if best is None:
        raise Differs(f"no best value of {objective.objective_metric_name}")
    reasons = [
        each.reason
        for each in status.conditions
        if each.type == "Succeeded" and each.status == "True"
    ]
    completed = (status.trials_succeeded or 0) + (status.trials_early_stopped or 0)
    if reasons == ["ExperimentMaxTrialsReached"] and completed != experiment.spec.max_trial_count:
        raise Differs(f"{completed} trials of {experiment.spec.max_trial_count}")
    if reasons == ["ExperimentGoalReached"]:
        is_less = objective.type == "minimize" and float(best.min) <= float(objective.goal)
        is_more = objective.type == "maximize" and float(best.max) >= float(objective.goal)
        if not is_less and not is_more:
            raise Differs(f"the goal {objective.goal} is not reached by {best}")
    if not reasons:
        raise Differs("no condition Succeeded")
    verify_suggestion(experiment, name)


def verify_suggestion(experiment: Any, name: str) -> None:
    """LongRunning keeps it running. Otherwise it ends with its Deployment and Service."""
    policy = experiment.spec.resume_policy
    suggestion = client.get_suggestion(name, namespace)
    true = {each.type for each in suggestion.status.conditions if each.status == "True"}
    if policy == "LongRunning":
        if "Succeeded" in true:
            raise Differs("the Suggestion has succeeded with LongRunning")
        return
    if "Running" in true:
        raise Differs(f"the Suggestion runs with {policy}")
    resource = f"{name}-{experiment.spec.algorithm.algorithm_name}"
    if not is_gone(kubernetes.AppsV1Api().read_namespaced_deployment, resource):
        raise Differs(f"the Deployment {resource} is there")
    if not is_gone(kubernetes.CoreV1Api().read_namespaced_service, resource):
        raise Differs(f"the Service {resource} is there")
    claims = kubernetes.CoreV1Api().read_namespaced_persistent_volume_claim
    if policy == "FromVolume" and is_gone(claims, resource, tries=1):
        raise Differs(f"the claim {resource} is gone with FromVolume")


def is_gone(read: Any, name: str, tries: int = 10) -> bool:
    for _ in range(tries):
        try:
            read(name, namespace)
        except kubernetes.ApiException as error:
            if error.status != NOT_FOUND:
                raise
            return True
        time.sleep(1)
    return False


def verdict(path: str) -> tuple[str, str]:
    began = time.monotonic()
    try:
        said = run(path)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    print(f"{path}: {said} ({time.monotonic() - began:.0f} s)", file=sys.stderr)
    return Path(path).stem, said


label = {"metadata": {"labels": {"katib.kubeflow.org/metrics-collector-injection": "enabled"}}}
kubernetes.CoreV1Api().patch_namespace(namespace, label)
with ThreadPoolExecutor(8) as threads:
    print(json.dumps(dict(threads.map(verdict, sys.argv[2:]))))
