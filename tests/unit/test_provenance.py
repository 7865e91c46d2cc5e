"""When the checkout is read for the records of attempts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from controller.app.provenance import READ_AGAIN_S, AttemptLauncher
from controller.app.surroundings import GitState
from controller.core.model import AttemptState
from controller.folders import ExperimentFolders
from controller.runtime.launch import host_launch
from tests.unit.builders import a_trial, an_experiment, attempt


def commits_of(
    root: Path, commits: Sequence[str], *, at_s: Sequence[float], git_takes_s: float = 0.0
) -> list[object]:
    """Return the recorded commit of each attempt. They begin at these times.

    commits: what git says, one after the other.
    """
    unread, now_s = iter(commits), 0.0

    async def git() -> GitState:
        nonlocal now_s
        now_s += git_takes_s
        return GitState({"commit": next(unread), "folder": "", "dirty": False})

    launcher = AttemptLauncher(
        ExperimentFolders(root),
        "e.yaml",
        "",
        seed=lambda: None,
        build=partial(host_launch, environ={}, interpreter_directory=root),
        git=git,
        monotonic=lambda: now_s,
    )
    found: list[object] = []
    for number, begins_s in enumerate(at_s, start=1):
        now_s = begins_s
        begun = attempt(number, AttemptState.CREATED, trial=12)
        asyncio.run(launcher(an_experiment(), a_trial(12, lr=0.1), [begun]))
        file = launcher.folders.attempt(12, number).root / "provenance.json"
        found.append(json.loads(file.read_text())["git"]["commit"])
    return found


def test_an_attempt_has_the_commit_of_the_time_when_it_began(tmp_path: Path) -> None:
    times = (0.0, READ_AGAIN_S / 2, READ_AGAIN_S, 1.5 * READ_AGAIN_S, 9 * READ_AGAIN_S)
    found = commits_of(tmp_path, ["one", "two", "three"], at_s=times)
    assert found == ["one", "one", "two", "two", "three"]


def test_slow_git_is_asked_less_often(tmp_path: Path) -> None:
    times = (0.0, 2 * READ_AGAIN_S, 18 * READ_AGAIN_S, 22 * READ_AGAIN_S)
    found = commits_of(tmp_path, ["one", "two"], at_s=times, git_takes_s=READ_AGAIN_S)
    assert found == ["one", "one", "one", "two"]
