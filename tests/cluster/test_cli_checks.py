"""`tuner doctor` and `--dry-run=server` on a real API server,
as an administrator and as a tenant.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from controller.cli.main import main
from tests.cluster.api import CORE
from tests.cluster.controlplane import ControlPlane
from tests.kube.console import experiment

ROLE = Path(__file__).resolve().parents[2] / "deploy" / "rbac.yaml"
PLACES = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}
SMALL = {"limits": [{"type": "Container", "max": {"cpu": "250m"}}]}


class Shell:
    """A user with an experiment file for the namespace and a kubeconfig;
    returns what was printed.
    """

    def __init__(self, folder: Path, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._words = ("--state-dir", str(folder / "state"), "-n", namespace)
        self._capsys = capsys
        self.file = folder / "x.yaml"

    def tuner(self, *words: str) -> tuple[int, list[str]]:
        code = main([*words, *self._words])
        return code, self._capsys.readouterr().out.splitlines()


@pytest.fixture
def shell(
    level_b: ControlPlane,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Shell:
    monkeypatch.setenv("KUBECONFIG", str(level_b.kubeconfig()))
    made = Shell(tmp_path, namespace, capsys)
    made.file.write_text(experiment(trial="resources: {cpu: 1, memory: 1Gi, gpu: 1}"))
    return made


def nothing_is_made(cluster: ControlPlane, namespace: str) -> bool:
    kinds = (f"{CORE}/namespaces/{namespace}/pods", f"/apis/batch/v1/namespaces/{namespace}/jobs")
    return not any(cluster.api().get(kind)["items"] for kind in kinds)


def test_the_server_accepts_every_object_of_a_trial_under_the_restricted_profile(
    level_b: ControlPlane, namespace: str, shell: Shell
) -> None:
    strict = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    level_b.api().patch(f"{CORE}/namespaces/{namespace}", strict)
    code, lines = shell.tuner("run", str(shell.file), "--dry-run=server")
    assert (code, lines) == (
        0,
        [
            f"{name}: accepted"
            for name in ("ConfigMap tiny-dryru", "Job tiny-dryru-0", "Pod tiny-dryru-0")
        ],
    )
    assert nothing_is_made(level_b, namespace)


def test_an_object_that_the_server_refuses_is_reported_with_the_cure(
    level_b: ControlPlane, namespace: str, shell: Shell
) -> None:
    small = {"metadata": {"name": "small"}, "spec": SMALL}
    level_b.api().post(f"{CORE}/namespaces/{namespace}/limitranges", small)
    code, lines = shell.tuner("run", str(shell.file), "--dry-run=server")
    assert code == 2
    assert "maximum cpu usage per Container is 250m, but limit is 1; a LimitRange" in lines[-1]
    assert lines[-1].endswith("change spec.trial.resources")
    code, lines = shell.tuner("doctor", str(shell.file))
    assert code == 7
    assert any(line.startswith("FAIL  room") and "cpu" in line for line in lines)
    assert nothing_is_made(level_b, namespace)


def test_a_tenant_with_the_shipped_role_has_all_rights(
    level_b: ControlPlane, namespace: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = level_b.api()
    for document in yaml.safe_load_all(
        ROLE.read_text(encoding="utf-8").replace("user1", namespace)
    ):
        api.post(PLACES[document["kind"]].format(namespace), document)
    token = api.post(f"{CORE}/namespaces/{namespace}/serviceaccounts/tuner/token", {"spec": {}})[
        "status"
    ]["token"]
    monkeypatch.setenv(
        "KUBECONFIG", str(level_b.kubeconfig("tenant", namespace=namespace, token=token))
    )
    code, lines = shell.tuner("doctor", str(shell.file))
    assert code == 0, lines
    assert [line[6:].split("  ")[0] for line in lines if not line.startswith("ok")] == [
        "login",
        "dry run Pod",
    ]
    assert any(f"system:serviceaccount:{namespace}:tuner" in line for line in lines)


def test_a_user_without_rights_is_told_each_missing_one(
    level_b: ControlPlane, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(level_b.kubeconfig("user2")))
    code, lines = shell.tuner("doctor")
    assert code == 4
    assert [line.rpartition(": - ")[2] for line in lines if line.startswith("FAIL")] == [
        '{apiGroups: [""], resources: [configmaps], verbs: [create, get, delete]}',
        "{apiGroups: [batch], resources: [jobs], verbs: [create, get, list, watch, delete]}",
        '{apiGroups: [""], resources: [pods], verbs: [list, watch, delete]}',
        '{apiGroups: [""], resources: [pods/log], verbs: [get]}',
    ]
