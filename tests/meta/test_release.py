"""What a release promises stands in several files: they agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

from suggest.distribution import NAME, VERSION

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pythons() -> list[str]:
    return re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))


def test_the_version_stands_in_one_place() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert PROJECT["name"] == NAME


def test_the_changelog_has_the_version() -> None:
    assert f"\n## {VERSION}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_pull_requests_test_every_python_that_is_supported() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yaml").read_text(encoding="utf-8"))[
        "jobs"
    ]
    assert jobs["test"]["strategy"]["matrix"]["python"] == pythons()


def test_the_support_policy_names_every_python() -> None:
    page = (ROOT / "docs" / "support.md").read_text(encoding="utf-8")
    assert set(pythons()) <= set(re.findall(r"3\.\d+", page))


def test_the_oldest_python_is_the_one_that_is_required() -> None:
    assert PROJECT["requires-python"] == f">={pythons()[0]}"
