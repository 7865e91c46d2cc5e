"""This code continues the work of the code of commit 41f0e1e: a recorded state directory, and a running experiment.

tests/fixtures/state-41f0e1e/record_state.py made the recording.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli import Cli, cli_in, eventually

ROOT = Path(__file__).parents[2]
COMMIT = "41f0e1e"
RECORDED = ROOT / "tests" / "fixtures" / f"state-{COMMIT}"
EXPERIMENTS = ("finished", "paused", "running")


class User(Cli):
    """A command line in the folder of the recorded experiments, with their state directory if a test needs it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        shutil.copytree(RECORDED / "folder", folder, dirs_exist_ok=True)

    def restore(self) -> None:
        state = self.folder / "state"
        shutil.copytree(RECORDED / "state", state)
        for path in state.rglob("*"):
            if path.is_file():
                path.write_text(self.here(path.read_text()))
        for link, target in json.loads((state / "links.json").read_text()).items():
            (state / link).parent.mkdir(exist_ok=True)
            (state / link).symlink_to(target)
        (state / "links.json").unlink()
        for dump in state.glob("*.sql"):
            with closing(sqlite3.connect(dump.with_suffix(".db"))) as database:
                database.executescript(dump.read_text())
            dump.unlink()

    def here(self, text: str) -> str:
        return text.replace("@FOLDER@", str(self.folder))

    def shown(self, name: str) -> Any:
        """Return what the code of that commit printed."""
        return json.loads(self.here((RECORDED / "shown" / f"{name}.json").read_text()))

    def trials_of(self, name: str) -> list[Any]:
        found: list[Any] = self.json("get", "trials", name, "-o", "json")
        return found


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    with cli_in(tmp_path, make=User) as cli:
        assert isinstance(cli, User)
        yield cli


@pytest.fixture
def upgraded(user: User) -> User:
    user.restore()
    return user


@pytest.fixture(scope="module")
def earlier_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of that commit. With TUNER_TEST_HISTORY_REQUIRED=1, the tests fail in a clone without it."""
    archive = subprocess.run(
        ["git", "archive", COMMIT, "suggest", "controller"], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode != 0:
        lacking = f"commit {COMMIT} is not in this clone (git fetch --unshallow): {archive.stderr.decode().strip()}"
        if os.environ.get("TUNER_TEST_HISTORY_REQUIRED"):
            pytest.fail(lacking, pytrace=False)
        pytest.skip(lacking)
    folder = tmp_path_factory.mktemp("earlier")
    (folder / "code.tar").write_bytes(archive.stdout)
    with tarfile.open(folder / "code.tar") as tar:
        tar.extractall(folder, filter="data")
    return folder


def test_lists_show_what_they_showed_before_the_upgrade(upgraded: User) -> None:
    assert {name: upgraded.trials_of(name) for name in EXPERIMENTS} == {
        name: upgraded.shown(name) for name in EXPERIMENTS
    }
    assert upgraded.json("get", "experiments", "-o", "json") == upgraded.shown("experiments")


def test_descriptions_and_logs_are_read_after_the_upgrade(upgraded: User) -> None:
    for word in ("finished", "paused/0", "running", "running/1"):
        code, out, err = upgraded.tuner("describe", word)
        assert (code, err) == (0, ""), word
        assert word.partition("/")[0] in out
    last = upgraded.shown("running")[0]["value"]
    assert upgraded.tuner("logs", "running/0")[1].splitlines()[-1] == f"step=3 score={last}"
    assert upgraded.tuner("logs", "finished/final")[1].count("score=") == 3


def test_a_finished_experiment_prints_its_result_after_the_upgrade(upgraded: User) -> None:
    best = upgraded.shown("experiments")[0]["best"]
    for words in (("run", "finished.yaml"), ("resume", "finished")):
        code, out, err = upgraded.tuner(*words)
        assert code == 0, err
        assert out.splitlines()[0] == f"finished: best score {best['value']:.6g} (trial {best['number']})"
    assert upgraded.json("best", "finished", "-o", "json")["parameters"] == best["parameters"]
    assert upgraded.trials_of("finished") == upgraded.shown("finished")
    assert upgraded.starts() == []


def test_a_finished_experiment_is_extended_after_the_upgrade(upgraded: User) -> None:
    code, _, err = upgraded.tuner("extend", "finished", "--trials", "+2")
    assert code == 0, err
    trials = upgraded.trials_of("finished")
    assert trials[:8] == upgraded.shown("finished")
    assert [trial["number"] for trial in trials] == list(range(10))


def test_a_paused_experiment_resumes_after_the_upgrade(upgraded: User) -> None:
    cured = upgraded.folder / "train.sh"
    cured.write_text('#!/bin/sh\nexec python trial.py "$@"\n')
    cured.chmod(0o755)
    code, _, err = upgraded.tuner("resume", "paused")
    assert code == 0, err
    trials = upgraded.trials_of("paused")
    assert [(trial["state"], trial["value"], len(trial["attempts"])) for trial in trials] == [
        ("succeeded", 0.0, 2),
        ("succeeded", 0.25, 1),
        ("succeeded", 0.5, 1),
    ]
    assert trials[0]["attempts"][0] == upgraded.shown("paused")[0]["attempts"][0]


def test_an_experiment_that_ran_resumes_after_the_upgrade_and_repeats_lost_attempts(upgraded: User) -> None:
    upgraded.let_go()
    code, _, err = upgraded.tuner("resume", "running")
    assert code == 0, err
    before, trials = upgraded.shown("running"), upgraded.trials_of("running")
    assert trials[0] == before[0]
    assert [trial["parameters"] for trial in trials[:3]] == [trial["parameters"] for trial in before]
    assert [(trial["state"], len(trial["attempts"])) for trial in trials] == [
        ("succeeded", 1),
        ("succeeded", 2),
        ("succeeded", 2),
        ("succeeded", 1),
    ]


def test_a_supervisor_and_its_trials_outlive_the_upgrade(user: User, earlier_code: Path) -> None:
    old = subprocess.Popen(
        [sys.executable, "-m", "controller.cli", "run", "running.yaml"],
        cwd=user.folder, env={**user.env, "PYTHONPATH": str(earlier_code)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    user.started.append(old)
    eventually(lambda: len(user.starts()) == 3, within_s=60)  # trial 0 has ended, 1 and 2 are running
    old.kill()
    old.wait()
    supervisor = supervised_by(user)
    if Path("/proc").exists():
        assert code_of(supervisor) == earlier_code
    name = user.json("get", "trials", "running", "-o", "json")[0]["name"].removesuffix("-0")
    new = user.start("resume", "running")
    eventually(lambda: [trial["state"] for trial in user.trials_of("running")[1:3]] == ["running"] * 2)
    assert supervised_by(user) == supervisor
    user.let_go()
    _, err = new.communicate(timeout=60)
    assert new.returncode == 0, err
    trials = user.trials_of("running")
    assert [(trial["state"], len(trial["attempts"])) for trial in trials] == [("succeeded", 1)] * 4
    assert sorted(user.starts()) == [f"{name}-{number} 1" for number in range(4)]


def supervised_by(user: User) -> int:
    (lock,) = (user.folder / "state" / "experiments").glob("*/supervisor.lock")
    pid: int = json.loads(lock.read_bytes())["pid"]
    os.kill(pid, 0)
    return pid


def code_of(supervisor: int) -> Path:
    """Return the folder of the supervisor's code, from its arguments."""
    words = Path(f"/proc/{supervisor}/cmdline").read_bytes().split(b"\0")
    return Path(os.fsdecode(words[-3]))
