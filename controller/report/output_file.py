"""Write the files that people name: pages, figures, starter files.

They are whole, or they are as they were.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import suppress
from pathlib import Path


def write(path: Path, content: str | bytes) -> None:
    """Write the file, which gets its name when it is whole. A pipe or a device is written to.

    Raises OSError, always with the file's name.

    Half a page that a full disk or a kill leaves behind could be taken for a whole one.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _replace(path.resolve(), data)
    except OSError as error:
        error.filename = str(path)
        raise


def _replace(path: Path, data: bytes) -> None:
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            file.write(data)
        if path.exists():
            shutil.copymode(path, partial)
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
