"""Modules that are imported when first used, so that importing a client does not import protobuf."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """A stand-in for the module `name`. Import the module itself under `TYPE_CHECKING`, for its types."""

    def __getattr__(self, name: str) -> Any:  # whatever the module has
        return getattr(importlib.import_module(self.__name__), name)
