"""docs/architecture.md: every file, class and function that it names exists. So does every test in docs/faults.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
NAMED = sorted(
    set(
        re.findall(
            r"`((?:suggest|controller|proto|tests|docs|docs_site|deploy|examples|trial_image|bench)/[\w./*-]*)(?::([\w.]+))?`",
            PAGE,
        )
    )
)


def names_in(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            names |= {f"{node.name}.{each.name}" for each in inner}
    return names


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_everything_on_the_page_exists(path: str, name: str) -> None:
    found = sorted(ROOT.glob(path.rstrip("/")))
    assert found, f"docs/architecture.md names {path}, which does not exist"
    if name:
        assert name in names_in(found[0])


def test_the_page_lists_the_steps_of_a_suggestion_and_of_a_trial() -> None:
    assert len([name for _, name in NAMED if name]) > 20


def test_every_test_that_docs_faults_names_exists() -> None:
    page = (ROOT / "docs/faults.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`(tests/[\w/.]+)`", page))
    names = set(re.findall(r"`(test_\w+\.py)`", page))
    missing = [path for path in paths if not (ROOT / path).exists()]
    missing += [name for name in names if not any((ROOT / "tests").rglob(name))]
    assert len(paths) > 20
    assert missing == []
