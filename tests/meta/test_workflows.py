"""What a pull request runs on GitHub is what `.ci/run` runs here.

`make check-workflows` lints the files.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
HERE = ("run", "cluster", "operators", "install")  # the scripts in .ci


def steps(workflow: Path) -> list[dict[str, object]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def commands(text: str) -> set[str]:
    """Make targets, also several of one call, and scripts of `.ci`."""
    found = set()
    for line in text.splitlines():
        line = "" if line.lstrip().startswith("#") else line.partition(" #")[0]
        found |= set(re.findall(r"(?:^|\s)(\.ci/[a-z]+)", line))
        for words in re.findall(r"(?:^|\s)make((?: -\S+)*(?: [a-z][a-z-]*)+)", line):
            found |= {f"make {word}" for word in words.split() if not word.startswith("-")}
    return found


def run_by(workflow: str) -> set[str]:
    return commands(
        "\n".join(
            str(step.get("run", "")) for step in steps(ROOT / ".github" / "workflows" / workflow)
        )
    )


def test_pull_requests_run_what_the_local_script_runs() -> None:
    here = commands((ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert here - run_by("ci.yaml") == {".ci/operators"}
    assert run_by("weekly.yaml") == {
        ".ci/operators",
        "make soak",
        "make test-lowest",
        "make test-newest",
    }
    assert run_by("ci.yaml") <= here


def test_every_make_target_that_is_called_exists() -> None:
    targets = re.findall(
        r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    here = {
        word
        for name in HERE
        for word in commands((ROOT / ".ci" / name).read_text(encoding="utf-8"))
    }
    called = here.union(*(run_by(workflow.name) for workflow in WORKFLOWS))
    assert {word.removeprefix("make ") for word in called if word.startswith("make ")} <= set(
        targets
    )


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_of_others_are_pinned_by_commit(workflow: Path) -> None:
    used = [str(step["uses"]) for step in steps(workflow) if "uses" in step]
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each)] == []
