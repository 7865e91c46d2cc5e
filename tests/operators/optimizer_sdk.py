"""The calls of OptimizerClient, in the order of a notebook: prints a JSON object.

    python optimizer_sdk.py NAMESPACE RUNTIME

It runs in an environment of its own, with the unmodified kubeflow 0.5.0, and asks the cluster of
KUBECONFIG, where RUNTIME is a TrainingRuntime of NAMESPACE.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.optimizer import (
    GridSearch,
    Objective,
    OptimizerClient,
    RandomSearch,
    Search,
    TrialConfig,
)
from kubeflow.optimizer.types.optimization_types import Direction
from kubeflow.trainer import CustomTrainer, TrainerClient, TrainJobTemplate

namespace, runtime = sys.argv[1:]
config = KubernetesBackendConfig(config_file=os.environ["KUBECONFIG"], namespace=namespace)
client, trainer = OptimizerClient(config), TrainerClient(config)
found: dict[str, Any] = {}


def train(x: str, kind: str) -> None:
    import time

    print(f"kind {kind}")
    for step in range(3):
        time.sleep(0.5)
        print(f"score={float(x) + step}", flush=True)
    print("loss=0.25")


def train_long(x: str) -> None:
    import time

    for _ in range(40):
        time.sleep(0.25)
        print(f"score={x}", flush=True)


def template(func: Any = train) -> TrainJobTemplate:
    return TrainJobTemplate(
        trainer=CustomTrainer(func=func, num_nodes=1), runtime=trainer.get_runtime(runtime)
    )


def answers(call: Any, *words: Any, **options: Any) -> Any:
    """Return what a call returns, or what it raises, with its cause."""
    try:
        return call(*words, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}; {error.__cause__}"[:800]


name = client.optimize(
    template(),
    search_space={"x": Search.uniform(min=0.0, max=1.0), "kind": Search.choice(["a", "b"])},
    trial_config=TrialConfig(num_trials=3, parallel_trials=2),
    objectives=[Objective(metric="score", direction=Direction.MAXIMIZE), Objective(metric="loss")],
    algorithm=RandomSearch(random_state=3),
)
found["statuses"], found["broken"] = [], []
# As fast as the calls are: a Trial without its TrainJob breaks each of them.
deadline = time.monotonic() + 240
job: Any = None
while time.monotonic() < deadline:
    job = answers(client.get_job, name)
    if isinstance(job, str):
        found["broken"].append(job)
        continue
    if job.status not in found["statuses"]:
        found["statuses"].append(job.status)
    if job.status in ("Complete", "Failed"):
        break
found["status"] = job.status
found["search_space"] = {key: type(value).__name__ for key, value in job.search_space.items()}
found["algorithm"] = type(job.algorithm).__name__
found["objectives"] = [each.metric for each in job.objectives]
found["trials"] = [
    [sorted(each.parameters), each.trainjob.status, sorted(m.name for m in each.metrics)]
    for each in job.trials
]
waited = answers(client.wait_for_job_status, name, timeout=60)
found["waited"] = getattr(waited, "status", waited)
best = client.get_best_results(name)
found["best"] = {
    "parameters": sorted(best.parameters),
    "is_value": abs(float(best.metrics[0].max) - float(best.parameters["x"]) - 2) < 1e-6,
    "metrics": [each.name for each in best.metrics],
    "whole": all(None not in (each.latest, each.max, each.min) for each in best.metrics),
}
first = job.trials[0].name
found["trainer_logs"] = answers(lambda: list(trainer.get_job_logs(first)))
found["logs"] = answers(lambda: list(client.get_job_logs(name, trial_name=first)))
found["best_logs"] = answers(lambda: len(list(client.get_job_logs(name))))
events = client.get_job_events(name)
found["events"] = [
    sorted({(each.involved_object_kind, each.reason) for each in events}),
    all(each.event_time for each in events),
]
grid = client.optimize(
    template(),
    search_space={"x": Search.choice(["0.5", "1"]), "kind": Search.choice(["a"])},
    trial_config=TrialConfig(num_trials=2, parallel_trials=2),
    objectives=[Objective(metric="score", direction=Direction.MAXIMIZE)],
    algorithm=GridSearch(),
)
found["listed"] = answers(
    lambda: sorted(each.name for each in client.list_jobs()) == sorted([name, grid])
)
running: list[str] = []
while not running:
    trials = client.get_job(grid).trials
    running = [each.name for each in trials if each.trainjob.status == "Running"]
found["followed"] = answers(
    lambda: list(client.get_job_logs(grid, trial_name=running[0], follow=True))
)
client.delete_job(name)
found["after_delete"] = []
deleted = time.monotonic()
while time.monotonic() < deleted + 60:
    listed = answers(client.list_jobs)
    if isinstance(listed, str):
        found["after_delete"].append(listed)
    elif [each.name for each in listed] == [grid]:
        break
found["gone"] = isinstance(answers(client.get_job, name), str)
waited = answers(client.wait_for_job_status, grid, timeout=120)
found["grid"] = sorted(each.parameters["x"] for each in waited.trials)
client.delete_job(grid)

# A TrainJob that somebody deletes while it runs, and the calls from then on, as fast as they are.
long = client.optimize(
    template(train_long),
    search_space={"x": Search.uniform(min=0.0, max=1.0)},
    trial_config=TrialConfig(num_trials=1, parallel_trials=1),
    objectives=[Objective(metric="score", direction=Direction.MAXIMIZE)],
    algorithm=RandomSearch(random_state=3),
)
client.wait_for_job_status(long, {"Running"}, timeout=120)
trial = client.get_job(long).trials[0].name
trainer.delete_job(trial)
began, broken_s, answered, seen = time.monotonic(), [], 0, []
while time.monotonic() < began + 180:
    job = answers(client.get_job, long)
    if isinstance(job, str):
        # How many calls were answered before.
        broken_s.append((round(time.monotonic() - began, 2), answered))
        continue
    answered += 1
    names = [[each.name.removeprefix(trial), each.trainjob.status] for each in job.trials]
    if names not in seen:
        seen.append(names)
    if job.status in ("Complete", "Failed"):
        break
found["deleted"] = {"broken": broken_s, "answered": answered, "seen": seen, "status": job.status}
found["logs_again"] = answers(lambda: len(list(client.get_job_logs(long))))
best = answers(client.get_best_results, long)
found["best_again"] = sorted(getattr(best, "parameters", [best]))
client.delete_job(long)
print(json.dumps(found))
