"""Small files that change often, written in place: a kill leaves what stood there or what was to stand there.

One write of less than a page is whole or not at all. The usual way, a file beside it that takes its name, deletes a
file each time, and a file system that has just deleted hundreds looks at each of them before it makes the next.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


def put(path: Path, text: str) -> None:
    """Raises OSError; then it is as it was, or new and empty."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        data = text.encode().ljust(os.fstat(file).st_size)  # nothing of a longer one stays behind it
        if os.write(file, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(file)
