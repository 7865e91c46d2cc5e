"""`tuner.minimize` with real containers:
a function of this process runs in an image without tuner.
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


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the image of the tests has Python 3.11"
)
def test_a_function_runs_in_an_image_without_tuner(
    level_c: RealNode, namespace: str, tmp_path: Path
) -> None:
    images.digits()  # its user is not root, as the restricted profile wants
    level_c.load(images.DIGITS)
    script = SCRIPT.replace("IMAGE", repr(images.DIGITS)).replace("NAMESPACE", repr(namespace))
    (tmp_path / "script.py").write_text(script)
    env = {
        "PATH": "/usr/bin:/bin",
        "KUBECONFIG": str(level_c.kubeconfig(namespace=namespace)),
        "TUNER_STATE_DIR": str(tmp_path / "state"),
    }
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stdout) == (
        0,
        "[('succeeded', 0.0), ('succeeded', 0.0), ('succeeded', 0.0)]\n",
    ), done.stderr
