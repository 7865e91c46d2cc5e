"""The fixtures of the tests of tuner.integrations. `make test-integrations`
runs them; `make test` does not.

Where a library is missing, all of them are skipped with one line; with
TUNER_TEST_INTEGRATIONS_REQUIRED=1 they fail.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli import eventually, processes_of

LIBRARIES = (
    "hydra",
    "keras",
    "lightgbm",
    "lightning",
    "mlflow",
    "nbclient",
    "optuna_integration",
    "pandas",
    "sklearn",
    "tensorboard",
    "torch",
    "torchvision",
    "transformers",
    "wandb",
    "xgboost",
)
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Programs:
    """Runs Python programs in a folder with one state directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            key: value for key, value in os.environ.items() if not key.startswith("TUNER_")
        } | {
            "TUNER_STATE_DIR": str(folder / "state"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",  # several trials share few cores
            "WANDB_SILENT": "true",
            "MPLCONFIGDIR": str(folder),
        }

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*map(str, words)],
            cwd=self.folder,
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str | Path) -> tuple[str, str]:
        """Run a program that must succeed, and return its stdout and stderr."""
        with self.start(*words) as process:
            try:
                out, err = process.communicate(timeout=250)
            finally:
                process.kill()
        assert process.returncode == 0, err
        return out, err

    def script(self, text: str, name: str = "script.py") -> tuple[str, str]:
        (self.folder / name).write_text(text)
        return self.run(sys.executable, name)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    yield Programs(tmp_path)
    eventually(lambda: not processes_of(tmp_path), within_s=30)


@pytest.fixture(autouse=True)
def _libraries() -> None:
    require_libraries()


def require_libraries() -> None:
    """Skip or fail the test, or the module that is being imported, where a library is missing."""
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if not missing:
        return
    what = f"not installed: {', '.join(missing)}; make integration-packages installs them"
    if os.environ.get("TUNER_TEST_INTEGRATIONS_REQUIRED") == "1":
        pytest.fail(what, pytrace=False)
    pytest.skip(what, allow_module_level=True)
