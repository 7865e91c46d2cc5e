"""The container whose log Kubeflow's OptimizerClient reads: what it makes of a pod's command.

Its policy, the real Trainer and the SDK are in tests/operators/test_optimizer_sdk.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.installed import WITH_POLICIES, rendered

SETTINGS = ("katib.enabled=true", "katib.logContainerImage=collector:1")
Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture(scope="module")
def shell() -> str:
    """Return the script that the policy puts before a command."""
    policy = next(
        each
        for each in rendered(*SETTINGS, WITH_POLICIES)
        if each["kind"] == "MutatingAdmissionPolicy"
        and each["metadata"]["name"] == "tuner-log-container"
    )
    values = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    return str(values["shell"]).strip("r'")


@pytest.fixture(params=["dash", "bash"])
def start(request: pytest.FixtureRequest, shell: str, tmp_path: Path) -> Start:
    """Start a program of bash as the policy does, in each shell that an image may have as `sh`."""
    script = shell.replace("/tuner/log", str(tmp_path))

    def started(program: str) -> subprocess.Popen[str]:
        command = [request.param, "-c", script, "sh", "bash", "-c", program]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)

    return started


@pytest.mark.parametrize("version", ["v1beta1", "v1"])
def test_the_policies_are_of_the_version_that_the_cluster_serves(version: str) -> None:
    served = f"admissionregistration.k8s.io/{version}"
    kinds = [
        each["apiVersion"]
        for each in rendered(*SETTINGS, f"--api-versions={served}/MutatingAdmissionPolicy")
        if each["kind"].startswith("MutatingAdmissionPolicy")
    ]
    assert kinds == [served] * 4


def test_a_cluster_without_policies_is_told_for_the_container_that_needs_one() -> None:
    assert not [each for each in rendered(*SETTINGS[:1]) if "Mutating" in each["kind"]]
    with pytest.raises(subprocess.CalledProcessError) as failed:
        rendered(*SETTINGS)
    assert "katib.logContainerImage needs MutatingAdmissionPolicy" in failed.value.stderr


def test_the_lines_are_in_the_log_and_in_the_file(start: Start, tmp_path: Path) -> None:
    program = start("for each in 1 2 3; do echo $each; done; echo error >&2; exit 3")
    printed, _ = program.communicate(timeout=20)
    assert printed == "1\n2\n3\nerror\n"
    assert (tmp_path / "lines").read_text() == printed
    assert program.returncode == 3


def test_a_program_that_is_started_again_has_its_lines(start: Start, tmp_path: Path) -> None:
    for each in ("first", "second"):
        start(f"echo {each}").communicate(timeout=20)
    assert (tmp_path / "lines").read_text() == "second\n"


def test_sigterm_reaches_the_program_which_may_save_its_work(start: Start) -> None:
    program = start("trap 'echo saved; exit 7' TERM; echo begins; while :; do sleep 0.01; done")
    assert program.stdout is not None
    assert program.stdout.readline() == "begins\n"
    program.send_signal(signal.SIGTERM)
    printed, _ = program.communicate(timeout=20)
    assert (printed, program.returncode) == ("saved\n", 7)


def test_a_program_that_is_killed_ends_as_killed(start: Start) -> None:
    program = start("kill -9 $$")
    program.communicate(timeout=20)
    assert program.returncode == 128 + signal.SIGKILL


def test_a_process_that_outlives_the_program_does_not_keep_the_pod(
    start: Start, tmp_path: Path
) -> None:
    program = start("sleep 1000 & echo ends")
    assert program.wait(20) == 0
    assert (tmp_path / "lines").read_text() == "ends\n"
    os.killpg(program.pid, signal.SIGKILL)
    program.communicate()
