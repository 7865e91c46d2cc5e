"""examples/platform, applied to a real API server: its tenants can use the controller, and each only
its own namespace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import ROOT, SYSTEM, Installed, Kubectl
from tests.cluster.waiting import eventually

PLATFORM = ROOT / "examples" / "platform"
TEAMS = ("vision", "speech")
WRITES = ("create", "update", "patch", "delete")
READS = ("get", "list", "watch")


@pytest.fixture(scope="module")
def platform(
    level_b: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    kubectl = Kubectl(level_b.kubeconfig())
    kubectl("apply", "-f", str(PLATFORM / "tenants.yaml"))
    # Other tests install a controller for all namespaces.
    kubectl("delete", "clusterrolebinding", "tuner-controller", "--ignore-not-found")
    values = f"--values={PLATFORM / 'values.yaml'}"
    installation = Installed(level_b, tmp_path_factory.mktemp("platform"), values)
    # The roles are added to `edit` a moment later.
    eventually(
        lambda: all(may(installation, t, "create", "tuner.dev/experiments", t) for t in TEAMS)
    )
    yield installation
    for team in TEAMS:
        kubectl("delete", "texp", "--all", "-n", team, "--timeout=60s")
    installation.close()
    kubectl("delete", "namespace", *TEAMS, "--wait=false")


def as_member(team: str) -> tuple[str, ...]:
    return (f"--as=member-of-{team}", f"--as-group={team}", "--as-group=system:authenticated")


def may(platform: Installed, team: str, verb: str, resource: str, namespace: str) -> bool:
    """Return whether a member of a team has a right in a namespace."""
    group, _, kind = resource.rpartition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"member-of-{team}",
            "groups": [team, "system:authenticated"],
            "resourceAttributes": {
                "verb": verb,
                "group": group,
                "resource": kind.partition(":")[0],
                "subresource": kind.partition(":")[2],
                "namespace": namespace,
            },
        },
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(platform.cluster.api().post(path, review)["status"]["allowed"])


def example(**env: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((PLATFORM / "experiment.yaml").read_text("utf-8"))
    document["spec"]["budget"] = {"trials": 3}
    document["spec"]["trial"]["env"] = env
    return document


def test_a_tenant_runs_an_experiment_in_its_own_namespace_and_in_no_other(
    platform: Installed,
) -> None:
    platform.start("--watch-namespace=vision", "--watch-namespace=speech")
    given = json.dumps(example(KWOK_LOG="accuracy=0.5", KWOK_RUN="300ms"))
    for other in ("speech", "default", SYSTEM):
        with pytest.raises(AssertionError, match="is forbidden"):
            platform.kubectl(*as_member("vision"), "create", "-n", other, "-f", "-", given=given)
    platform.kubectl(*as_member("vision"), "create", "-n", "vision", "-f", "-", given=given)
    platform.until("vision", lambda status: status.get("state") == "succeeded", name="digits")
    shown = platform.kubectl(*as_member("vision"), "get", "texp", "-n", "vision")
    assert "succeeded" in shown
    with pytest.raises(AssertionError, match="is forbidden"):
        platform.kubectl(*as_member("speech"), "get", "texp", "-n", "vision")
    with pytest.raises(AssertionError, match="is forbidden"):
        platform.kubectl(*as_member("speech"), "get", "texp", "--all-namespaces")


@pytest.mark.parametrize(("team", "other"), [TEAMS, TEAMS[::-1]])
def test_a_tenant_has_its_rights_in_its_own_namespace_alone(
    platform: Installed, team: str, other: str
) -> None:
    for verb in (*READS, *WRITES):
        assert may(platform, team, verb, "tuner.dev/experiments", team)
    for namespace in (other, SYSTEM, ""):
        for resource in ("tuner.dev/experiments", "batch/jobs", "pods", "pods:log", "secrets"):
            for verb in (*READS, *WRITES, "deletecollection"):
                assert not may(platform, team, verb, resource, namespace)
        assert not may(platform, team, "create", "pods:exec", namespace)
        assert not may(platform, team, "get", "services:proxy", namespace)


@pytest.mark.parametrize("team", TEAMS)
def test_a_tenant_changes_neither_statuses_nor_its_quota_nor_its_role(
    platform: Installed, team: str
) -> None:
    for verb in WRITES:
        assert not may(platform, team, verb, "tuner.dev/experiments:status", team)
        assert not may(platform, team, verb, "resourcequotas", team)
        assert not may(platform, team, verb, "limitranges", team)
        assert not may(platform, team, verb, "rbac.authorization.k8s.io/rolebindings", team)


def test_the_controller_has_rights_in_the_tenants_namespaces_alone(platform: Installed) -> None:
    api = platform.cluster.api(
        token=platform.cluster.service_account_token(SYSTEM, "tuner-controller")
    )

    def has(verb: str, group: str, resource: str, namespace: str) -> bool:
        attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return bool(api.post(path, review)["status"]["allowed"])

    assert has("create", "batch", "jobs", "vision")
    assert has("create", "jobset.x-k8s.io", "jobsets", "speech")
    for namespace in ("default", "kube-system", ""):
        assert not has("create", "batch", "jobs", namespace)
        assert not has("list", "", "pods", namespace)
