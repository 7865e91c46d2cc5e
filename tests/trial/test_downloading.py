"""`--download` uses torchvision's class and reports its failures. No test uses the network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from downloading import download_into

from tests.torch_here import needs_torch
from tests.trial.stand_ins import as_python, stand_in

DATA = Path(__file__).resolve().parents[2] / "trial_image" / "data.py"
# In place of the real package: it records its arguments in a file, and copies the data from a folder.
TORCHVISION = """
import os, shutil
class CIFAR10:
    def __init__(self, root, download=False):
        with open(os.environ["ASKED"], "a") as asked:
            print(root, download, file=asked)
        print("Downloading ...")
        if os.environ.get("OFFLINE"):
            raise OSError("name resolution failed")
        shutil.copytree(os.environ["FROM"], os.path.join(root, "cifar-10-batches-py"))
"""
NEEDS_AN_OPERATOR = """
import torch
if not hasattr(torch.ops.torchvision, "nms"):
    raise RuntimeError("operator torchvision::nms does not exist")
"""


def lay_out(folder: Path, init: str) -> Path:
    """Create a folder of packages with this torchvision, and beside it the data that it finds."""
    package = folder / "packages" / "torchvision"
    if not package.exists():
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(init)
        (package / "datasets.py").write_text(TORCHVISION)
        as_python(folder, stand_in())
    return package.parent


def data(folder: Path, *arguments: str, init: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "CIFAR10_DATA"}
    env |= {
        "PYTHONPATH": str(lay_out(folder, init)),
        "ASKED": str(folder / "asked"),
        "FROM": str(folder / "cifar-10-batches-py"),
        "TUNER_CIFAR10_CACHE": str(folder / "kept"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(DATA), "--download", "--no-verify", *arguments]
    return subprocess.run(command, env=env | settings, capture_output=True, text=True, timeout=120, check=False)


def test_torchvision_is_called_once_and_its_output_is_not_read_as_metrics(tmp_path: Path) -> None:
    first = data(tmp_path)
    assert (first.returncode, first.stderr) == (0, "Downloading ...\n")
    assert first.stdout.startswith("name: CIFAR-10 (unverified copy)\nimages: 100 train, 20 test\n")
    second = data(tmp_path)
    assert (second.returncode, second.stdout, second.stderr) == (0, first.stdout, "")
    assert (tmp_path / "asked").read_text() == f"{tmp_path}/kept/download True\n"


def test_the_download_goes_to_the_configured_folder(tmp_path: Path) -> None:
    assert data(tmp_path, "--data", str(tmp_path / "here")).returncode == 0
    assert (tmp_path / "asked").read_text() == f"{tmp_path}/here True\n"
    assert (tmp_path / "here" / "cifar-10-batches-py").is_dir()


def test_a_failed_download_gives_one_sentence_with_the_cure(tmp_path: Path) -> None:
    done = data(tmp_path, OFFLINE="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[1:] == [
        f"data.py: {tmp_path}/kept/download: nothing was downloaded (OSError: name resolution failed); "
        "download cifar-10-python.tar.gz by hand and name it with --data"
    ]


@pytest.mark.parametrize(
    ("init", "problem"),
    [
        ("raise ImportError('no such package')", "is not installed (no such package); pip install torchvision"),
        (
            "raise AttributeError('half imported')",
            "was made for another torch than this one (half imported); install a matching pair",
        ),
    ],
)
def test_missing_torchvision_gives_one_sentence_with_the_cure(init: str, problem: str, tmp_path: Path) -> None:
    done = data(tmp_path, init=init)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"data.py: --download goes through torchvision, which {problem}, "
        "or download cifar-10-python.tar.gz by hand and name it with --data\n"
    )


@needs_torch
def test_a_torchvision_built_for_another_torch_still_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in this process, where torch may be imported already: importing it takes seconds."""
    packages = lay_out(tmp_path, NEEDS_AN_OPERATOR)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setenv("FROM", str(tmp_path / "cifar-10-batches-py"))
    download_into(tmp_path / "here")
    assert (tmp_path / "asked").read_text() == f"{tmp_path}/here True\n"
    for name in ("torchvision", "torchvision.datasets"):
        del sys.modules[name]


def test_nothing_is_downloaded_without_the_flag(tmp_path: Path) -> None:
    env = {**os.environ, "CIFAR10_DATA": "", "TUNER_CIFAR10_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, str(DATA)], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.startswith("data.py: no data: ")
    assert list(tmp_path.iterdir()) == []
