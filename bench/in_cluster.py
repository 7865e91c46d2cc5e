"""The controller in the cluster on fake nodes: latencies of a resource, and many of them at once.

Requires what `make test-cluster` requires. Prints Markdown. `--experiments` and `--trials` set the
size of the second part; `--only` selects a part.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.api import CORE
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import EXPERIMENTS, Installed, experiment

NAMESPACES = 50
LONG = {"KWOK_RUN": "3600s"}
POLL_S = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("latency", "scale"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--experiments", type=int, default=200)
    parser.add_argument("--trials", type=int, default=5)
    asked = parser.parse_args()
    with installation() as installed:
        controller = installed.start().pid
        if asked.only != "scale":
            print(latencies(installed, asked.rounds))
        if asked.only != "latency":
            print(scale(installed, controller, asked.experiments, asked.trials))


@contextmanager
def installation() -> Iterator[Installed]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = ControlPlane(fake_nodes=8)
        try:
            installed = Installed(cluster, Path(folder))
            try:
                yield installed
            finally:
                installed.close()
        finally:
            cluster.close()


def latencies(installed: Installed, rounds: int) -> str:
    """Return the seconds from each change of a resource to what follows from it."""
    api = installed.cluster.api()
    api.post(f"{CORE}/namespaces", {"metadata": {"name": "latency"}})
    api.until(f"{CORE}/namespaces/latency/serviceaccounts/default", bool)
    seconds: dict[str, list[float]] = {}
    for n in range(rounds):
        measure(installed, f"e{n}", seconds)
    lines = [
        f"| {what} | {statistics.median(values):.2f} s | {max(values):.2f} s |"
        for what, values in seconds.items()
    ]
    return "\n".join(["| from | median | longest |", "| --- | --- | --- |", *lines])


def measure(installed: Installed, name: str, seconds: dict[str, list[float]]) -> None:
    """Note the latencies of one resource, which is deleted at the end."""
    api = installed.cluster.api()
    path = f"{EXPERIMENTS.format(namespace='latency')}/{name}"

    def noted(what: str, change: Callable[[], object], condition: Callable[[], object]) -> None:
        began = time.monotonic()
        change()
        wait(condition)
        seconds.setdefault(what, []).append(time.monotonic() - began)

    resource = experiment("latency", name, parallelism=1, env=LONG)
    noted(
        "apply to first pod",
        lambda: installed.kubectl.apply([resource]),
        lambda: pods(installed, "latency", name) > 0,
    )
    wait(lambda: status(installed, path).get("running") == 1)
    noted(
        "edit to second pod",
        lambda: api.patch(path, {"spec": {"parallelism": 2}}),
        lambda: pods(installed, "latency", name) > 1,
    )
    noted(
        "suspend to no pod",
        lambda: api.patch(path, {"spec": {"suspend": True}}),
        lambda: pods(installed, "latency", name) == 0,
    )
    noted(
        "wrong spec to refusal",
        lambda: api.patch(path, {"spec": {"suspend": False, "parameters": {"x": {"max": -1}}}}),
        lambda: is_refused(installed, path),
    )
    api.delete(path)


def scale(installed: Installed, process: int, experiments: int, trials: int) -> str:
    """Return what the controller takes for many experiments with running trials."""
    api = installed.cluster.api()
    names = [f"tenant-{n}" for n in range(min(NAMESPACES, experiments))]
    for name in names:
        api.post(f"{CORE}/namespaces", {"metadata": {"name": name}})
    for name in names:
        api.until(f"{CORE}/namespaces/{name}/serviceaccounts/default", bool)
    began = time.monotonic()
    for n in range(experiments):
        namespace = names[n % len(names)]
        resource = experiment(
            namespace, f"e{n}", parallelism=trials, budget={"trials": 1000}, env=LONG
        )
        resource["spec"]["trial"]["resources"] = {"cpu": "10m"}
        installed.kubectl.apply([resource])
    applied_s = time.monotonic() - began
    wait(lambda: running(installed) == experiments * trials, within_s=1200)
    running_s = time.monotonic() - began
    before_s, at_s = cpu_s(process), time.monotonic()
    time.sleep(30)
    cores = (cpu_s(process) - before_s) / (time.monotonic() - at_s)
    memory = memory_mb(process)
    return (
        f"{experiments} experiments x {trials} trials in {len(names)} namespaces: applied in "
        f"{applied_s:.0f} s, all trials run after {running_s:.0f} s; then {cores:.2f} cores, "
        f"{memory:.0f} MB"
    )


def cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (resident,) = (line for line in lines if line.startswith("VmRSS"))
    return int(resident.split()[1]) / 1000


def wait(condition: Callable[[], object], *, within_s: float = 60) -> None:
    give_up_at = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(condition)
        time.sleep(POLL_S)


def pods(installed: Installed, namespace: str, name: str) -> int:
    found = installed.cluster.api().items(f"{CORE}/namespaces/{namespace}/pods")
    return sum(
        pod["metadata"]["labels"].get("tuner.dev/experiment") == name
        and "deletionTimestamp" not in pod["metadata"]
        for pod in found
    )


def status(installed: Installed, path: str) -> dict[str, Any]:
    return dict(installed.cluster.api().get(path).get("status") or {})


def is_refused(installed: Installed, path: str) -> bool:
    conditions = status(installed, path).get("conditions", ())
    return any((each["type"], each["status"]) == ("Accepted", "False") for each in conditions)


def running(installed: Installed) -> int:
    found = json.loads(installed.kubectl("get", "experiments", "-A", "-o", "json"))["items"]
    return sum((each.get("status") or {}).get("running", 0) for each in found)


if __name__ == "__main__":
    main()
