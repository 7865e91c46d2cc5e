"""`tuner.minimize` with real containers:
a function of this process runs in an image without tuner, with parameters and without.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import images
from tests.cluster.realnode import RealNode

SCRIPT = """
import tuner

def objective(trial):
    import os
    trial.report(0, loss=abs(trial["x"]))
    assert os.getuid() == 65532
    return (trial["x"] - 2) ** 2

study = tuner.minimize(
    objective, {"x": tuner.Float(-5, 5)}, trials=3, parallelism=2, name="function", seed=1, progress=False,
    runtime="kubernetes", image=IMAGE, namespace=NAMESPACE,
    spec={"trial": {"imagePullPolicy": "Never", "gracePeriod": "2s"}},
)
print([(one.state, round(one.value - (one.parameters["x"] - 2) ** 2, 9)) for one in study.results()])
"""


NAMING = """
import tuner

def objective(trial):
    return sum(trial.float(f"x{place}", 0, 1) for place in range(3))

study = tuner.minimize(
    objective, trials=2, parallelism=2, name="naming", seed=1, progress=False,
    runtime="kubernetes", image=IMAGE, namespace=NAMESPACE,
    spec={"trial": {"imagePullPolicy": "Never", "gracePeriod": "2s"}},
)
print([round(one.value - sum(one.parameters.values()), 9) for one in study.results()])
"""


pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the image of the tests has Python 3.11"
)


def printed(level_c: RealNode, namespace: str, folder: Path, script: str) -> str:
    """Return what a script prints that searches on the node; it must succeed."""
    images.digits()  # its user is not root, as the restricted profile wants
    level_c.load(images.DIGITS)
    script = script.replace("IMAGE", repr(images.DIGITS)).replace("NAMESPACE", repr(namespace))
    (folder / "script.py").write_text(script)
    env = {
        "PATH": "/usr/bin:/bin",
        "KUBECONFIG": str(level_c.kubeconfig(namespace=namespace)),
        "TUNER_STATE_DIR": str(folder / "state"),
    }
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_function_runs_in_an_image_without_tuner(
    level_c: RealNode, namespace: str, tmp_path: Path
) -> None:
    ended = "[('succeeded', 0.0), ('succeeded', 0.0), ('succeeded', 0.0)]\n"
    assert printed(level_c, namespace, tmp_path, SCRIPT) == ended


def test_a_kubelet_shows_a_running_function_the_parameters_that_it_names(
    level_c: RealNode, namespace: str, tmp_path: Path
) -> None:
    assert printed(level_c, namespace, tmp_path, NAMING) == "[0.0, 0.0]\n"
