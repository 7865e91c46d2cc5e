"""The objective of `minimize` as one file that any image with the same version
of Python can run: a zip application.

`python objective.pyz` is a trial, as `python -m tuner.worker` is on this machine. The archive
brings this package, whose modules for trials import the standard library only, and cloudpickle, so
an image needs neither.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import cloudpickle  # type: ignore[import-untyped]

from tuner.worker import FILE

_MAIN = """\
import os, sys

sys.path.insert(1, os.path.dirname(sys.path[0]))  # modules among the files of the trial
from tuner.worker import run

run()
"""


def archive(needed: bytes) -> bytes:
    """Return the archive for what `tuner.functions` has pickled.

    The same input gives the same bytes.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in (
            ("__main__.py", _MAIN.encode()),
            (FILE, needed),
            *_sources(Path(__file__).parent),
            *_sources(Path(cloudpickle.__file__).parent),
        ):
            file.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _sources(package: Path) -> Iterator[tuple[str, bytes]]:
    for source in sorted(package.rglob("*.py")):
        yield str(source.relative_to(package.parent)), source.read_bytes()
