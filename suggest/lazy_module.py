"""Modules that are imported when first used: those of a package, and gRPC in the clients.

A package that defines `__getattr__ = lazily(__name__)` costs nothing to import: a module of it is
loaded when somebody first uses it as an attribute. So others import the package at their top,
instead of its modules in functions. gRPC, and what imports it, has no package of ours: the clients,
which use it everywhere, have `LazyModule` in its place.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType, ModuleType

# `tuner --help` does without typing, whose import takes longer than this module
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

NO_NAMES: Mapping[str, str] = MappingProxyType({})


class LazyModule(ModuleType):
    """A stand-in for the module `name`.

    Import the module itself under `TYPE_CHECKING`, for its types.
    """

    def __getattr__(self, name: str) -> Any:  # whatever the module has
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)  # so that this is called once for each name
        return value


def lazily(package: str, names: Mapping[str, str] = NO_NAMES) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, for its modules and the `names` that it exports.

    Each name comes from one of the modules.
    """

    def load(name: str) -> Any:  # a module, or whatever it has
        if name in names:
            return getattr(importlib.import_module(f"{package}.{names[name]}"), name)
        try:
            return importlib.import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{package}.{name}":
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None

    return load
