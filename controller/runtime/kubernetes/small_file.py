"""Small files that change often: what was copied of a log, and a controller's tenure."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def write_in_place(path: Path, text: str) -> None:
    """Rewrite a small file that changes often; a kill leaves the old content or the new.

    One write of less than a page is whole or not at all. The usual way, a second file that is
    renamed over this one, deletes a file each time, and a file system that has just deleted
    hundreds of files checks each of them before it creates the next one.

    Raises:
        OSError: the file keeps its content, or is new and empty.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        # blanks overwrite the rest of a longer text
        data = text.encode().ljust(os.fstat(file).st_size)
        if os.write(file, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)
