"""The command in a hint works when it is copied into the same shell."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import called
from tests.e2e.cli import experiment

SCRIPT = Path(sys.executable).parent / "tuner"
TYPED = ".venv/bin/tuner"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a virtual environment whose programs are not on PATH."""
    (tmp_path / ".venv").symlink_to(SCRIPT.parents[1])
    (tmp_path / "experiment.yaml").write_text(experiment(name="tiny"))
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("TUNER_", "XDG_"))
    }
    return {**kept, "PATH": "/usr/bin:/bin", "HOME": str(folder)}


def typed(folder: Path, line: str) -> tuple[int, str, str]:
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env=environment(folder),
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def called_as(program: str, folder: Path, line: str) -> tuple[int, str, str]:
    """Call the command of a line that begins with `program`, which the shell is known to find."""
    typed, words = shlex.split(program), shlex.split(line)
    assert words[: len(typed)] == typed
    done = called.tuner(
        words[len(typed) :], folder=folder, env=environment(folder), program=Path(typed[0])
    )
    return done.returncode, done.stdout, done.stderr


def hint(text: str, after: str) -> str:
    (line,) = (line for line in text.splitlines() if after in line)
    return line.partition(after)[2].strip()


@pytest.mark.parametrize("tuner", [".venv/bin/tuner", ".venv/bin/python -m controller"])
def test_the_hints_of_a_run_work_as_they_are_printed(folder: Path, tuner: str) -> None:
    code, _, err = typed(folder, f"{tuner} run experiment.yaml --state-dir 'my state'")
    assert code == 0, err
    trials = hint(err, "All trials: ")
    assert trials == f"{tuner} get trials tiny --state-dir 'my state'"
    code, out, err = called_as(tuner, folder, trials)
    assert (code, len(out.splitlines())) == (0, 3), err
    code, out, err = typed(folder, f"{tuner} describe tiny --state-dir 'my state'")
    assert code == 0, err
    assert called_as(tuner, folder, hint(out, "see the result with: "))[0] == 0


def test_hints_name_the_namespace_of_an_experiment_whose_name_another_namespace_has(
    folder: Path,
) -> None:
    text = (folder / "experiment.yaml").read_text()
    for namespace in ("one", "two"):
        (folder / f"{namespace}.yaml").write_text(
            text.replace("name: tiny", f"name: tiny, namespace: {namespace}")
        )
        code, _, err = called_as(
            TYPED, folder, f".venv/bin/tuner run {namespace}.yaml --state-dir state"
        )
        assert code == 0, err
    trials = hint(err, "All trials: ")
    assert trials == ".venv/bin/tuner get trials tiny --state-dir state --namespace two"
    code, out, err = called_as(TYPED, folder, trials)
    assert (code, len(out.splitlines())) == (0, 3), err
    code, _, err = called_as(
        TYPED, folder, ".venv/bin/tuner retry one.yaml --failed --state-dir state"
    )
    assert (code, hint(err, "see ")) == (
        6,
        ".venv/bin/tuner get trials tiny --state-dir state --namespace one",
    )
    code, _, err = called_as(
        TYPED,
        folder,
        ".venv/bin/tuner run one.yaml --set spec.budget.failedTrials=50 --state-dir state",
    )
    assert (code, hint(err, "remove the old one with: ")) == (
        6,
        ".venv/bin/tuner delete tiny --state-dir state --namespace one",
    )


def test_the_hint_for_a_changed_file_repeats_its_flags(folder: Path) -> None:
    where = "--state-dir state --storage sqlite:///studies.db"
    run = f".venv/bin/tuner run experiment.yaml {where}"
    assert called_as(TYPED, folder, run)[0] == 0
    code, _, err = called_as(TYPED, folder, f"{run} --set spec.budget.failedTrials=50")
    assert code == 6
    cure = hint(err, "apply them with: ").partition(", or choose")[0]
    assert (
        cure == f".venv/bin/tuner resume experiment.yaml {where} --set spec.budget.failedTrials=50"
    )
    code, _, err = called_as(TYPED, folder, cure)
    assert (code, "revision 2" in err) == (0, True), err


def test_a_state_directory_that_is_a_file_is_an_error(folder: Path) -> None:
    for command in ("get experiments", "get trials tiny", "logs tiny"):
        code, out, err = called_as(
            TYPED, folder, f".venv/bin/tuner {command} --state-dir experiment.yaml"
        )
        assert (code, out) == (7, ""), err
        cure = "name another one with --state-dir or TUNER_STATE_DIR"
        assert f"experiment.yaml is not a directory; {cure}" in err
