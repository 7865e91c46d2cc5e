"""The rules of the house that a machine can hold, beside those of ruff, mypy and import-linter."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "suggest" / "v1"


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if GENERATED not in path.parents and "__pycache__" not in path.parts]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize(
    "path",
    sources("suggest", "controller", "trial_image", "examples", "bench", "proto", "docs_site", "tests"),
    ids=name_of,
)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or (path.name == "__init__.py" and not tree.body), "it needs a header"


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in sources("tests") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names)), "pytest imports them by name"


def test_nobody_imports_whom_they_may_not() -> None:
    lint_imports = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [lint_imports, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
