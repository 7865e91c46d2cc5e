"""Open the files that people name on the command line, which may be pipes."""

from __future__ import annotations

import os


def open_without_waiting(path: str, flags: int) -> int:
    """Open for reading, as the `opener` of `open`.

    A named pipe without a writer is empty, and is not waited for. A pipe with a writer, such as
    that of `<(zcat results.csv.gz)`, is read to its end.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    return descriptor
