"""Bridges to the libraries that people train with, one module for each, and none needed by the rest of the package.

A module imports its library when it is imported itself, and names the extra to install if the library is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(module: str, extra: str) -> Iterator[None]:
    """Import the libraries of `module`. Raises ImportError with the command that installs them."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{module} needs {error.name}, which is not installed; pip install 'tuner[{extra}]'"
        ) from error
