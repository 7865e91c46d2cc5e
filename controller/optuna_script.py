"""A script that was written for Optuna, read without running it: its call of `study.optimize`, and
what its trials need of it. Pure.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_SEARCHES = ("create_study", "load_study", "optimize")


@dataclass(frozen=True, slots=True)
class OptunaScript:
    """The module of a script.

    searches: its calls of `study.optimize`. studies: of `create_study`. enqueued: of
    `study.enqueue_trial`.
    """

    module: ast.Module
    searches: tuple[ast.Call, ...]
    studies: tuple[ast.Call, ...]
    enqueued: tuple[ast.Call, ...]

    @staticmethod
    def read(text: str, path: str) -> OptunaScript:
        """Raises SyntaxError."""
        module = ast.parse(text, path)

        def calls(name: str) -> tuple[ast.Call, ...]:
            return tuple(each for each in _calls(module) if _called(each) == name)

        return OptunaScript(
            module, calls("optimize"), calls("create_study"), calls("enqueue_trial")
        )

    def without_search(self) -> ast.Module:
        """Return the module without what makes the study, runs it, or uses it: what is left defines
        the objective. Imports and definitions stay.
        """
        names: set[str] = set()  # of studies, of what comes from them, and of what runs them
        for each in self.module.body:
            if isinstance(each, ast.FunctionDef) and _runs_search(each, names):
                names.add(each.name)
        kept: list[ast.stmt] = []
        for each in self.module.body:
            defines = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
            if isinstance(each, defines) or not _runs_search(each, names):
                kept.append(each)
            else:
                names |= {
                    node.id
                    for node in ast.walk(each)
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                }
        return ast.Module(kept, [])


def objective_of(search: ast.Call) -> ast.expr | None:
    """Return the first argument of a call of `study.optimize`."""
    return argument(search, 0, "func")


def argument(call: ast.Call, place: int | None, name: str) -> ast.expr | None:
    """Return an argument by its place, or by its name."""
    if place is not None and place < len(call.args):
        return call.args[place]
    return next((each.value for each in call.keywords if each.arg == name), None)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(tree) if isinstance(each, ast.Call))


def _called(call: ast.Call) -> str:
    """Return the name of the function or method; "" for those of this package."""
    match call.func:
        case ast.Attribute(ast.Name("tuner")):
            return ""
        case ast.Attribute(attr=name) | ast.Name(name):
            return name
    return ""


def _runs_search(tree: ast.AST, names: set[str]) -> bool:
    """Return whether a part of the script calls a study's functions, or uses one of the names."""
    return any(_called(each) in _SEARCHES for each in _calls(tree)) or any(
        isinstance(each, ast.Name) and each.id in names for each in ast.walk(tree)
    )
