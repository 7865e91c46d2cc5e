"""Write the files that people name: pages, figures, starter files.

They are whole, or they are as they were.
"""

from __future__ import annotations

from pathlib import Path

from suggest.whole_file import replace_file


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
            replace_file(path.resolve(), data)
    except OSError as error:
        error.filename = str(path)
        raise
