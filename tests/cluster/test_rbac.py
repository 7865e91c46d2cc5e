"""deploy/rbac.yaml on a real API server: a tenant has the rights that the tuner needs in a
namespace, and no others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import CORE
from tests.cluster.controlplane import ControlPlane

FILE = Path(__file__).resolve().parents[2] / "deploy" / "rbac.yaml"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
NEEDED = {
    "batch/jobs": "create get list watch delete",
    "pods": "list watch patch delete",
    "pods/log": "get",
    "events": "list watch",
    "configmaps": "create get list delete",
    "services": "create get delete",
    "coordination.k8s.io/leases": "create get list patch",
    "resourcequotas": "list watch",
    "limitranges": "list",
    "kueue.x-k8s.io/workloads": "list watch",
    "kueue.x-k8s.io/localqueues": "list",
}
FORBIDDEN = {
    "batch/jobs": "update patch deletecollection",
    "pods": "create get update",
    "pods/exec": "create",
    "secrets": "get list create",
    "serviceaccounts": "get",
    "serviceaccounts/token": "create",
    "configmaps": "update patch",
    "coordination.k8s.io/leases": "watch update delete",
    "resourcequotas": "create get update delete",
    "limitranges": "create get watch",
    "rbac.authorization.k8s.io/roles": "create get",
    "nodes": "list",
    "kueue.x-k8s.io/workloads": "create get update patch delete",
    "kueue.x-k8s.io/localqueues": "create get watch update delete",
}


@pytest.fixture
def tenant(level_b: ControlPlane, namespace: str) -> str:
    """The user of the file, in its own namespace."""
    paths = {
        "ServiceAccount": f"{CORE}/namespaces/{namespace}/serviceaccounts",
        "Role": f"{RBAC}/namespaces/{namespace}/roles",
        "RoleBinding": f"{RBAC}/namespaces/{namespace}/rolebindings",
    }
    for document in yaml.safe_load_all(
        FILE.read_text(encoding="utf-8").replace("user1", namespace)
    ):
        level_b.api().post(paths[document["kind"]], document, fieldValidation="Strict")
    return f"system:serviceaccount:{namespace}:tuner"


def allowed(cluster: ControlPlane, user: str, verb: str, what: str, namespace: str) -> bool:
    path, _, subresource = (
        what.partition("/") if what.startswith(("pods", "serviceaccounts")) else (what, "", "")
    )
    group, _, resource = path.rpartition("/")
    asked = {
        "namespace": namespace,
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
    }
    review: dict[str, Any] = {"spec": {"user": user, "resourceAttributes": asked}}
    answer = cluster.api().post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def rights(
    cluster: ControlPlane, user: str, asked: dict[str, str], namespace: str
) -> dict[str, str]:
    """Return which of the requested rights are allowed."""
    found = {
        what: " ".join(
            verb for verb in verbs.split() if allowed(cluster, user, verb, what, namespace)
        )
        for what, verbs in asked.items()
    }
    return {what: verbs for what, verbs in found.items() if verbs}


def test_a_tenant_has_every_right_that_the_runtime_needs(
    level_b: ControlPlane, namespace: str, tenant: str
) -> None:
    assert rights(level_b, tenant, NEEDED, namespace) == NEEDED


def test_a_tenant_has_no_other_right(level_b: ControlPlane, namespace: str, tenant: str) -> None:
    assert rights(level_b, tenant, FORBIDDEN, namespace) == {}


def test_a_tenant_has_no_right_in_other_namespaces(level_b: ControlPlane, tenant: str) -> None:
    assert rights(level_b, tenant, NEEDED, "default") == {}
