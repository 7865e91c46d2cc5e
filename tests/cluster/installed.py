"""The controller in the cluster, as the chart installs it: its definition, its rights, and the
process with the token of its ServiceAccount, beside the cluster instead of in a pod.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests import forked
from tests.cluster.api import Object
from tests.cluster.binaries import program
from tests.cluster.controlplane import ControlPlane
from tests.cluster.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "chart"
INSTALL = ROOT / "deploy" / "install.yaml"
SYSTEM = "tuner-system"
KUBEFLOW = "kubeflow"  # where Katib's clients look for its DBManager
DEFINITION = "experiments.tuner.dev"
KUBE_VERSION = "1.34.0"
HEADER = """\
# The controller in the cluster, for namespace tuner-system: deploy/chart with its default values, made by
# `make deploy/install.yaml`. Replace the image, then:
#
#     kubectl create namespace tuner-system
#     kubectl apply --server-side -f deploy/install.yaml
#
# docs/cluster.md says what each part is for.
"""
# For a cluster with the flags POLICIES.
WITH_POLICIES = "--api-versions=admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy"
EXPERIMENTS = "/apis/tuner.dev/v1/namespaces/{namespace}/experiments"


@functools.cache
def render(*settings: str) -> str:
    """Return the text of the chart with these values, each as --set takes it, or a flag of helm."""
    flags: list[str] = []
    for setting in settings:
        flags += [setting] if setting.startswith("--") else ["--set", setting]
    where = ("--namespace", SYSTEM, "--kube-version", KUBE_VERSION)
    command = [program("helm"), "template", "tuner", CHART, *where, *flags]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def rendered(*settings: str) -> list[Object]:
    """Return the objects of the chart with these values."""
    documents = yaml.load_all(render(*settings), yaml.CSafeLoader)
    return [document for document in documents if document]


def install_text() -> str:
    """Return the content of deploy/install.yaml."""
    return f"{HEADER}{render()}"


class Kubectl:
    """kubectl with one kubeconfig. Raises CalledProcessError with its output."""

    def __init__(self, kubeconfig: Path) -> None:
        self._command = [str(program("kubectl")), "--kubeconfig", str(kubeconfig)]

    def __call__(self, *words: str, given: str = "") -> str:
        done = subprocess.run(
            [*self._command, *words], input=given, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    @contextmanager
    def forwarded(self, target: str, port: int, namespace: str) -> Iterator[str]:
        """Yield `localhost:PORT`, which leads to this port of a pod or Service."""
        command = [*self._command, "-n", namespace, "port-forward", target, f":{port}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                # Forwarding from 127.0.0.1:PORT -> ...
                yield f"localhost:{process.stdout.readline().split()[2].rpartition(':')[2]}"
            finally:
                process.kill()

    def apply(self, documents: list[Object]) -> str:
        text = "---\n".join(json.dumps(document) + "\n" for document in documents)
        return self("apply", "--server-side", "-f", "-", given=text)

    def established(self, definition: str) -> None:
        """Wait until the server serves what a definition says.

        `kubectl wait` and paths fail where the server has not written a condition yet.
        """

        def is_established() -> bool:
            status = json.loads(self("get", "crd", definition, "-o", "json")).get("status", {})
            said = status.get("conditions") or ()
            return any((each["type"], each["status"]) == ("Established", "True") for each in said)

        eventually(is_established, within_s=60)


def helm(kubeconfig: Path, *words: str) -> str:
    """Run helm in the installation's namespace, and return what it prints."""
    where = ("-n", SYSTEM, "--kubeconfig", str(kubeconfig))
    done = subprocess.run(
        [program("helm"), *words, *where], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"helm {' '.join(words)}: {done.stderr}"
    return done.stdout


class Installed:
    """The installation in one cluster. `close` ends the processes, and removes nothing else."""

    def __init__(self, cluster: ControlPlane, folder: Path, *settings: str) -> None:
        self.cluster = cluster
        self.state = folder / "state"
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []
        self.kubectl = Kubectl(cluster.kubeconfig())
        self.kubectl.apply(
            [
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                for name in (SYSTEM, KUBEFLOW)
            ]
        )
        workloads = ("Deployment", "PersistentVolumeClaim", "NetworkPolicy")
        objects = [each for each in rendered(*settings) if each["kind"] not in workloads]
        self.kubectl.apply(objects)
        for each in objects:
            if each["kind"] == "CustomResourceDefinition":
                self.kubectl.established(each["metadata"]["name"])
        token = cluster.service_account_token(SYSTEM, "tuner-controller")
        self.kubeconfig = cluster.kubeconfig("controller", namespace=SYSTEM, token=token)

    def start(self, *flags: str, name: str = "one") -> subprocess.Popen[str]:
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "POD_NAMESPACE": SYSTEM}
        env["POD_NAME"] = name
        words = ("controller", "--state-dir", str(self.state), *flags)
        process = forked.tuner(words, folder=self._folder, env=env)
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()

    def object(self, namespace: str, name: str) -> Object:
        return self.cluster.api().get(f"{EXPERIMENTS.format(namespace=namespace)}/{name}")

    def status(self, namespace: str, name: str = "tiny") -> dict[str, Any]:
        return dict(self.object(namespace, name).get("status") or {})

    def until(
        self,
        namespace: str,
        condition: Callable[[dict[str, Any]], object],
        *,
        name: str = "tiny",
        within_s: float = 60,
    ) -> dict[str, Any]:
        """Return the status once it satisfies the condition."""
        eventually(lambda: condition(self.status(namespace, name)), within_s=within_s)
        return self.status(namespace, name)


def experiment(
    namespace: str, name: str = "tiny", *, env: Mapping[str, str] | None = None, **spec: object
) -> Object:
    """Return an experiment whose trials are fake pods. env: determines their life (see kwok.py)."""
    given = {"KWOK_LOG": "score=${x}", "KWOK_RUN": "300ms", **(env or {})}
    return {
        "apiVersion": "tuner.dev/v1",
        "kind": "Experiment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "objective": {"metric": "score", "direction": "maximize"},
            "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
            "algorithm": {"name": "random", "seed": 1},
            "budget": {"trials": 4},
            "canary": "0s",
            "trial": {
                "image": "tiny:1",
                "command": ["python", "train.py", "--x=${x}"],
                "env": given,
                "resources": {"gpu": 1},
                "gracePeriod": "1s",
            },
            **spec,
        },
    }


if __name__ == "__main__":
    INSTALL.write_text(install_text(), encoding="utf-8")
