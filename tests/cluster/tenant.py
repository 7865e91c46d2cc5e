"""Somebody with the rights of deploy/rbac.yaml in one namespace, and nothing else."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.cluster.api import CORE, Object
from tests.cluster.controlplane import ControlPlane

ROLE = Path(__file__).resolve().parents[2] / "deploy" / "rbac.yaml"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def place(kind: str, namespace: str) -> str:
    """Where such an object of the file is made."""
    plural = f"{kind.lower()}s"
    return f"{CORE if kind == 'ServiceAccount' else RBAC}/namespaces/{namespace}/{plural}"


def role_without(namespace: str, resource: str, *verbs: str) -> list[Object]:
    """The file for this namespace, lacking these verbs to one resource."""
    documents = list(yaml.safe_load_all(ROLE.read_text(encoding="utf-8").replace("user1", namespace)))
    for rule in (rule for document in documents for rule in document.get("rules", ())):
        if rule["resources"] == [resource]:
            rule["verbs"] = [verb for verb in rule["verbs"] if verb not in verbs]
    return [*documents]


def tenant(cluster: ControlPlane, namespace: str, documents: list[Object] | None = None) -> Path:
    """A kubeconfig."""
    for document in documents or role_without(namespace, ""):
        cluster.api().post(place(document["kind"], namespace), document, fieldValidation="Strict")
    token = cluster.service_account_token(namespace, "tuner")
    return cluster.kubeconfig("tenant", namespace=namespace, token=token)
