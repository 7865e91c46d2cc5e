"""Every command and program in the README works."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import called, forked

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# Run by the scripts in .ci, on a clean machine or in a clean environment.
BY_CI = ("make demo", "make test", "pip install tuner-hpo")


def shown(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    return [line.removeprefix("$ ") for block in shown("console") for line in block.splitlines()]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who installed Tuner, with the test's own state directory."""
    path = os.pathsep.join([str(forked.TUNER.parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "TUNER_STATE_DIR": str(tmp_path / "state")}


def test_ci_runs_the_commands_that_need_a_clean_machine() -> None:
    ci = "".join(
        (ROOT / ".ci" / script).read_text(encoding="utf-8") for script in ("run", "install")
    )
    assert [command for command in BY_CI if command in commands() and command not in ci] == []


def test_every_other_command_does_what_the_readme_says(tmp_path: Path, env: dict[str, str]) -> None:
    mine = [
        command for command in commands() if command not in BY_CI and "tuner serve" not in command
    ]
    assert len(mine) >= 10
    for command in mine:
        program, *words = shlex.split(command)
        assert program == "tuner", command
        done = called.run_tuner(words, folder=tmp_path, env=env, within_s=120)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_the_file_is_a_valid_experiment(tmp_path: Path, env: dict[str, str]) -> None:
    (file,) = shown("yaml")
    (tmp_path / "digits.yaml").write_text(file)
    command = ["tuner", "validate", "digits.yaml"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_program_tunes_through_one_server_from_two_processes(
    tmp_path: Path, env: dict[str, str]
) -> None:
    # test_python_api.py has the others
    (program,) = [each for each in shown("python") if "suggest.client" in each]
    assert len(program.strip().splitlines()) <= 15
    (serve,) = [command for command in commands() if command.startswith("tuner serve")]
    server = subprocess.Popen(
        shlex.split(serve.replace("localhost:8765", "localhost:0")),
        cwd=tmp_path,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        (line,) = itertools.islice(
            (each for each in server.stderr if each.startswith("listening on ")), 1
        )
        address = line.split()[2].rstrip(",")
        (tmp_path / "parabola.py").write_text(program.replace("localhost:8765", address))
        both = [
            subprocess.Popen(
                [sys.executable, "parabola.py"],
                cwd=tmp_path,
                env=env,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        output = [process.communicate(timeout=120)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0]
        assert all("Trial(number=" in words for words in output)
    finally:
        server.terminate()
        server.communicate(timeout=20)
    assert server.returncode == 143
