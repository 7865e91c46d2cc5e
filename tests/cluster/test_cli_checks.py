"""`--dry-run=server` on a real API server: what it accepts and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.cli.main import main
from tests.cluster.api import CORE
from tests.cluster.controlplane import ControlPlane
from tests.kube.console import experiment

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
