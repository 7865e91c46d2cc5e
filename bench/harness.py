"""A cluster for a benchmark, and three ways to run the same trials on it: `tuner run`, the
controller in the cluster, and the bare client.

Each run has its own namespace, so that its lines in the audit log can be told apart.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cluster_probe import HOSTED, OURS, Audit, Write, memory_mb
from processes import TUNER, cpu_s

from tests.cluster.api import CORE, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import EXPERIMENTS, Installed
from tests.cluster.waiting import eventually

BARE = str(Path(__file__).with_name("bare.py"))
THEIRS = "bare"
RUN_WITHIN_S = 3600.0  # ten thousand trials take some eleven minutes


@dataclass(frozen=True, slots=True)
class Used:
    """Resources used by a process in its life. `memory_mb` is the peak."""

    cpu_s: float
    memory_mb: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run: begin and end of its commands in seconds since the epoch,
    and the number of trials that succeeded.
    """

    namespace: str
    began: float
    ended: float
    writes: list[Write]
    used: list[Used] = field(default_factory=list)
    trials: int = 0
    requests: int = 0  # of Tuner, reads included

    @property
    def wall_s(self) -> float:
        return self.ended - self.began

    def times(self, verb: str, what: str, *whose: str) -> list[float]:
        """Return the times of such writes, of all users or of the given ones."""
        return [
            w.time
            for w in self.writes
            if (w.verb, w.what) == (verb, what) and (not whose or w.who in whose)
        ]

    @property
    def at_work_s(self) -> float:
        """Seconds from the creation of the first Job to the deletion of the last,
        without start and end of programs.
        """
        jobs = self.times("create", "jobs") + self.times("delete", "jobs", OURS, HOSTED, THEIRS)
        return max(jobs) - min(jobs)


