"""The hash of an objective's code: what changes it, and what does not."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner.code_hash import code_hash, differs

SCRIPT = '''
import functools
SCALE = 3

def unused():
    return 1

def helper(x):
    return x * 2

class Model:
    RATE = 0.1

    def fit(self, x):
        return x + 1

    @staticmethod
    def check(x):
        return x in {"a", "b", "c", "d"}

def objective(trial, bias=1.0):
    """Return a value."""
    class Local:
        """A class within a function."""
        rate = 1
    squares = [y * y for y in range(10) if y > 2]
    return helper(trial["x"]) + Model().fit(squares[0]) * SCALE + Model.check("a")
'''


# Any: the function that a script defines
def objective_of(script: str) -> Any:
    names = {"__name__": "__main__"}
    exec(compile(script, "script.py", "exec"), names)
    return names["objective"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * 2", "x * 3"),
        ("x + 1", "x - 1"),
        ('"d"}', '"e"}'),
        ("y > 2", "y > 3"),
        ("rate = 1", "rate = 2"),
        ("y * y", "y + y"),
        ('trial["x"]', 'trial["y"]'),
        ("return helper(", "return abs("),
    ],
)
def test_other_code_has_another_hash(old: str, new: str) -> None:
    assert old in SCRIPT
    assert code_hash(objective_of(SCRIPT.replace(old, new))) != code_hash(objective_of(SCRIPT))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Return a value.", "Return the value of the trial."),
        ('    """Return a value."""\n', ""),
        ("A class within", "Another class within"),
        ('        """A class within a function."""\n', ""),
        ("import functools", "import functools\n\n# a comment\n"),
        ("    squares", "    # a comment\n\n    squares"),
        ("return x * 2", "return (\n        x * 2  # twice\n    )"),
        ("SCALE = 3", "SCALE = 4"),
        ("bias=1.0", "bias=2.0"),
        ("return 1\n", "return 2\n"),
    ],
)
def test_comments_docstrings_lines_and_values_do_not_change_the_hash(old: str, new: str) -> None:
    assert old in SCRIPT
    assert code_hash(objective_of(SCRIPT.replace(old, new))) == code_hash(objective_of(SCRIPT))


def test_the_order_of_definitions_does_not_change_the_hash() -> None:
    helper = "def helper(x):\n    return x * 2\n"
    fit = "    def fit(self, x):\n        return x + 1\n\n"
    moved = (
        SCRIPT.replace(helper, "").replace(fit, "").replace("    RATE", f"{fit}    RATE") + helper
    )
    assert moved != SCRIPT
    assert code_hash(objective_of(moved)) == code_hash(objective_of(SCRIPT))


def test_every_process_computes_the_same_hash(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"from tuner.code_hash import code_hash\n{SCRIPT}\nprint(code_hash(objective))\n"
    )
    hashes = {
        subprocess.run(
            [sys.executable, script],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert hashes == {f"{code_hash(objective_of(SCRIPT))}\n"}


def twice(function: Callable[[object], float]) -> Callable[[object], float]:
    @functools.wraps(function)
    def wrapper(trial: object) -> float:
        return 2 * function(trial)

    return wrapper


def test_a_decorated_bound_or_partial_function_has_the_hash_of_its_code() -> None:
    for wrapped in (twice, functools.partial(functools.partial, bias=2.0)):
        one, other = objective_of(SCRIPT), objective_of(SCRIPT.replace("x * 2", "x * 3"))
        assert code_hash(wrapped(one)) != code_hash(wrapped(other))
        assert code_hash(wrapped(one)) == code_hash(wrapped(objective_of(SCRIPT)))


def test_a_function_that_uses_itself_and_an_unassigned_variable_has_a_hash() -> None:
    def recursive(depth: int) -> int:
        return recursive(depth - 1) if depth else later

    assert code_hash(recursive)
    later = 1


def test_a_hash_of_another_version_of_python_or_none_does_not_differ() -> None:
    assert not differs("", "cpython-311 a")
    assert differs("cpython-311 b", "cpython-311 a")
    assert not differs("cpython-311 b", "cpython-311 b")
    assert not differs("cpython-311 b", "cpython-313 a")
    assert code_hash(len) == code_hash(code_hash) == ""
    assert not differs("cpython-311 b", code_hash(len))


PROXIES = """
class Proxy:
    def __getattribute__(self, name):
        raise RuntimeError("outside of a request")

class Comparable(type):
    def __eq__(cls, other):
        return True

class Setting(metaclass=Comparable):
    limit = Proxy()

    def default(self):
        return 1

current = Proxy()

def objective(trial):
    return trial["x"] + Setting().default() if current else 0
"""


def test_objects_that_raise_when_they_are_read_or_hashed_do_not_hide_a_change() -> None:
    first = code_hash(objective_of(PROXIES))
    assert first
    assert code_hash(objective_of(PROXIES)) == first
    assert code_hash(objective_of(PROXIES.replace("return 1", "return 2"))) != first


def test_an_objective_whose_class_cannot_be_read_has_no_hash() -> None:
    class Refusing(type):
        # Any: whatever the class has
        def __getattribute__(cls, name: str) -> Any:
            raise RuntimeError(name)

    class Objective(metaclass=Refusing):
        def __call__(self, trial: object) -> float:
            return 1.0

    assert code_hash(Objective()) == ""
