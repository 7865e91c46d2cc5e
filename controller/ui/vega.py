"""The JavaScript that draws figures, for the page and for reports.

`vl_convert` puts it together in some two seconds, during which it holds the GIL, so another process
does it. The result is kept in the user's cache.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import sys
from contextlib import suppress
from pathlib import Path

from controller.report import output_file
from suggest import paths
from suggest.errors import NotFound

PACKAGE = "vl-convert-python"
_PROGRAM = (
    "import sys; from controller.report import drawing; "
    "sys.stdout.buffer.write(drawing.bundle().encode())"
)


class VegaBundle:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._text = b""
        self._making = asyncio.Lock()

    async def text(self) -> bytes:
        """Return the JavaScript. Raises NotFound if it cannot be made."""
        async with self._making:
            self._text = self._text or await _read_or_make()
            return self._text


async def _read_or_make() -> bytes:
    file = _cache() / f"vega-{importlib.metadata.version(PACKAGE)}.js"
    with suppress(OSError):
        return file.read_bytes()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _PROGRAM,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        text, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise NotFound("the JavaScript of figures could not be put together; stderr has the reason")
    with suppress(OSError):  # then the next process makes it again
        file.parent.mkdir(parents=True, exist_ok=True)
        output_file.write(file, text)
    return text


def _cache() -> Path:
    """Return the user's folder for what can be made again."""
    default = paths.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or default) / "tuner"
