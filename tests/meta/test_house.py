"""The rules of the house that a machine can hold, beside those of ruff, mypy and import-linter."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tokenize import COMMENT, ENDMARKER, NL, STRING, generate_tokens

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {
    ROOT / "suggest/v1",
    ROOT / "suggest/katib/v1beta1",
    ROOT / "controller/runtime/local/collectors/tensorboard",
}

# Classes that `import tuner` offers, and those of the service, the controller and the training
# program beside them.
PUBLIC_TWICE = {"Experiment", "Figure", "Infeasible", "Study", "Trial"}


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [
        path
        for path in found
        if not GENERATED & set(path.parents) and "__pycache__" not in path.parts
    ]


def has_a_header(path: Path) -> bool:
    """Read the first token only: parsing all modules takes seconds."""
    with path.open(encoding="utf-8") as file:
        tokens = generate_tokens(file.readline)
        first = next(token for token in tokens if token.type not in (COMMENT, NL))
    if first.type == STRING:
        return bool(ast.literal_eval(first.string).strip())
    return path.name == "__init__.py" and first.type == ENDMARKER


def test_a_module_says_what_it_is_for() -> None:
    found = sources(
        "suggest",
        "controller",
        "tuner",
        "hydra_plugins",
        "trial_image",
        "examples",
        "bench",
        "proto",
        "docs_site",
        "tests",
    )
    assert len(found) > 300
    assert [str(path.relative_to(ROOT)) for path in found if not has_a_header(path)] == []


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in sources("tests") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names)), "pytest imports them by name"


def test_classes_have_names_of_their_own() -> None:
    found = sources("suggest", "controller", "tuner", "trial_image", "hydra_plugins", "docs_site")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in found]
    names = Counter(
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    assert len(names) > 500
    assert {name for name, count in names.items() if count > 1} == PUBLIC_TWICE


PURE = {"all", "any", "isinstance", "len"}

POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[?*+]|\{[\d,]+\})\+")
NOT_A_PATTERN = "/%:@!$&'()*+,;=~"


def test_no_group_of_a_pattern_has_a_possessive_quantifier() -> None:
    """Before Python 3.11.5, as on Debian 12, one that fails stays behind
    what it had tried: `0.5` was read as 5.
    """
    found = sources("suggest", "controller", "tuner", "hydra_plugins", "trial_image")
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in found}
    texts = {
        (path, node.lineno): text.decode(errors="replace")
        if isinstance(text := node.value, bytes)
        else text
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str | bytes)
        and node.value != NOT_A_PATTERN
    }
    assert len(texts) > 1000
    where = [
        (path.name, line) for (path, line), text in texts.items() if POSSESSIVE_GROUP.search(text)
    ]
    assert where == [], "write a plain quantifier, or an atomic group: (?>(?:…)?)"


def test_an_assertion_changes_nothing() -> None:
    """`python -O` leaves assertions out."""
    found = [
        path
        for path in sources("suggest", "controller", "tuner", "hydra_plugins", "trial_image")
        # the contract that tests of other runtimes inherit
        if path != ROOT / "controller/runtime/testing.py"
    ]
    assertions = [
        (path.name, node)
        for path in found
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert len(assertions) > 50
    assert [
        (name, ast.unparse(node.test)) for name, node in assertions if not is_pure(node.test)
    ] == []


def is_pure(condition: ast.expr) -> bool:
    return not any(
        isinstance(node, ast.NamedExpr | ast.Await)
        or (isinstance(node, ast.Call) and ast.unparse(node.func) not in PURE)
        for node in ast.walk(condition)
    )


def test_decisions_are_numbered_without_gaps_in_names_and_titles() -> None:
    files = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    numbers = [int(file.name[:4]) for file in files]
    assert numbers == list(range(1, len(files) + 1))
    titles = [file.read_text(encoding="utf-8").partition("\n")[0] for file in files]
    assert [
        title
        for title, number in zip(titles, numbers, strict=True)
        if not title.startswith(f"# {number}. ")
    ] == []


def test_no_module_breaks_the_import_rules() -> None:
    lint_imports = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [lint_imports, "--no-logo", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
