"""A hash of the code of an objective, by which a stored search notices
that its function has changed.

It covers what the function executes: its instructions with their operands, those of nested
functions, and those of the functions and classes of the same module that it uses by their names.
Comments, docstrings, line numbers, default values and the values of variables do not count, because
they may differ in each run of an unchanged script. So functions in a dict or a list, lambdas as
default values and cached properties do not count, either.
"""

from __future__ import annotations

import dis
import hashlib
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from tuner.worker import functions_of

FILE = "objective.hash"
# What the body of a class sets; the latter since Python 3.13.
_NO_CODE = {"__doc__", "__firstlineno__"}


def code_hash(objective: object) -> str:
    """Return the hash after the version of Python, whose bytecode it is of.

    Return "" without code in Python.

    Also "" for an objective of this package, such as that of Hydra:
    its code changes with each release.
    """
    try:
        return _hash(objective)
    except Exception:
        # Any object that the code uses may raise it. The hash serves a warning only,
        # and must not end a search.
        return ""


def _hash(objective: object) -> str:
    functions = list(functions_of(objective))
    if not functions:
        return ""
    # Below its decorators.
    module = _module(functions[-1])
    if module.startswith("tuner."):
        return ""
    text = "\n".join(_code_lines(objective, module, set()))
    return f"{sys.implementation.cache_tag} {hashlib.sha256(text.encode()).hexdigest()}"


def differs(stored: str, current: str) -> bool:
    """Return whether a stored hash is that of other code.

    False if there is none (""), or one of another Python.
    """
    if not stored or not current:
        return False
    return stored.partition(" ")[0] == current.partition(" ")[0] and stored != current


def _module(function: FunctionType) -> str:
    """Return the module of the code.

    `__module__` of a decorator is that of the function that it wraps.
    """
    return str(function.__globals__.get("__name__"))


# Any: whatever the code uses
def _code_lines(value: Any, module: str, seen: set[int]) -> Iterator[str]:
    """Yield lines about the code of a function, a class or an instance.

    Only code of the module counts. `seen` has the ids of what was described:
    a class need not be hashable. No attribute of an instance is read, since
    proxies and lazy objects load or raise then.
    """
    for function in functions_of(value):
        if _module(function) == module and id(function.__code__) not in seen:
            seen.add(id(function.__code__))
            yield f"function {function.__qualname__}"
            yield from _instructions(function.__code__)
            for used in _used(function):
                yield from _code_lines(used, module, seen)
    owner = value if issubclass(type(value), type) else type(value)
    for base in owner.__mro__:
        if base.__module__ == module and id(base) not in seen:
            seen.add(id(base))
            for _, member in sorted(vars(base).items()):
                yield from _code_lines(_function(member), module, seen)


# Any: what a class has
def _function(member: Any) -> object:
    """Return the function of a class method, a static method or a property."""
    kind = type(member)
    if issubclass(kind, property):
        return member.fget
    return member.__func__ if issubclass(kind, classmethod | staticmethod) else member


def _used(function: FunctionType) -> Iterator[object]:
    """Yield the values of the global names and enclosing variables that the function reads."""
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            # Not assigned yet.
            continue


def _global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
        elif isinstance(instruction.argval, CodeType):
            yield from _global_names(instruction.argval)


def _instructions(code: CodeType) -> Iterator[str]:
    """Yield the instructions, with names and constants in place of their indexes."""
    lines: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_NAME" and instruction.argval in _NO_CODE:
            # The constant.
            lines.pop()
            continue
        lines.append(f"{instruction.opname} {_operand(instruction.argval)}")
    yield from lines


def _operand(value: object) -> str:
    match value:
        case CodeType():
            return "[" + "\n".join(_instructions(value)) + "]"
        case tuple():
            return "(" + ", ".join(map(_operand, value)) + ")"
        # In the order of hashes, which differ between processes.
        case frozenset():
            return "{" + ", ".join(sorted(map(_operand, value))) + "}"
        case _:
            return repr(value)
