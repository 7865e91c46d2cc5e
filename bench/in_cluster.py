"""The controller in the cluster on fake nodes: latencies of a resource, many running experiments at
once, the same latencies beside them, many experiments that have ended or are suspended, with
the start of a controller that finds them, and many that one tenant applies at once beside another.

Requires what `make test-cluster` requires. Prints Markdown, a line at a time. `--only` selects a
part; `--experiments`, `--trials`, `--idle`, `--ended` (of the idle ones) and `--flood` set sizes.
The sizes that are claimed are `--experiments 200 --trials 25 --idle 2000`, which are 5,000 pods,
`--only idle --idle 10000 --ended 1000` and `--only flood --flood 10000`. With `--katib`, the
resources are those of Katib, and `latency` is from the creation of an Experiment to its first
Trial, with the writes of each trial; claimed is `--katib --idle 980 --experiments 20 --trials 3`.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import statistics
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import processes
from tests.cluster.api import CORE, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import EXPERIMENTS, Installed, experiment
from tests.cluster.waiting import eventually

NAMESPACES = 50
LONG = {"KWOK_RUN": "3600s"}
QUIET_S = 60
FIRST = 20
POLL_S = 0.02
STEADY_S, CLIENTS = 20.0, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("latency", "idle", "scale", "flood"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--experiments", type=int, default=200)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--idle", type=int, default=200)
    parser.add_argument("--ended", type=int, help="of the idle ones; one half by default")
    parser.add_argument("--flood", type=int, default=500)
    parser.add_argument("--katib", action="store_true")
    asked = parser.parse_args()
    parts = (asked.only,) if asked.only else ("latency", "idle", "scale", "flood")
    resources = KATIBS if asked.katib else TUNERS
    with installation(resources) as installed:
        controller = Controller(installed, resources)
        if "latency" in parts and asked.katib:
            print(trials_of_katib(installed, controller, asked.rounds), flush=True)
        elif "latency" in parts:
            print(latencies(installed, "alone", asked.rounds), flush=True)
        if "idle" in parts:
            ended = asked.idle // 2 if asked.ended is None else asked.ended
            print(idle(installed, controller, asked.idle, ended), flush=True)
            print(restarted(installed, controller, asked.idle), flush=True)
        if "scale" in parts:
            print(scale(installed, controller, asked.experiments, asked.trials), flush=True)
            if not asked.katib:
                print(latencies(installed, "beside", asked.rounds), flush=True)
        if "flood" in parts:
            print(flood(installed, controller, asked.flood), flush=True)


@dataclass(frozen=True)
class Resources:
    """The kind of resources that are measured.

    make: returns one with this namespace, name, life of its pods, number of trials, and number of
    those at a time, 0 to suspend it. status_of: Tuner's own status of one.
    """

    path: str
    plural: str
    settings: tuple[str, ...]
    flags: tuple[str, ...]
    make: Callable[[str, str, Mapping[str, str], int, int], Object]
    status_of: Callable[[Object], dict[str, Any]]


def of_tuner(
    namespace: str, name: str, env: Mapping[str, str], trials: int, parallel: int
) -> Object:
    suspended = {} if parallel else {"suspend": True}
    budget = {"trials": trials}
    made = experiment(
        namespace, name, env=env, budget=budget, parallelism=parallel or 1, **suspended
    )
    made["spec"]["trial"]["resources"] = {"cpu": "10m"}
    return made


def of_katib(
    namespace: str, name: str, env: Mapping[str, str], trials: int, parallel: int
) -> Object:
    life = {"KWOK_LOG": "score=${trialParameters.x}", "KWOK_RUN": "300ms", **env}
    container = {
        "name": "main",
        "image": "tiny:1",
        "command": ["train", "--x=${trialParameters.x}"],
        "env": [{"name": key, "value": value} for key, value in life.items()],
        "resources": {"requests": {"cpu": "10m"}},
    }
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    space = {"min": "0", "max": "1"}
    return {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Experiment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "objective": {"type": "maximize", "objectiveMetricName": "score"},
            "algorithm": {"algorithmName": "random"},
            "maxTrialCount": trials,
            "parallelTrialCount": parallel,
            "parameters": [{"name": "x", "parameterType": "double", "feasibleSpace": space}],
            "trialTemplate": {
                "primaryContainerName": "main",
                "trialParameters": [{"name": "x", "reference": "x"}],
                "trialSpec": {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": pod}},
            },
        },
    }


TUNERS = Resources(
    EXPERIMENTS, "experiments", (), (), of_tuner, lambda found: dict(found.get("status") or {})
)
KATIB = "/apis/kubeflow.org/v1beta1/namespaces/{namespace}/experiments"
KATIBS = Resources(
    KATIB,
    "experiments.kubeflow.org",
    ("katib.enabled=true",),
    ("--katib",),
    of_katib,
    lambda found: dict((found.get("status") or {}).get("tuner") or {}),
)


class Controller:
    """The process that is measured."""

    def __init__(self, installed: Installed, resources: Resources) -> None:
        self.resources = resources
        self._installed = installed
        self._start()

    def _start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        flags = ("--metrics-port", str(self._port), *self.resources.flags)
        self._started = self._installed.start(*flags)
        eventually(self.requests, within_s=60)

    def replace(self) -> None:
        """End it as its pod would end, and start another one."""
        self._started.send_signal(signal.SIGTERM)
        self._started.communicate(timeout=60)
        self._start()

    def requests(self) -> Counter[str]:
        """Return the requests to the API server so far, by verb and resource; empty: none yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics") as answer:
                text = answer.read().decode()
        except OSError:
            return Counter()
        found = re.findall(r"^tuner_controller_api_requests_total\{(.*)\} (\S+)$", text, re.M)
        return Counter({labels: int(float(count)) for labels, count in found})

    @property
    def memory_mb(self) -> float:
        return processes.resident_mb(self._started.pid)

    @property
    def cpu_s(self) -> float:
        return processes.cpu_s(self._started.pid)

    def quiet(self) -> str:
        """Return what it takes while nothing happens."""
        cpu_s, requests, began = self.cpu_s, self.requests(), time.monotonic()
        time.sleep(QUIET_S)
        cores = (self.cpu_s - cpu_s) / (time.monotonic() - began)
        sent = self.requests() - requests
        return f"{cores:.2f} cores, {sent.total()} requests in {QUIET_S} s {dict(sent)}"


