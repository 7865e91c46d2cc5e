"""Bridges to the libraries that people train with, one module for each,
and none needed by the rest of the package.

A module imports its library when it is imported itself, and names the extra to install if the
library is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from suggest.distribution import install_command


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """Import the libraries of the module that is named as the extra.

    Raises ImportError: One is missing; the message has the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = f"{error.name}".partition(".")[0]
        raise ImportError(
            f"tuner.integrations.{extra} needs {package}, which is not installed; "
            f"install with: {install_command(extra)}"
        ) from error
