"""The CIFAR-10 examples: every file and command on their pages, and real trainings on a small
substitute data set.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from controller.cli.main import main
from tests import forked
from tests.torch_here import needs_torch
from tests.trial.stand_ins import stand_in, write_batches

ROOT = Path(__file__).resolve().parents[2]
CIFAR10 = ROOT / "examples" / "cifar10"
TUNER = Path(sys.executable).parent / "tuner"
PAGES = (CIFAR10 / "README.md", ROOT / "docs" / "cifar10.md")
DOWNLOAD = (
    "import sys; from torchvision.datasets import CIFAR10; CIFAR10(sys.argv[1], download=True)"
)
SMALL = "spec.trial.args=[--no-verify, --device=cpu, --width=2, --epochs=1, --valid-images=20]"


def typed_lines(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [
        line
        for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
    ]


def shown(*pages: Path) -> list[str]:
    """Return every `tuner` command on the pages, as typed in the example's folder."""
    lines = {line for page in pages for line in typed_lines(page) if line.startswith("tuner ")}
    return sorted(line.replace("examples/cifar10/", "") for line in lines)


def tuner(
    *arguments: str | Path, state: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return forked.run_tuner(
        [*arguments, "--state-dir", state], folder=CIFAR10, env=env, within_s=240
    )


def typed(
    words: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """Run a command that starts no process within this one, and return its output."""
    monkeypatch.chdir(CIFAR10)
    code = main([*words, "--state-dir", str(folder)])
    output = capsys.readouterr()
    assert (code, output.err) == (0, "")
    return output.out


@pytest.mark.parametrize("file", ["sweep.yaml", "search.yaml", "distributed.yaml"])
def test_every_file_is_valid(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is valid" in typed(["validate", file], tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("file", [path.name for path in sorted(CIFAR10.glob("*.yaml"))])
@pytest.mark.parametrize("place", ["--set spec.trial.resources.gpu=0 ", "", "--runtime kubernetes"])
def test_the_readme_shows_every_file_in_every_place(file: str, place: str) -> None:
    runs = [command for command in shown(PAGES[0]) if command.startswith(f"tuner run {file}")]
    assert [
        command
        for command in runs
        if place in command and (place or command == f"tuner run {file}")
    ]


def test_runs_shown_in_the_readme_have_distinct_names_within_a_namespace() -> None:
    names = []
    for command in shown(PAGES[0]):
        if command.startswith("tuner run"):
            _, _, file, *rest = shlex.split(command)
            given = [
                word.removeprefix("metadata.name=")
                for word in rest
                if word.startswith("metadata.name=")
            ]
            names.append((*(given or [file]), "kubernetes" in rest))
    assert sorted(set(names)) == sorted(names)


def test_the_pages_name_the_source_of_the_data() -> None:
    for page in PAGES:
        (command,) = (line for line in typed_lines(page) if "download=True" in line)
        assert command == f'python -c "{DOWNLOAD}" $HOME/data'
        assert "export CIFAR10_DATA=$HOME/data" in typed_lines(page)


@pytest.mark.parametrize(
    "command", [command for command in shown(*PAGES) if command.startswith("tuner run")]
)
def test_every_run_shown_on_the_pages_is_valid(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, _, *rest = shlex.split(command)
    if "kubernetes" not in rest:
        assert "is valid" in typed(["validate", *rest], tmp_path, monkeypatch, capsys)
        return
    objects = typed(["run", *rest, "--dry-run=client"], tmp_path, monkeypatch, capsys)
    assert "claimName: cifar10" in objects
    assert "claimName: checkpoints" in objects


@needs_torch
def test_the_sweep_runs_reports_and_trains_its_best_trial_again(tmp_path: Path) -> None:
    data = {"CIFAR10_DATA": str(write_batches(tmp_path / "data", stand_in(per_class=24)))}
    settings = (
        SMALL,
        "spec.trial.resources.gpu=0",
        "spec.parameters.lr=[0.4]",
        "spec.parameters.cutout=[5]",
        "spec.parameters.momentum=[0.9]",
        "spec.parameters.batch=[50]",
        "spec.trial.env.OMP_NUM_THREADS=1",
    )
    overrides = [word for setting in settings for word in ("--set", setting)]
    done = tuner("run", "sweep.yaml", *overrides, state=tmp_path / "s", **data)
    assert done.returncode == 0, done.stderr
    report = tuner("report", "cifar10-sweep", "-o", "json", state=tmp_path / "s")
    trials = json.loads(report.stdout)["trials"]
    assert [(trial["state"], trial["parameters"]["batch"]) for trial in trials] == [
        ("succeeded", 50)
    ]
    (log,) = [
        log for log in tmp_path.glob("s/**/log.txt") if "read now, and only once" in log.read_text()
    ]
    assert (
        json.loads(log.read_text().splitlines()[-1])["of"] == "the test set, read once: 40 images"
    )
    assert "model" in tuner("best", "cifar10-sweep", state=tmp_path / "s").stdout


# the parts are tested separately: tests/trial, tests/contract/test_local_workers.py
@pytest.mark.soak
@needs_torch
def test_two_workers_train_each_network_together(tmp_path: Path) -> None:
    data = {"CIFAR10_DATA": str(write_batches(tmp_path / "data", stand_in(per_class=24)))}
    settings = (
        SMALL,
        "spec.trial.resources.gpu=0",
        "spec.parameters.batch=[50, 100]",
        "spec.budget.trials=1",
    )
    overrides = [word for setting in settings for word in ("--set", setting)]
    done = tuner("run", "distributed.yaml", *overrides, state=tmp_path / "s", **data)
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.glob("s/experiments/*/trials/0/1/log.txt")
    assert json.loads(log.read_text().splitlines()[-1])["machine"]["workers"] == 2
    assert log.with_name("log.1.txt").read_text() == ""
