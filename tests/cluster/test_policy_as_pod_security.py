"""The pod security of a real API server judges pods as the policy of the controller does.

`tests/unit/test_operator_policy.py` has the same table of pods.
"""

from __future__ import annotations

import pytest

from tests.cluster.api import CORE, RequestRefused
from tests.cluster.controlplane import ControlPlane
from tests.unit.tenant_templates import BASELINE_ACCEPTS, BASELINE_REFUSES, changed

BASELINE = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}


@pytest.fixture
def tenant(level_b: ControlPlane, namespace: str) -> str:
    level_b.api().patch(f"{CORE}/namespaces/{namespace}", BASELINE)
    return namespace


def refusal(cluster: ControlPlane, namespace: str, path: str, value: object) -> str:
    """Return why the server refuses the pod of a template; "" if it does not.

    Most are refused by pod security, a few, such as a process of a Windows host, already as invalid.
    """
    template = changed(path, value)["spec"]["template"]
    pod = template | {"metadata": {"name": "tenant", **template.get("metadata", {})}}
    try:
        cluster.api().post(f"{CORE}/namespaces/{namespace}/pods", pod, dryRun="All")
    except RequestRefused as refused:
        return str(refused)
    return ""


def test_pod_security_refuses_what_the_policy_refuses(level_b: ControlPlane, tenant: str) -> None:
    accepted = [
        (path, value)
        for path, value, _ in BASELINE_REFUSES
        if not refusal(level_b, tenant, path, value)
    ]
    assert accepted == []


def test_pod_security_accepts_what_the_policy_accepts(level_b: ControlPlane, tenant: str) -> None:
    answers = [refusal(level_b, tenant, path, value) for path, value in BASELINE_ACCEPTS]
    assert [answer for answer in answers if answer] == []
