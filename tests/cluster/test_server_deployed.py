"""deploy/ on a real kubelet.

server.yaml: the server answers over TLS, and keeps its studies when its pod is replaced. run.yaml:
a controller in the cluster, in the same image, runs trials with the rights of rbac.yaml.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from suggest.client import Client, Float, maximize
from tests.certificates import Authority
from tests.cluster import images
from tests.cluster.api import CORE, Object
from tests.cluster.installed import Kubectl
from tests.cluster.objects import disk, pods
from tests.cluster.realnode import RealNode
from tests.cluster.tenant import place, role_without
from tests.cluster.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
FILE, RUN = ROOT / "deploy" / "server.yaml", ROOT / "deploy" / "run.yaml"
PATHS = {
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "Service": "/api/v1/namespaces/{}/services",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
}
STRICT = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
TOKEN = secrets.token_hex(16)
TOKENS = {
    "tokens": {
        "alice": {
            "sha256": hashlib.sha256(TOKEN.encode()).hexdigest(),
            "verbs": "all",
            "namespaces": "all",
        }
    }
}


def secret(name: str, **files: str) -> Object:
    return {
        "metadata": {"name": name},
        "data": {key.replace("_", "."): encoded(text) for key, text in files.items()},
    }


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def deployed(level_c: RealNode, namespace: str, tmp_path: Path) -> Iterator[Path]:
    """Deploy the server in the namespace; return the CA file of its certificate."""
    images.server()
    level_c.load(images.SERVER)
    api = level_c.api()
    api.patch(f"{CORE}/namespaces/{namespace}", STRICT)
    authority = Authority(tmp_path)
    certificate = authority.issue("server", "/CN=tuner", ("localhost", "tuner.tuner.svc"))
    folder = level_c.folder / f"disk-{namespace}"
    folder.mkdir()
    folder.chmod(0o777)  # a hostPath volume does not follow fsGroup
    api.post(f"{CORE}/persistentvolumes", disk(namespace, namespace, folder))
    secrets_path = f"{CORE}/namespaces/{namespace}/secrets"
    api.post(secrets_path, secret("tuner-tokens", tokens_yaml=yaml.safe_dump(TOKENS)))
    pair = {"tls_crt": certificate.certificate.read_text(), "tls_key": certificate.key.read_text()}
    api.post(secrets_path, secret("tuner-tls", **pair))
    for document in yaml.safe_load_all(FILE.read_text(encoding="utf-8")):
        if document["kind"] == "PersistentVolumeClaim":
            document["spec"]["storageClassName"] = ""
        if document["kind"] == "Deployment":
            (container,) = document["spec"]["template"]["spec"]["containers"]
            container |= {"image": images.SERVER, "imagePullPolicy": "Never"}
        api.post(PATHS[document["kind"]].format(namespace), document, fieldValidation="Strict")
    yield authority.own.certificate
    api.delete(f"{CORE}/persistentvolumes/{namespace}")


def ready(level_c: RealNode, namespace: str, *, other_than: str = "") -> Any:
    def found() -> Any:
        for pod in level_c.api().items(pods(namespace)):
            shown = {each["type"]: each["status"] for each in pod["status"].get("conditions") or ()}
            if shown.get("Ready") == "True" and pod["metadata"]["uid"] != other_than:
                return pod
        return None

    return eventually(found, within_s=120, shows=lambda: str(level_c.api().items(pods(namespace))))


def test_a_deployed_server_keeps_its_studies_when_its_pod_is_replaced(
    level_c: RealNode, namespace: str, deployed: Path
) -> None:
    kubectl = Kubectl(level_c.kubeconfig())
    first = ready(level_c, namespace)
    with (
        kubectl.forwarded(f"pod/{first['metadata']['name']}", 7117, namespace) as address,
        Client(address, token=TOKEN, tls_ca=str(deployed)) as client,
    ):
        study = client.study("parabola", {"x": Float(-10, 10)}, maximize("score"), algorithm="tpe")
        for trial in study.trials(3):
            trial.report(step=1, score=-((trial.parameters["x"] - 2) ** 2))
            trial.complete()
        before = study.best
    level_c.api().delete(pods(namespace, first["metadata"]["name"]))
    ready(level_c, namespace, other_than=first["metadata"]["uid"])
    with (
        kubectl.forwarded("service/tuner", 7117, namespace) as address,
        Client(address, token=TOKEN, tls_ca=str(deployed)) as client,
    ):
        study = client.study("parabola", {"x": Float(-10, 10)}, maximize("score"), algorithm="tpe")
        assert study.best == before


@pytest.fixture
def controller(level_c: RealNode, namespace: str) -> Iterator[str]:
    """Apply run.yaml for two trials of the digits example; return the name of its Job."""
    images.server()
    images.digits()
    for image in (images.SERVER, images.DIGITS):
        level_c.load(image)
    api = level_c.api()
    api.patch(f"{CORE}/namespaces/{namespace}", STRICT)
    for document in role_without(namespace, ""):
        api.post(place(document["kind"], namespace), document)
    folder = level_c.folder / f"disk-{namespace}"
    folder.mkdir()
    folder.chmod(0o777)
    api.post(f"{CORE}/persistentvolumes", disk(namespace, namespace, folder, claim="digits-state"))
    experiment = yaml.safe_load(
        (ROOT / "examples/digits/experiment.yaml").read_text(encoding="utf-8")
    )
    experiment["spec"]["budget"] = {"trials": 2}
    experiment["spec"]["trial"] |= {
        "image": images.DIGITS,
        "imagePullPolicy": "Never",
        "resources": {"cpu": "100m"},
    }
    files = {
        "metadata": {"name": "digits-file"},
        "data": {"experiment.yaml": yaml.safe_dump(experiment)},
    }
    api.post(f"{CORE}/namespaces/{namespace}/configmaps", files)
    for document in yaml.safe_load_all(RUN.read_text(encoding="utf-8")):
        if document["kind"] == "PersistentVolumeClaim":
            document["spec"]["storageClassName"] = ""
        if document["kind"] == "Job":
            (container,) = document["spec"]["template"]["spec"]["containers"]
            container |= {"image": images.SERVER, "imagePullPolicy": "Never"}
        api.post(PATHS[document["kind"]].format(namespace), document, fieldValidation="Strict")
    yield "digits-controller"
    api.delete(f"{CORE}/persistentvolumes/{namespace}")


def test_a_controller_in_the_cluster_runs_trials(
    level_c: RealNode, namespace: str, controller: str
) -> None:
    api, path = level_c.api(), PATHS["Job"].format(namespace)
    ours = {"labelSelector": f"batch.kubernetes.io/job-name={controller}"}

    def log() -> str:
        return "".join(
            api.logs(namespace, pod["metadata"]["name"])
            for pod in api.items(pods(namespace), **ours)
        )

    def ended() -> str:
        conditions = api.get(f"{path}/{controller}").get("status", {}).get("conditions") or ()
        return next(
            (each["type"] for each in conditions if each["type"] in ("Complete", "Failed")), ""
        )

    assert eventually(ended, within_s=150, shows=log) == "Complete", log()
    best = re.search(r"digits: best accuracy (\S+)", log())
    assert best is not None, log()
    assert 0 < float(best[1]) <= 1, "the image's Python is that of Debian 12"
    assert [job["metadata"]["name"] for job in api.items(path)] == [controller], (
        "its trials are over and removed"
    )
