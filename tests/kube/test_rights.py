"""The shipped Role agrees with the table of rights that the runtime uses on a cluster.

tests/cluster/test_as_a_tenant.py works with these rights.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from controller.runtime.kubernetes.preflight import QUEUE_RIGHTS, RIGHTS

FILE = Path(__file__).resolve().parents[2] / "deploy" / "rbac.yaml"


def test_the_shipped_role_grants_exactly_what_the_runtime_needs() -> None:
    documents = {each["kind"]: each for each in yaml.safe_load_all(FILE.read_text("utf-8"))}
    assert set(documents) == {"ServiceAccount", "Role", "RoleBinding"}, "nothing beyond a namespace"
    granted = {
        (group, resource, verb)
        for rule in documents["Role"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {
        (right.group, right.resource, verb)
        for right in (*RIGHTS, *QUEUE_RIGHTS)
        for verb in right.verbs
    }
