"""Replace a file at once: after a kill or on a full disk, the old one or the new one is there."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

PRIVATE = 0o600


def replace_file(path: Path, content: str | bytes, *, mode: int | None = None) -> None:
    """Write a file beside `path`, and give it that name when it is whole.

    mode: Its permissions; None: those of the earlier file, or of any new file.

    Raises OSError.
    """
    data = content.encode() if isinstance(content, str) else content
    # A name of its own, since several processes and threads may write the file.
    partial = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(partial, flags, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        if mode is None and path.exists():
            partial.chmod(stat.S_IMODE(path.stat().st_mode))
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