class Harness:
    """A cluster, created by `make` with additional flags of the API server. Must be closed."""

    def __init__(self, make: Callable[[tuple[str, ...]], ControlPlane]) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="tuner-bench-")
        self.folder = Path(self._temporary.name)
        self.audit = Audit(self.folder)
        self.cluster = make(self.audit.flags)
        self.api = self.cluster.api()
        self._numbers = itertools.count(1)
        self._tokens = {name: self._account(name) for name in (OURS, THEIRS)}
        self._installed: Installed | None = None

    def close(self) -> None:
        if self._installed is not None:
            self._installed.close()
        self.cluster.close()
        self._temporary.cleanup()

    def namespace(self, *objects: tuple[str, Object]) -> str:
        """Create a namespace with these objects: (plural in v1, manifest)."""
        name = f"run-{next(self._numbers)}"
        self.api.post(f"{CORE}/namespaces", {"metadata": {"name": name}})
        self.api.until(f"{CORE}/namespaces/{name}/serviceaccounts/default", bool)
        for plural, manifest in objects:
            self.api.post(f"{CORE}/namespaces/{name}/{plural}", manifest)
        return name

    def ours(
        self,
        files: Sequence[Mapping[str, Any]],
        *,
        apart: bool = False,
        meanwhile: Callable[[list[int]], None] | None = None,
    ) -> Run:
        """Run `tuner run` for all files at once.

        Files are experiments, each with its namespace. They share a state directory unless `apart`.
        `meanwhile` is called with the process ids once all are started.
        """
        namespaces = [file["metadata"]["namespace"] for file in files]
        folders = [self.folder / (name if apart else namespaces[0]) for name in namespaces]
        for folder in folders:
            folder.mkdir(exist_ok=True)
        began = time.time()
        processes = [self._begin(folder, file) for folder, file in zip(folders, files, strict=True)]
        try:
            if meanwhile is not None:
                meanwhile([process.pid for process in processes])
            used = list(map(_end, processes, folders, files))
        finally:
            for process in processes:  # if a process or `meanwhile` has failed
                if process.returncode is None:
                    process.kill()
        ended = time.time()
        good = sum(map(self._succeeded, folders, files))
        return self._observed(OURS, namespaces, began, ended, used, good)

    def hosted(self, files: Sequence[Mapping[str, Any]]) -> Run:
        """Apply all files at once to the controller in the cluster, and wait for their ends."""
        if self._installed is None:
            self._installed = Installed(self.cluster, self.folder)
            self._controller = self._installed.start().pid
        namespaces = [file["metadata"]["namespace"] for file in files]
        paths = [
            f"{EXPERIMENTS.format(namespace=file['metadata']['namespace'])}/"
            f"{file['metadata']['name']}"
            for file in files
        ]
        began, used_s = time.time(), cpu_s(self._controller)
        self._installed.kubectl.apply([dict(file) for file in files])

        def trials() -> list[int]:
            statuses = [self.api.get(path).get("status") or {} for path in paths]
            if any(status.get("state") != "succeeded" for status in statuses):
                return []
            return [status["trials"]["succeeded"] for status in statuses]

        good = sum(eventually(trials, within_s=RUN_WITHIN_S, every_s=0.5))
        ended = time.time()
        used = Used(cpu_s(self._controller) - used_s, memory_mb(self._controller))
        return self._observed(HOSTED, namespaces, began, ended, [used], good)

    def _observed(
        self,
        who: str,
        namespaces: Sequence[str],
        began: float,
        ended: float,
        used: list[Used],
        good: int,
    ) -> Run:
        names = list(dict.fromkeys(namespaces))
        writes = [write for name in names for write in self.audit.of(name)]
        requests = sum(self.audit.requests(name, who) for name in names)
        return Run(names[0], began, ended, writes, used, good, requests)

    def _begin(self, folder: Path, file: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        name, namespace = file["metadata"]["name"], file["metadata"]["namespace"]
        path = folder / f"{namespace}-{name}.json"
        path.write_text(json.dumps(file))
        with path.with_suffix(".log").open("wb") as log:
            return subprocess.Popen(
                [TUNER, "run", path, "-q"],
                env=self._env(folder, namespace),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _env(self, folder: Path, namespace: str) -> dict[str, str]:
        kubeconfig = self.cluster.kubeconfig(OURS, namespace=namespace, token=self._tokens[OURS])
        given = {"KUBECONFIG": str(kubeconfig), "TUNER_STATE_DIR": str(folder / "state")}
        # Allow compiled modules, which installed programs have,
        # although a test machine may disable them.
        return {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        } | given

    def _succeeded(self, folder: Path, file: Mapping[str, Any]) -> int:
        about = file["metadata"]
        asking = [TUNER, "get", "experiments", "-o", "json"]
        answer = subprocess.run(
            asking,
            env=self._env(folder, about["namespace"]),
            check=True,
            capture_output=True,
            text=True,
        )
        of = (about["name"], about["namespace"])
        (found,) = [
            one for one in json.loads(answer.stdout) if (one["name"], one["namespace"]) == of
        ]
        return int(found["trials"].get("succeeded", 0))

    def bare(self, file: Mapping[str, Any], trials: int, at_once: int, *, by: str = "jobs") -> Run:
        """Run the Jobs that `tuner run` would create for the file, without Tuner's own metadata."""
        namespace = file["metadata"]["namespace"]
        one = self._manifest(file)
        jobs = [
            {**one, "metadata": {**one["metadata"], "name": f"bare-{number}"}}
            for number in range(trials)
        ]
        orders = {
            "server": self.cluster.server,
            "authority": self.api.authority,
            "token": self._tokens[THEIRS],
            "namespace": namespace,
            "jobs": jobs,
            "atOnce": at_once,
            "by": by,
        }
        began = time.time()
        done = subprocess.run(
            [sys.executable, BARE],
            input=json.dumps(orders),
            capture_output=True,
            text=True,
            timeout=RUN_WITHIN_S,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"the bare client failed: {done.stderr}")
        return Run(namespace, began, time.time(), self.audit.of(namespace), trials=trials)

    def _manifest(self, file: Mapping[str, Any]) -> Object:
        """Return the manifest of a trial's Job, with labels
        by which the bare client finds it and its pod.
        """
        path = self.folder / "bare.json"
        path.write_text(json.dumps(file))
        shown = subprocess.run(
            [TUNER, "run", path, "--dry-run=client", "--state-dir", self.folder / "bare"],
            check=True,
            capture_output=True,
            text=True,
        )
        job: Object = next(
            found for found in yaml.safe_load_all(shown.stdout) if found["kind"] == "Job"
        )
        job["metadata"] = {"labels": {"bench": "bare"}}
        job["spec"]["template"]["metadata"] = {"labels": {"bench": "bare"}}
        return job

    def _account(self, name: str) -> str:
        """Create an administrator account whose name the audit log shows, and return its token."""
        self.api.post(f"{CORE}/namespaces/default/serviceaccounts", {"metadata": {"name": name}})
        self.api.post(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            {
                "metadata": {"name": f"bench-{name}"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "cluster-admin",
                },
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
            },
        )
        return self.cluster.service_account_token("default", name)


def _end(process: subprocess.Popen[bytes], folder: Path, file: Mapping[str, Any]) -> Used:
    end = time.monotonic() + RUN_WITHIN_S
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > end:
            process.kill()
        time.sleep(0.02)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        name = f"{file['metadata']['namespace']}-{file['metadata']['name']}"
        sys.exit(
            f"tuner run ended with {process.returncode}:\n{(folder / f'{name}.log').read_text()}"
        )
    return Used(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def experiment(
    namespace: str,
    name: str = "bench",
    *,
    trials: int,
    parallelism: int,
    canary: str = "0s",
    trial: Mapping[str, Any],
    **spec: Any,
) -> dict[str, Any]:
    """Return an experiment file for random search over one parameter."""
    return {
        "apiVersion": "tuner.dev/v1",
        "kind": "Experiment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "algorithm": {"name": "random", "seed": 1},
            "objective": {"metric": "accuracy", "direction": "maximize"},
            "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
            "budget": {"trials": trials, "failedTrials": trials},
            "parallelism": parallelism,
            "canary": canary,
            "runtime": "kubernetes",
            "trial": {"gracePeriod": "1s", **trial},
            **spec,
        },
    }
