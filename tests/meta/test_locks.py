"""The lock files hold what pyproject.toml asks for, each package by its hashes.

`make lock` writes them.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(\[.*\])?==(?P<version>\S+)( ; .*)? \\$")

# What each was made for: the project with these extras, and these groups.
LOCKS: dict[str, tuple[list[str], list[str]]] = {
    "requirements.lock": (["examples", "kubernetes", "postgres"], ["dev"]),
    "requirements-torch.lock": (["examples", "cifar10"], []),
    "requirements-integrations.lock": (
        [
            "hydra",
            "keras",
            "lightgbm",
            "lightning",
            "mlflow",
            "sklearn",
            "tensorboard",
            "torch",
            "transformers",
            "wandb",
        ],
        ["integrations"],
    ),
    "deploy/requirements.lock": (["cmaes", "kubernetes", "postgres"], []),
}
APART = "docs/requirements.lock"  # an environment without the project


def pins(lock: str) -> dict[str, list[str]]:
    """The versions of each package; several where they depend on Python's."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / lock).read_text(encoding="utf-8").splitlines():
        if pin := PIN.match(line):
            found.setdefault(canonicalize_name(pin["name"]), []).append(pin["version"])
    return found


def asked_for(lock: str) -> list[Requirement]:
    groups = PROJECT["dependency-groups"]
    if lock == APART:
        return [Requirement(line) for line in groups["docs"]]
    extras, more = LOCKS[lock]
    optional = PROJECT["project"]["optional-dependencies"]
    lines = [
        *PROJECT["project"]["dependencies"],
        *(line for extra in extras for line in optional[extra]),
    ]
    return [
        Requirement(line) for line in [*lines, *(line for group in more for line in groups[group])]
    ]


@pytest.mark.parametrize("lock", [*LOCKS, APART])
def test_a_lock_file_satisfies_the_project(lock: str) -> None:
    found = pins(lock)
    missing = [
        f"{wanted}: {found.get(canonicalize_name(wanted.name), 'not locked')}; run make lock"
        for wanted in asked_for(lock)
        if not all(
            each in wanted.specifier for each in found.get(canonicalize_name(wanted.name), ["none"])
        )
    ]
    assert missing == []


@pytest.mark.parametrize("lock", [*LOCKS, APART])
def test_every_locked_package_has_hashes_and_no_address(lock: str) -> None:
    text = (ROOT / lock).read_text(encoding="utf-8")
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if not entry.startswith("#")]
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert "://" not in text


def test_the_lock_files_agree() -> None:
    first, *others = (pins(lock) for lock in LOCKS)
    assert [
        name
        for other in others
        for name in other.keys() & first.keys()
        if other[name] != first[name]
    ] == []
