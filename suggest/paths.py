"""Home directories, which users of containers may not have."""

from __future__ import annotations

from pathlib import Path

from suggest.errors import InvalidArgument


def home() -> Path:
    """Return the home directory, or `/` as Docker does for a user that the system does not know."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def absolute(written: str) -> Path:
    """Return the absolute path. Raises InvalidArgument for the `~` of a user without a home."""
    try:
        return Path(written).expanduser().absolute()
    except RuntimeError as error:
        raise InvalidArgument.at(
            "",
            f"{written}: no home directory is known for {Path(written).parts[0]}; write the path "
            "without ~",
        ) from error
