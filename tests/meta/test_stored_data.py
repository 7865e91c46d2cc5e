"""What lies in a database is read as data: nothing of it is ever unpickled,
evaluated or imported.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "suggest/storage",
    "suggest/server/access",
    "controller/experiment_rows.py",
    "controller/experiment_store.py",
    "controller/experiment_tables.py",
    "controller/journal.py",
)
MODULES = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "importlib",
    "runpy",
    "code",
}
CALLS = {"eval", "exec", "compile", "__import__"}
NAMES = {"PickleType", "unsafe_load", "full_load", "UnsafeLoader", "FullLoader"}


def sources() -> list[Path]:
    found = [
        path
        for part in PARTS
        for path in ([ROOT / part] if part.endswith(".py") else (ROOT / part).rglob("*.py"))
    ]
    return sorted(path for path in found if path.exists())


def test_every_recorded_state_directory_is_present() -> None:
    assert len(sources()) > 15


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_stored_data_is_executed(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                assert not {alias.name.partition(".")[0] for alias in names} & MODULES
            case ast.ImportFrom(module=str(module), names=names):
                assert module.partition(".")[0] not in MODULES
                assert not {alias.name for alias in names} & (NAMES | MODULES)
            case ast.Call(func=ast.Name(id=called)):
                assert called not in CALLS
            case ast.Attribute(attr=name):
                assert name not in NAMES
