"""Write the files that people name: pages, figures, starter files.

They are whole, or they are not there.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def write(path: Path, content: str | bytes) -> None:
    """Write the file, or remove what was written of it.

    Raises OSError, always with the file's name.

    Half a page that a full disk leaves behind could be taken for a whole one.
    """
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        # It was opened, and could not be written.
        if error.filename is None:
            error.filename = str(path)
            # And not a device.
            if path.is_file():
                with suppress(OSError):
                    path.unlink()
        raise
