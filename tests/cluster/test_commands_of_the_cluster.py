"""`tuner … --context` through a real API server's proxy: people with a token and with a certificate,
who may view, edit, or do neither.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import forked
from tests.cluster.api import CORE, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import SYSTEM, Installed, experiment
from tests.cluster.waiting import eventually
from tests.ports import free_port

STAND_IN = "controller-beside"


def address() -> str:
    """Return an address of this machine that is not loopback, which Endpoints may not have."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


@dataclass(frozen=True)
class People:
    installed: Installed
    folder: Path
    namespace: str

    def person(self, name: str, role: str) -> Path:
        """Return the kubeconfig of a service account with a role in the namespace."""
        api = self.installed.cluster.api()
        api.post(f"{CORE}/namespaces/{SYSTEM}/serviceaccounts", {"metadata": {"name": name}})
        if role:
            self.bind(role, f"--serviceaccount={SYSTEM}:{name}")
        token = self.installed.cluster.service_account_token(SYSTEM, name)
        return self.installed.cluster.kubeconfig(name, namespace=self.namespace, token=token)

    def certified(self, name: str, role: str) -> Path:
        """Return the kubeconfig of a person who signs in with a client certificate."""
        self.bind(role, f"--user={name}")
        issued = self.installed.cluster.authority.issue(name, f"/O=vision/CN={name}")
        path = self.installed.cluster.kubeconfig(name, namespace=self.namespace, token="none")
        config = json.loads(path.read_text())
        files = {"client-certificate": str(issued.certificate), "client-key": str(issued.key)}
        config["users"][0]["user"] = files
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def bind(self, role: str, subject: str) -> None:
        name = subject.rpartition(":")[2].rpartition("=")[2]
        words = ("rolebinding", name, f"--clusterrole={role}", subject, "-n", self.namespace)
        self.installed.kubectl("create", *words)

    def tuner(self, kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        command = [*words, "--context", "test"]
        process = forked.tuner(command, folder=self.folder, env=env)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def stand_in(cluster: ControlPlane) -> Object:
    """Create a pod with this machine's address, because the proxy leads to pods only.

    Returns a reference to it.
    """
    pods = f"{CORE}/namespaces/{SYSTEM}/pods"
    containers = [{"name": "main", "image": "tuner"}]
    pod = cluster.api().post(
        pods,
        {"metadata": {"name": STAND_IN}, "spec": {"nodeName": "beside", "containers": containers}},
    )
    address_of = {"podIP": address(), "podIPs": [{"ip": address()}]}
    cluster.api().patch(f"{pods}/{STAND_IN}/status", {"status": address_of})
    about = {"name": STAND_IN, "namespace": SYSTEM, "uid": pod["metadata"]["uid"]}
    return {"apiVersion": "v1", "kind": "Pod"} | about


@pytest.fixture
def people(level_b: ControlPlane, tmp_path: Path, namespace: str) -> Iterator[People]:
    installation = Installed(level_b, tmp_path)
    # The controller runs beside the cluster: its Service leads to this machine.
    remove = '[{"op": "remove", "path": "/spec/selector"}]'
    installation.kubectl("patch", "service", "tuner", "-n", SYSTEM, "--type=json", "-p", remove)
    port = free_port()
    endpoints = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": "tuner", "namespace": SYSTEM},
        "subsets": [
            {
                "addresses": [{"ip": address(), "targetRef": stand_in(level_b)}],
                "ports": [{"name": "https", "port": port}],
            }
        ],
    }
    installation.kubectl.apply([endpoints])
    installation.start(f"--http-port={port}")
    yield People(installation, tmp_path, namespace)
    installation.close()
    # Service accounts and the Service belong to the cluster, which other tests use.
    installation.kubectl(
        "delete", "serviceaccount", "-n", SYSTEM, "ann", "vic", "--ignore-not-found"
    )
    installation.kubectl("delete", "service", "tuner", "-n", SYSTEM)
    installation.kubectl("delete", "pod", STAND_IN, "-n", SYSTEM, "--force", "--ignore-not-found")
    installation.kubectl("delete", "endpoints", "tuner", "-n", SYSTEM, "--ignore-not-found")


