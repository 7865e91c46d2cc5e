"""Names that are imported when first used, declared once: by a package for its users, or by a module for itself.

A package whose module defines `__getattr__ = exported(…)` or `submodules(…)` costs nothing to import: what its users
name is loaded when they first use it. So they import the package at the top, and not its modules in functions.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """A stand-in for the module `name`. Import the module itself under `TYPE_CHECKING`, for its types."""

    def __getattr__(self, name: str) -> Any:  # whatever the module has
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)  # so that this is called once for each name
        return value


# Any: a module's __getattr__ has no narrower type.


def exported(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that exports `names`, each from one of its modules."""

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{names[name]}"), name)

    return load


def submodules(package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose modules are its attributes, each imported when first used."""

    def load(name: str) -> Any:
        try:
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{name}":
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None

    return load
