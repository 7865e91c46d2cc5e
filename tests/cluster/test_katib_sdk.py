"""Katib's SDK, unmodified, against the controller on a real API server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import Installed

PYTHON = Path(__file__).parents[2] / ".venv-katib" / "bin" / "python"
SCRIPT = Path(__file__).with_name("katib_sdk.py")
SETTINGS = ("katib.enabled=true",)


@pytest.fixture
def installed(level_b: ControlPlane, tmp_path: Path) -> Iterator[Installed]:
    made = Installed(level_b, tmp_path, *SETTINGS)
    for plural in ("experiments", "trials", "suggestions"):
        made.kubectl.established(f"{plural}.kubeflow.org")
    try:
        made.start("--katib")
        yield made
    finally:
        made.close()


def sdk(cluster: ControlPlane, namespace: str) -> dict[str, Any]:
    """Run the script, and return what it found."""
    if not PYTHON.exists():
        pytest.skip("`make .venv-katib/stamp` installs Katib's SDK")
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig())}
    done = subprocess.run(
        [PYTHON, SCRIPT, namespace], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_every_call_that_needs_no_log_gets_what_katib_answers(
    installed: Installed, level_b: ControlPlane, namespace: str
) -> None:
    found = sdk(level_b, namespace)
    print(found.pop("first_trial_s"))
    assert "already exists" in found.pop("create_again")
    complete = 'status.conditions.#(type=="Complete")#|#(status=="True")#'
    assert found == {
        "created": True,
        "succeeded": True,
        "running": False,
        "failed": False,
        "conditions": ["Created", "Running", "Succeeded"],
        "defaults": {
            "parallel": 3,
            "distribution": "uniform",
            "collector": "StdOut",
            "strategies": ["max", "max"],
            "success": complete,
        },
        "experiments": ["sdk"],
        "optimal": {"is_value": True, "metrics": ["loss", "score"], "trial": True},
        "trials": 3,
        "details": [["metrics", "name", "parameter_assignments"]] * 3,
        "trial": "Succeeded",
        "suggestion": "Succeeded",
        "tuned": 2,
        "left": ["sdk", "tuned"],
    }
