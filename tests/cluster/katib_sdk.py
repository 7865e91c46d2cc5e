"""The calls of Katib's SDK that need no logs, in the order of a notebook: prints a JSON object.

    python katib_sdk.py NAMESPACE

It runs in an environment of its own, with the unmodified kubeflow-katib 0.19.0, and asks the
cluster of KUBECONFIG.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from kubeflow.katib import (
    KatibClient,
    V1beta1AlgorithmSpec,
    V1beta1Experiment,
    V1beta1ExperimentSpec,
    V1beta1FeasibleSpace,
    V1beta1ObjectiveSpec,
    V1beta1ParameterSpec,
    V1beta1TrialParameterSpec,
    V1beta1TrialTemplate,
    search,
)
from kubernetes.client import V1ObjectMeta

namespace = sys.argv[1]
client = KatibClient(config_file=os.environ["KUBECONFIG"], namespace=namespace)
found: dict[str, Any] = {}
# The life of a fake pod; see kwok.py.
LIFE = {"KWOK_LOG": "score=${trialParameters.x} loss=2", "KWOK_RUN": "300ms"}


def job(env: dict[str, str]) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "tiny:1",
        "command": ["train", "--x=${trialParameters.x}"],
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": pod}}


def experiment(name: str, most: int, env: dict[str, str]) -> V1beta1Experiment:
    return V1beta1Experiment(
        api_version="kubeflow.org/v1beta1",
        kind="Experiment",
        metadata=V1ObjectMeta(name=name, namespace=namespace),
        spec=V1beta1ExperimentSpec(
            max_trial_count=most,
            resume_policy="LongRunning",
            objective=V1beta1ObjectiveSpec(
                type="maximize",
                objective_metric_name="score",
                additional_metric_names=["loss"],
            ),
            algorithm=V1beta1AlgorithmSpec(algorithm_name="random"),
            parameters=[
                V1beta1ParameterSpec(
                    name="x",
                    parameter_type="double",
                    feasible_space=V1beta1FeasibleSpace(min="0", max="1"),
                )
            ],
            trial_template=V1beta1TrialTemplate(
                primary_container_name="main",
                trial_parameters=[V1beta1TrialParameterSpec(name="x", reference="x")],
                trial_spec=job(env),
            ),
        ),
    )


def objective(parameters: dict[str, str]) -> None:
    print(f"score={parameters['x']}")


def wait(name: str, condition: str) -> None:
    client.wait_for_experiment_condition(
        name, expected_condition=condition, timeout=120, polling_interval=1
    )


def waited(condition: Any) -> None:
    for _ in range(120):
        if condition():
            return
        time.sleep(1)
    raise TimeoutError


began = time.monotonic()
client.create_experiment(experiment("sdk", 3, LIFE))
waited(lambda: client.list_trials("sdk"))
found["first_trial_s"] = round(time.monotonic() - began, 1)
found["created"] = client.is_experiment_created("sdk")
try:
    client.create_experiment(experiment("sdk", 3, LIFE))
except Exception as error:
    found["create_again"] = str(error)
wait("sdk", "Succeeded")
found["succeeded"] = client.is_experiment_succeeded("sdk")
found["running"] = client.is_experiment_running("sdk")
found["failed"] = client.is_experiment_failed("sdk")
found["conditions"] = [each.type for each in client.get_experiment_conditions("sdk")]
spec = client.get_experiment("sdk").spec
found["defaults"] = {
    "parallel": spec.parallel_trial_count,
    "distribution": spec.parameters[0].feasible_space.distribution,
    "collector": spec.metrics_collector_spec.collector.kind,
    "strategies": [each.value for each in spec.objective.metric_strategies],
    "success": spec.trial_template.success_condition,
}
found["experiments"] = [each.metadata.name for each in client.list_experiments()]
best = client.get_optimal_hyperparameters("sdk")
metrics = {each.name: each for each in best.observation.metrics}
assigned = best.parameter_assignments[0].value
found["optimal"] = {
    "is_value": float(metrics["score"].latest) == float(assigned),
    "metrics": sorted(metrics),
    "trial": best.best_trial_name in [each.metadata.name for each in client.list_trials("sdk")],
}
found["trials"] = len(client.list_trials("sdk"))
details = client.get_success_trial_details("sdk")
found["details"] = [sorted(each) for each in details]
trial = client.get_trial(best.best_trial_name)
found["trial"] = trial.status.conditions[-1].type
found["suggestion"] = client.get_suggestion("sdk").status.conditions[-1].type
client.edit_experiment_budget("sdk", max_trial_count=5)
waited(lambda: client.is_experiment_restarting("sdk"))
waited(lambda: client.get_experiment("sdk").status.trials_succeeded == 5)
wait("sdk", "Succeeded")
client.tune(
    name="tuned",
    objective=objective,
    parameters={"x": search.double(min=0, max=1)},
    objective_metric_name="score",
    max_trial_count=2,
    parallel_trial_count=2,
    base_image="tiny:1",
    env_per_trial={"KWOK_LOG": "score=0.5", "KWOK_RUN": "300ms"},
    resources_per_trial={"cpu": "100m"},
)
wait("tuned", "Succeeded")
found["tuned"] = client.get_experiment("tuned").status.trials_succeeded
client.create_experiment(experiment("bad", 3, {"KWOK_RUN": "100ms", "KWOK_EXIT": "1"}))
waited(lambda: (client.get_experiment("bad").status or None) is not None)
client.delete_experiment("bad")
waited(lambda: "bad" not in [each.metadata.name for each in client.list_experiments()])
waited(lambda: not client.list_trials("bad"))
found["left"] = sorted(each.metadata.name for each in client.list_experiments())
print(json.dumps(found))
