"""Whatever a pause names as its cure, `tuner resume FILE` accepts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import controller
from controller.spec.document import Change, allowed_in_extension, allowed_in_revision
from controller.spec.native import SPEC

ROOT = Path(controller.__file__).parent
# The modules whose messages become the reason of a failure or a pause, or stand beside it.
SPEAKERS = sorted(
    {
        *(ROOT / "core").glob("*.py"),
        *(ROOT / "runtime").rglob("*.py"),
        *(ROOT / name for name in ("journal.py", "loop.py")),
        *(ROOT / "report" / name for name in ("description.py", "ending.py")),
    }
    # The registry speaks of a file that is refused before it runs.
    - {ROOT / "core" / "katib_keys.py", ROOT / "runtime" / "registry.py"}
)
KEY = re.compile(r"\bspec\.(?:[a-z][A-Za-z]*)(?:\[\{?[\w.]*\}?\])?(?:\.[a-z][A-Za-z]*)*")
# Of a Job, not of the file.
OF_OBJECTS = ("spec.suspend",)
# Named by `tuner extend --set`, which the same message has.
BY_EXTEND = ("spec.parameters", "spec.parameters.NAME")


def texts(path: Path) -> Iterator[str]:
    """Yield the strings of a module that are not docstrings; an f-string with 0 for its values.

    None of a module that names no key: parsing takes long.
    """
    source = path.read_text()
    if "spec." not in source:
        return
    nodes = list(ast.walk(ast.parse(source)))
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        ):
            yield node.value


def named() -> list[str]:
    """Return the keys of the experiment's file; others are of the cluster's objects."""
    found = {key for path in SPEAKERS for text in texts(path) for key in KEY.findall(text)}
    of_file = {
        key for key in found if re.split(r"[.\[]", key)[1] in {known.name for known in SPEC.keys}
    }
    return sorted(of_file - {"spec.constraints", *OF_OBJECTS, *BY_EXTEND})


def change(key: str) -> Change:
    """Return a change of the key. Lists are compared as a whole."""
    above, _, name = key.partition("[0].")
    return Change(above, [{name: "old"}], [{name: "new"}]) if name else Change(key, "old", "new")


def test_resume_accepts_what_a_pause_names() -> None:
    keys = named()
    examples = {"spec.objective.metric", "spec.trial.resources.gpu", "spec.constraints[0].metric"}
    assert examples <= {*keys}
    assert [key for key in keys if not allowed_in_revision(change(key))] == []


@pytest.mark.parametrize("key", BY_EXTEND)
def test_extend_accepts_what_a_refused_point_names(key: str) -> None:
    assert allowed_in_extension(Change(key, "old", "new"))
