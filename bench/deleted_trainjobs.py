"""How long calls of Kubeflow's OptimizerClient fail after somebody deletes the TrainJob of a trial
that runs: with the real Trainer and JobSet on a real node, as fast as the client asks.

Prints Markdown. Requires what `make test-operators` requires. `--deletions` of so many TrainJobs,
one after another.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from tests.cluster.api import CORE
from tests.cluster.controlplane import POLICIES
from tests.cluster.realnode import RealNode
from tests.cluster.test_katib_sdk import PYTHON
from tests.operators.operators import VERSIONS, Operators
from tests.operators.test_optimizer_sdk import RUNTIME, add_runtime, installation

NAMESPACE, WATCHED_S = "searches", 3
SDK = """
import json, os, sys, time
from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.optimizer import Objective, OptimizerClient, RandomSearch, Search, TrialConfig
from kubeflow.trainer import CustomTrainer, TrainerClient, TrainJobTemplate

namespace, runtime, deletions, watched_s = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
config = KubernetesBackendConfig(config_file=os.environ["KUBECONFIG"], namespace=namespace)
client, trainer = OptimizerClient(config), TrainerClient(config)

def train(x: str) -> None:
    import time
    while True:
        print(f"score={x}", flush=True)
        time.sleep(1)

def started() -> str:
    return client.optimize(
        TrainJobTemplate(
            trainer=CustomTrainer(func=train, num_nodes=1), runtime=trainer.get_runtime(runtime)
        ),
        search_space={"x": Search.uniform(min=0.0, max=1.0)},
        trial_config=TrialConfig(num_trials=1, parallel_trials=1),
        objectives=[Objective(metric="score")],
        algorithm=RandomSearch(random_state=3),
    )

names = [started() for _ in range(deletions)]
for name in names:
    client.wait_for_job_status(name, {"Running"}, timeout=120)
for name in names:
    [trial] = client.get_job(name).trials
    began = time.monotonic()
    trainer.delete_job(trial.name)
    deleted, failed, calls = time.monotonic(), [], []
    while (asked := time.monotonic()) < deleted + watched_s:
        try:
            client.get_job(name)
        except Exception:
            failed.append(time.monotonic() - deleted)
        calls.append(time.monotonic() - asked)
    print(json.dumps({"took_s": deleted - began, "calls_s": calls, "failed_s": failed}), flush=True)
for name in names:
    client.delete_job(name)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deletions", type=int, default=12)
    asked = parser.parse_args()
    cluster = RealNode(flags=POLICIES)
    try:
        with tempfile.TemporaryDirectory() as folder:
            report(measured(Operators(cluster), Path(folder), asked.deletions))
    finally:
        cluster.close()


def measured(operators: Operators, folder: Path, deletions: int) -> list[dict[str, list[float]]]:
    with installation(operators, folder) as installed:
        api = installed.cluster.api()
        api.post(f"{CORE}/namespaces", {"metadata": {"name": NAMESPACE}})
        api.until(f"{CORE}/namespaces/{NAMESPACE}/serviceaccounts/default", bool)
        add_runtime(api, NAMESPACE)
        env = {**os.environ, "KUBECONFIG": str(installed.cluster.kubeconfig())}
        script = folder / "sdk.py"  # a file: the SDK reads the source of `train`
        script.write_text(SDK)
        command = [PYTHON, script, NAMESPACE, RUNTIME, str(deletions), str(WATCHED_S)]
        answer = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
        return [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]


def report(deletions: list[dict[str, list[float]]]) -> None:
    failed = [each["failed_s"] for each in deletions]
    last_s = [max(each, default=0.0) for each in failed]
    calls_s = [call for each in deletions for call in each["calls_s"]]
    print(f"Trainer {VERSIONS['Trainer']}, JobSet {VERSIONS['JobSet']}")
    print("| deletions | no call failed | failed calls | last failed: median | longest | a call |")
    print("| --- | --- | --- | --- | --- | --- |")
    without = sum(not each for each in failed)
    counted = sum(map(len, failed))
    print(
        f"| {len(failed)} | {without} | {counted} | {statistics.median(last_s):.3f} s after | "
        f"{max(last_s):.3f} s after | {statistics.median(calls_s):.3f} s |"
    )


if __name__ == "__main__":
    main()
