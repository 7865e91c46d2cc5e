"""docs/architecture.md: every file, class and function that it names exists.

So does every test in docs/faults.md.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from itertools import permutations
from pathlib import Path

from docs_site.modules import rewritten

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
ROOTS = (
    "bench",
    "controller",
    "deploy",
    "docs",
    "docs_site",
    "examples",
    "hydra_plugins",
    "proto",
    "suggest",
    "tests",
    "trial_image",
    "tuner",
)
# `path:name`, or `path` followed by its names: `path`: `one`, `other`.
PATH = r"`((?:[\w.*-]+/)[\w./*-]*)(?::([\w.]+))?`((?:(?::|,| or) `[A-Za-z_][\w.]*`(?![\w/]))*)"
FILE = r"`([\w.-]*\.(?:py|js|go|md|proto|toml|importlinter))`"
FILLERS = {
    "a",
    "an",
    "the",
    "s",
    "of",
    "to",
    "in",
    "or",
    "and",
    "how",
    "what",
    "which",
    "when",
    "that",
    "its",
}


def named() -> list[tuple[str, str]]:
    """Return each path on the page with each name in it, or with "" where none is given."""
    found: set[tuple[str, str]] = set()
    for path, name, after in re.findall(PATH, PAGE):
        names = re.findall(r"`([\w.]+)`", after) if after.startswith(":") else []
        found |= {(path, each) for each in ([name] if name else names)} or {(path, "")}
    return sorted(found)


@functools.cache
def names_in(path: Path) -> set[str]:
    """Return what a module defines, methods as `Class.method`; of other files,
    the words in them.
    """
    if path.suffix != ".py":
        return set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef():
                inner = (
                    each
                    for each in node.body
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                )
                names |= {node.name} | {f"{node.name}.{each.name}" for each in inner}
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.Assign():
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(name)):
                names.add(name)
    return names


def rows() -> list[list[str]]:
    """Return the cells of the tables of changes."""
    lines = PAGE.partition("## Where to change what\n")[2].partition("\n## ")[0].splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in lines
        if line.startswith("| ")
    ]
    return [row for row in cells if row[0] not in ("to …", "---")]


def test_everything_on_the_page_exists() -> None:
    missing = []
    for path, name in named():
        found = sorted(ROOT.glob(path.rstrip("/")))
        if not found or (name and name not in names_in(found[0])):
            missing.append(f"{path}:{name}")
    assert missing == []


def test_a_file_without_its_folder_is_the_only_one_of_its_name() -> None:
    count = Counter(path.name for root in ROOTS for path in (ROOT / root).rglob("*.*"))
    # A file of the root is named with its whole path.
    count.update({path.name: 1 - count[path.name] for path in ROOT.glob("*.*")})
    names = set(re.findall(FILE, PAGE))
    assert {name: count[name] for name in names if count[name] != 1} == {}


def test_no_change_has_two_rows() -> None:
    words = [(row[0], set(re.findall(r"[a-z]+", row[0].lower())) - FILLERS) for row in rows()]
    assert [
        (one, other) for (one, few), (other, many) in permutations(words, 2) if few <= many
    ] == []


def test_every_row_of_changes_says_how_many_files_it_takes() -> None:
    assert len(rows()) > 50
    assert [row for row in rows() if len(row) != 3 or not re.match(r"\d+\b", row[2])] == []


def test_the_page_lists_the_steps_of_a_suggestion_and_of_a_trial() -> None:
    _, _, steps = PAGE.partition("## The life of a suggestion\n")
    assert len(re.findall(r"`[\w/]+\.py:[\w.]+`", steps)) > 20


def test_every_test_that_docs_faults_names_exists() -> None:
    page = (ROOT / "docs/faults.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`(tests/[\w/.]+)`", page))
    names = set(re.findall(r"`(test_\w+\.py)`", page))
    missing = [path for path in paths if not (ROOT / path).exists()]
    missing += [name for name in names if not any((ROOT / "tests").rglob(name))]
    assert len(paths) > 20
    assert missing == []


def test_the_page_lists_every_module_with_its_purpose() -> None:
    assert rewritten(PAGE) == PAGE, "run: python -m docs_site.modules docs/architecture.md"