def unpacked_trials(folder: Path) -> object:
    """Return the trials of the pack in the folder, from a state directory of their own."""
    env = {**os.environ, "TUNER_STATE_DIR": str(folder / "elsewhere")}
    out = ""
    for words in (("unpack", "tiny.tar.gz"), ("get", "trials", "tiny", "-o", "json")):
        process = forked.tuner(words, folder=folder, env=env)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    return json.loads(out)


def test_people_do_what_their_roles_say(people: People) -> None:
    namespace, folder = people.namespace, people.folder
    file = folder / "experiment.yaml"
    file.write_text(json.dumps(experiment(namespace)))
    editor = people.person("ann", "edit")
    applied = people.tuner(editor, "apply", "-f", str(file))
    assert applied.returncode == 0, applied.stderr
    assert applied.stdout == f"experiment {namespace}/tiny created\n"
    again = people.tuner(editor, "apply", "-f", str(file))
    assert again.stdout == f"experiment {namespace}/tiny unchanged\n", again.stderr
    people.installed.until(namespace, lambda status: status.get("state") == "succeeded")

    viewer = people.certified("cora", "view")
    stranger = people.person("vic", "")
    trials = people.tuner(viewer, "get", "trials", "tiny", "-o", "json")
    assert trials.returncode == 0, trials.stderr
    assert len(json.loads(trials.stdout)) == 4
    log = people.tuner(viewer, "logs", "tiny/0")
    assert "score=" in log.stdout, log.stderr
    packed = people.tuner(viewer, "pack", "tiny")
    assert packed.returncode == 0, packed.stderr
    assert unpacked_trials(folder) == json.loads(trials.stdout)
    refused = people.tuner(stranger, "pack", "tiny", "--to", "other.tar.gz")
    assert (refused.returncode, (folder / "other.tar.gz").exists()) == (4, False), refused.stderr
    listed = people.tuner(editor, "get", "experiments", "-A", "-o", "name")
    assert listed.stdout == "tiny\n", listed.stderr

    refused = people.tuner(viewer, "extend", "tiny", "--trials", "+1")
    assert (refused.returncode, "tuner-experiments-edit" in refused.stderr) == (4, True)
    again = ("confirm", "tiny", "--top", "1", "--seeds", "2")
    refused = people.tuner(viewer, *again)
    assert (refused.returncode, "tuner-experiments-edit" in refused.stderr) == (4, True)
    refused = people.tuner(stranger, "get", "trials", "tiny")
    assert (refused.returncode, "may not get experiments" in refused.stderr) == (4, True)
    nothing = people.tuner(stranger, "get", "experiments", "-A", "-o", "name")
    assert (nothing.returncode, nothing.stdout) == (4, "")

    confirmed = people.tuner(editor, *again)
    assert confirmed.returncode == 0, confirmed.stderr
    assert "Reruns of tiny, with 2 new seeds" in confirmed.stdout
    reproduced = people.tuner(editor, "reproduce", "tiny/0")
    assert reproduced.returncode == 0, reproduced.stderr
    extended = people.tuner(editor, "extend", "tiny", "--trials", "+1")
    assert extended.returncode == 0, extended.stderr
    people.installed.until(namespace, lambda status: status.get("done") == "5/5")
    # A file takes back what `tuner` has changed since, and not what other programs have changed.
    document = json.loads(file.read_text())
    document["spec"] |= {"budget": {"trials": 6}, "parallelism": 2}
    file.write_text(json.dumps(document))
    reapplied = people.tuner(editor, "apply", "-f", str(file))
    assert reapplied.stdout == f"experiment {namespace}/tiny configured\n", reapplied.stderr
    patch = ("--type=merge", "-p", '{"spec":{"parallelism":3}}')
    people.installed.kubectl("patch", "texp", "tiny", "-n", namespace, *patch)
    refused = people.tuner(editor, "apply", "-f", str(file))
    assert (refused.returncode, "kubectl-patch: spec.parallelism" in refused.stderr) == (6, True)
    stopped = people.tuner(editor, "delete", "tiny", "tiny-confirm", "tiny-reproduce-0", "--yes")
    assert stopped.returncode == 0, stopped.stderr
    path = f"/apis/tuner.dev/v1/namespaces/{namespace}/experiments"
    eventually(lambda: people.installed.cluster.api().items(path) == [], within_s=10)
