"""A user with the rights of deploy/rbac.yaml in one namespace and no others."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.cluster.api import CORE, Object
from tests.cluster.controlplane import ControlPlane

ROLE = Path(__file__).resolve().parents[2] / "deploy" / "rbac.yaml"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def place(kind: str, namespace: str) -> str:
    """Return the API path of an object of the file."""
    plural = f"{kind.lower()}s"
    return f"{CORE if kind == 'ServiceAccount' else RBAC}/namespaces/{namespace}/{plural}"


def role_without(namespace: str, resource: str, *verbs: str) -> list[Object]:
    """Return the objects of the file for this namespace, without these verbs on one resource."""
    documents = list(
        yaml.safe_load_all(ROLE.read_text(encoding="utf-8").replace("user1", namespace))
    )
    for rule in (rule for document in documents for rule in document.get("rules", ())):
        if rule["resources"] == [resource]:
            rule["verbs"] = [verb for verb in rule["verbs"] if verb not in verbs]
    return [*documents]


def tenant(cluster: ControlPlane, namespace: str, documents: list[Object] | None = None) -> Path:
    """Create the tenant and return their kubeconfig."""
    for document in documents or role_without(namespace, ""):
        cluster.api().post(place(document["kind"], namespace), document, fieldValidation="Strict")
    token = cluster.service_account_token(namespace, "tuner")
    return cluster.kubeconfig("tenant", namespace=namespace, token=token)