@contextmanager
def installation(
    resources: Resources, flags: Sequence[str] = (), *, install: type[Installed] = Installed
) -> Iterator[Installed]:
    """flags: of the API server."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = ControlPlane(fake_nodes=8, flags=flags)
        try:
            installed = install(cluster, Path(folder), *resources.settings)
            try:
                yield installed
            finally:
                installed.close()
        finally:
            cluster.close()


def trials_of_katib(installed: Installed, controller: Controller, rounds: int) -> str:
    """Return the seconds to the first Trial, and what a short trial costs."""
    make_namespaces(installed, ["alone"])
    api, path = installed.cluster.api(), KATIB.format(namespace="alone")
    seconds: list[float] = []
    for n in range(rounds):
        began = time.monotonic()
        api.post(path, of_katib("alone", f"e{n}", LONG, 1, 1))
        wait(partial(has_trial, installed, path.replace("experiments", "trials"), f"e{n}"))
        seconds.append(time.monotonic() - began)
        api.delete(f"{path}/e{n}")
    before, cpu_s, trials_each = controller.requests(), controller.cpu_s, 20
    api.post(path, of_katib("alone", "ends", {"KWOK_RUN": "1s"}, trials_each, 4))
    wait(lambda: own_status(installed, KATIBS, f"{path}/ends").get("state") == "succeeded")
    sent = controller.requests() - before
    writes = Counter({what: n for what, n in sent.items() if 'verb="GET"' not in what})
    return (
        f"create to first Trial: median {statistics.median(seconds):.2f} s, longest "
        f"{max(seconds):.2f} s; {writes.total() / trials_each:.1f} writes for each of "
        f"{trials_each} trials {dict(writes)}, {controller.cpu_s - cpu_s:.1f} s of the processor"
    )


def has_trial(installed: Installed, path: str, name: str) -> bool:
    return any(
        each["metadata"]["labels"]["katib.kubeflow.org/experiment"] == name
        for each in installed.cluster.api().items(path)
    )


def own_status(installed: Installed, resources: Resources, path: str) -> dict[str, Any]:
    return resources.status_of(installed.cluster.api().get(path))


def latencies(installed: Installed, namespace: str, rounds: int) -> str:
    """Return the seconds from each change of a resource to what follows from it."""
    make_namespaces(installed, [namespace])
    seconds: dict[str, list[float]] = {}
    for n in range(rounds):
        measure(installed, namespace, f"e{n}", seconds)
    lines = [
        f"| {what} | {statistics.median(values):.2f} s | {max(values):.2f} s |"
        for what, values in seconds.items()
    ]
    head = f"| {namespace}, from | median | longest |"
    return "\n".join([head, "| --- | --- | --- |", *lines])


def measure(
    installed: Installed, namespace: str, name: str, seconds: dict[str, list[float]]
) -> None:
    """Note the latencies of one resource, which is deleted at the end."""
    api = installed.cluster.api()
    path = f"{EXPERIMENTS.format(namespace=namespace)}/{name}"

    def noted(what: str, change: Callable[[], object], condition: Callable[[], object]) -> None:
        began = time.monotonic()
        change()
        wait(condition)
        seconds.setdefault(what, []).append(time.monotonic() - began)

    resource = experiment(namespace, name, parallelism=1, env=LONG)
    noted(
        "apply to first pod",
        lambda: installed.kubectl.apply([resource]),
        lambda: present_pods(installed, namespace, name) > 0,
    )
    wait(lambda: status(installed, path).get("running") == 1)
    noted(
        "edit to second pod",
        lambda: api.patch(path, {"spec": {"parallelism": 2}}),
        lambda: present_pods(installed, namespace, name) > 1,
    )
    noted(
        "suspend to no pod",
        lambda: api.patch(path, {"spec": {"suspend": True}}),
        lambda: present_pods(installed, namespace, name) == 0,
    )
    noted(
        "wrong spec to refusal",
        lambda: api.patch(path, {"spec": {"suspend": False, "parameters": {"x": {"max": -1}}}}),
        lambda: is_refused(installed, path),
    )
    api.delete(path)
    ending = experiment(namespace, f"{name}-ends", budget={"trials": 1}, env={"KWOK_RUN": "1s"})
    installed.kubectl.apply([ending])
    path = f"{EXPERIMENTS.format(namespace=namespace)}/{name}-ends"

    def has_ended() -> bool:
        return status(installed, path).get("state") == "succeeded"

    # the pod may be deleted before it is seen to have ended
    wait(lambda: ended_pods(installed, namespace, f"{name}-ends") or has_ended())
    noted("end of the last pod to the status", lambda: None, has_ended)


def idle(installed: Installed, controller: Controller, experiments: int, ended: int) -> str:
    """Return what experiments cost that have ended or are suspended, besides what the first ones
    load.
    """
    make_namespaces(installed, ["first", "idle"])
    rest(installed, controller.resources, "first", FIRST, FIRST // 2)
    memory_mb, cpu_s = controller.memory_mb, controller.cpu_s
    rest(installed, controller.resources, "idle", experiments, ended)
    more_mb, spent_s = controller.memory_mb - memory_mb, controller.cpu_s - cpu_s
    quiet = controller.quiet()
    return (
        f"{experiments} experiments, of which {ended} have ended and the others are suspended: "
        f"{more_mb:.0f} MB more than {memory_mb:.0f} MB, {spent_s:.0f} s of the processor; then "
        f"{quiet}, and {controller.memory_mb - memory_mb:.0f} MB more"
    )


def restarted(installed: Installed, controller: Controller, experiments: int) -> str:
    """Return how long a controller takes that finds idle experiments, and what their lists take."""
    controller.replace()
    began = time.monotonic()
    api, path = installed.cluster.api(), controller.resources.path.format(namespace="first")
    api.post(path, controller.resources.make("first", "next", LONG, 1, 1))
    wait(lambda: own_status(installed, controller.resources, f"{path}/next").get("running") == 1)
    first_s, first_cpu_s = time.monotonic() - began, controller.cpu_s
    time.sleep(QUIET_S / 2)
    sent, memory_mb = controller.requests(), controller.memory_mb
    began = time.monotonic()
    listed = installed.kubectl("get", controller.resources.plural, "-n", "idle", "--no-headers")
    assert listed.count("\n") == experiments
    kubectl_s = time.monotonic() - began
    api.delete(f"{path}/next")  # so that only the trials of later experiments run
    return (
        f"another controller beside {experiments} idle experiments: runs the trial of a new one "
        f"after {first_s:.1f} s and {first_cpu_s:.1f} s of the processor, {controller.cpu_s:.1f} s "
        f"and {sent.total()} requests when all are looked at, {memory_mb:.0f} MB; "
        f"`kubectl get` takes {kubectl_s:.1f} s"
    )


def rest(
    installed: Installed, resources: Resources, namespace: str, experiments: int, ended: int
) -> None:
    """Create experiments of which some end, and the others are suspended from the start."""
    api = installed.cluster.api()
    short = {"KWOK_RUN": "10ms"}
    for n in range(experiments):
        resource = resources.make(namespace, f"e{n}", short, 1, 1 if n < ended else 0)
        api.post(resources.path.format(namespace=namespace), resource)

    def resting() -> int:
        found = states(installed, resources, namespace)
        assert not found["failed"], f"{found['failed']} of {experiments} failed"
        return found["succeeded"] + found["suspended"]

    wait(lambda: resting() == experiments, within_s=3600, every_s=2 + experiments / 1000)
    time.sleep(5)  # what is deleted after the last statuses


def scale(installed: Installed, controller: Controller, experiments: int, trials: int) -> str:
    """Return what the controller takes for many experiments with running trials."""
    names = [f"tenant-{n}" for n in range(min(NAMESPACES, experiments))]
    make_namespaces(installed, names)
    memory_mb, cpu_s, requests = controller.memory_mb, controller.cpu_s, controller.requests()
    began = time.monotonic()
    for n in range(experiments):
        namespace = names[n % len(names)]
        installed.kubectl.apply([controller.resources.make(namespace, f"e{n}", LONG, 1000, trials)])
    applied_s = time.monotonic() - began
    all_trials = experiments * trials
    wait(lambda: running(installed, controller.resources) == all_trials, within_s=3600, every_s=2)
    running_s = time.monotonic() - began
    spent_s, sent = controller.cpu_s - cpu_s, controller.requests() - requests
    quiet = controller.quiet()
    return (
        f"{experiments} experiments x {trials} trials in {len(names)} namespaces: applied in "
        f"{applied_s:.0f} s, all trials run after {running_s:.0f} s and {spent_s:.0f} s of the "
        f"processor, {sent.total() / (experiments * trials):.1f} requests for each trial "
        f"{dict(sent)}; then {quiet}, {controller.memory_mb:.0f} MB ({memory_mb:.0f} MB before)"
    )


def flood(installed: Installed, controller: Controller, experiments: int) -> str:
    """Return what a tenant's trials lose while another tenant creates experiments at once: beside
    as many ConfigMaps of the same clients, beside the experiments, and until these have statuses.
    """
    make_namespaces(installed, ["steady", "flood"])
    resources, api = controller.resources, installed.cluster.api()
    steady = resources.path.format(namespace="steady")
    api.post(steady, resources.make("steady", "steady", {"KWOK_RUN": "1s"}, 100_000, 4))
    wait(lambda: done(installed, resources, f"{steady}/steady") > 4)
    next_look_s = time.monotonic()
    found = Counter[str]()

    def map_created(n: int) -> None:
        text = json.dumps(resources.make("flood", f"e{n}", LONG, 1, 1))
        made = {"metadata": {"name": f"e{n}"}, "data": {"text": text}}
        installed.cluster.api().post(f"{CORE}/namespaces/flood/configmaps", made)

    def experiment_created(n: int) -> None:
        path = resources.path.format(namespace="flood")
        installed.cluster.api().post(path, resources.make("flood", f"e{n}", LONG, 1, 1))

    def beside_creation(create: Callable[[int], None], name: str) -> tuple[float, float]:
        with ThreadPoolExecutor(CLIENTS) as clients:
            creating = [clients.submit(create, n) for n in range(experiments)]
            seen = beside(
                installed, resources, name, lambda: all(map(Future.done, creating)), within_s=3600
            )
            for each in creating:
                each.result()
        return seen

    def all_have_a_status() -> bool:
        nonlocal next_look_s, found
        if time.monotonic() > next_look_s:
            found = Counter(state_and_reason(each) for each in in_pages(installed, resources))
            next_look_s = time.monotonic() + 5 + experiments / 250  # to look takes seconds, too
        return found.total() == experiments and not found[""]

    alone = beside(installed, resources, "alone", lambda: False, within_s=STEADY_S)
    maps = beside_creation(map_created, "maps")
    memory_mb, cpu_s, began = controller.memory_mb, controller.cpu_s, time.monotonic()
    created = beside_creation(experiment_created, "created")
    created_s, created_cpu_s = time.monotonic() - began, controller.cpu_s - cpu_s
    later = beside(installed, resources, "later", all_have_a_status, within_s=3600)
    seen = {
        "alone": alone,
        "beside as many ConfigMaps": maps,
        "while they are created": created,
        "then": later,
    }
    others = ", ".join(
        f"{when} {rate:.2f} ({rate / alone[0]:.2f}) and {job_s:.1f} s"
        for when, (rate, job_s) in seen.items()
    )
    return (
        f"{experiments} experiments that {CLIENTS} clients create in {created_s:.0f} s, with "
        f"{created_cpu_s:.0f} s of the controller's processor: all have a status after "
        f"{time.monotonic() - began:.0f} and {controller.cpu_s - cpu_s:.0f} s {dict(found)}, "
        f"{controller.memory_mb:.0f} MB ({memory_mb:.0f} MB before). Another tenant's trials a "
        f"second, and the median from create to running: {others}"
    )


def beside(
    installed: Installed,
    resources: Resources,
    name: str,
    is_over: Callable[[], bool],
    *,
    within_s: float,
) -> tuple[float, float]:
    """Return the steady experiment's trials a second, and the median of create to running of small
    experiments one after the other, until it is over.
    """
    api, path = installed.cluster.api(), resources.path.format(namespace="steady")
    before, began = done(installed, resources, f"{path}/steady"), time.monotonic()
    seconds: list[float] = []

    def runs(probe: str) -> bool:
        return own_status(installed, resources, probe).get("running") == 1

    while not is_over() and time.monotonic() - began < within_s:
        probe, created = f"{path}/{name}-{len(seconds)}", time.monotonic()
        api.post(path, resources.make("steady", f"{name}-{len(seconds)}", LONG, 1, 1))
        wait(partial(runs, probe), within_s=600)
        seconds.append(time.monotonic() - created)
        api.delete(probe)
        time.sleep(1)
    trials = done(installed, resources, f"{path}/steady") - before
    return trials / (time.monotonic() - began), statistics.median(seconds)


def done(installed: Installed, resources: Resources, path: str) -> int:
    return int(own_status(installed, resources, path).get("trials", {}).get("succeeded", 0))


def in_pages(installed: Installed, resources: Resources) -> Iterator[dict[str, Any]]:
    """Yield the statuses of the flood."""
    api, path = installed.cluster.api(), resources.path.format(namespace="flood")
    query = {"limit": "1000"}
    while True:
        page = api.get(path, **query)
        yield from map(resources.status_of, page["items"])
        if not (token := page["metadata"].get("continue")):
            return
        query["continue"] = token


def state_and_reason(status: Mapping[str, Any]) -> str:
    reason = str(status.get("reason", "")).partition(":")[0]
    return f"{status.get('state', '')} {reason}".strip()


def make_namespaces(installed: Installed, names: Sequence[str]) -> None:
    api = installed.cluster.api()
    for name in names:
        api.post(f"{CORE}/namespaces", {"metadata": {"name": name}})
    for name in names:
        api.until(f"{CORE}/namespaces/{name}/serviceaccounts/default", bool)


def wait(condition: Callable[[], object], *, within_s: float = 60, every_s: float = POLL_S) -> None:
    eventually(condition, within_s=within_s, every_s=every_s)


def pods(installed: Installed, namespace: str, name: str) -> list[Object]:
    found = installed.cluster.api().items(f"{CORE}/namespaces/{namespace}/pods")
    return [p for p in found if p["metadata"]["labels"].get("tuner.dev/experiment") == name]


def present_pods(installed: Installed, namespace: str, name: str) -> int:
    found = pods(installed, namespace, name)
    return sum("deletionTimestamp" not in pod["metadata"] for pod in found)


def ended_pods(installed: Installed, namespace: str, name: str) -> bool:
    found = pods(installed, namespace, name)
    return any(pod.get("status", {}).get("phase") == "Succeeded" for pod in found)


def status(installed: Installed, path: str) -> dict[str, Any]:
    return dict(installed.cluster.api().get(path).get("status") or {})


def is_refused(installed: Installed, path: str) -> bool:
    conditions = status(installed, path).get("conditions", ())
    return any((each["type"], each["status"]) == ("Accepted", "False") for each in conditions)


def running(installed: Installed, resources: Resources) -> int:
    return sum(status.get("running", 0) for status in statuses(installed, resources, "-A"))


def states(installed: Installed, resources: Resources, namespace: str) -> Counter[str]:
    found = statuses(installed, resources, "-n", namespace)
    return Counter(status.get("state", "") for status in found)


def statuses(installed: Installed, resources: Resources, *where: str) -> list[dict[str, Any]]:
    found = json.loads(installed.kubectl("get", resources.plural, *where, "-o", "json"))["items"]
    return [resources.status_of(each) for each in found]


if __name__ == "__main__":
    main()
