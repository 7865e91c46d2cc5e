"""CIFAR-10 for the trials: find, check and decode it once per node; later processes map the result into memory.

Nothing is downloaded unless requested. `python data.py --data PATH` describes and decodes the data, for example when an
image is built.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from decoded import decode_once, default_folder, kept, key_of
from formats import ARCHIVES, FOLDERS, KNOWN, UNKNOWN, DataError, Dataset, batches_in, read_archive, read_folder
from pack import JPEG75, read_pack

__all__ = ["JPEG75", "KNOWN", "UNKNOWN", "DataError", "Dataset", "load"]


def load(source: str | None, *, verify: bool = True, download: bool = False, cache: Path | None = None) -> Dataset:
    """Load the data from a path, or from CIFAR10_DATA if `source` is None.

    The images are read-only and, if they could be cached, memory-mapped.

    Raises:
        DataError: there is no data, or it is invalid.
    """
    folder = cache or default_folder()
    named = source or os.environ.get("CIFAR10_DATA")
    try:
        place = Path(named).expanduser() if named else folder / "download"
        if download:
            from downloading import download_into

            download_into(place)
        elif not named:
            raise DataError(
                "no data: neither --data nor CIFAR10_DATA names a path, and nothing is downloaded unasked; name the "
                f"folder {' or '.join(FOLDERS)}, one that it lies in, its .tar.gz or a pack, or say --download"
            )
        return _found(place, verify=verify, cache=folder)
    except OSError as problem:
        raise DataError(
            f"{problem.filename or named}: {problem.strerror or problem}; the data must be readable"
        ) from problem


def _found(place: Path, *, verify: bool, cache: Path) -> Dataset:
    files, read_files = _recognized(place)
    key = key_of(files)
    decoded = kept(key, cache)
    if decoded is None:
        return decode_once(key, cache, lambda: read_files(verify=verify))
    # The entry was cached without verification: read the source again to report what is wrong.
    return read_files(verify=True) if verify and decoded.name == UNKNOWN else decoded


def _recognized(place: Path) -> tuple[list[Path], Callable[..., Dataset]]:
    """Return the files of a source and the function that reads it."""
    if place.is_dir():
        for folder in (place, *(place / name for name in FOLDERS)):
            hashes = batches_in(folder)
            if hashes is not None:
                return [folder / name for name in hashes if (folder / name).exists()], partial(read_folder, folder)
        for archive in (place / name for name in ARCHIVES):
            if archive.exists():
                return [archive], partial(read_archive, archive)
        inside = sorted(path.name for path in place.iterdir())
        holds = ", ".join(inside[:5]) + (f" and {len(inside) - 5} more" if len(inside) > 5 else "")
        raise DataError(
            f"{place}: neither batches of CIFAR-10 nor {', '.join((*FOLDERS, *ARCHIVES))} lie in it; it holds "
            f"{holds or 'nothing'}; name the folder or the file itself, a pack too"
        )
    with place.open("rb") as file:
        start = file.read(4)
    if start.startswith(b"PK\3\4"):
        return [place], partial(read_pack, place)
    if start.startswith(b"\x1f\x8b"):
        return [place], partial(read_archive, place)
    raise DataError(
        f"{place}: neither a .tar.gz nor a pack (.npz) by its first bytes; is it cut short, or another file?"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="data.py", description="Describe the CIFAR-10 data, and decode it once.")
    parser.add_argument("--data", metavar="PATH", help="a folder, a .tar.gz or a pack; CIFAR10_DATA otherwise")
    parser.add_argument("--no-verify", action="store_true", help="accept copies and substitutes without verification")
    parser.add_argument("--download", action="store_true", help="through torchvision, into PATH or the cache folder")
    chosen = parser.parse_args()
    try:
        data = load(chosen.data, verify=not chosen.no_verify, download=chosen.download)
    except DataError as problem:
        print(f"data.py: {problem}", file=sys.stderr)
        return 1
    train, test = (np.bincount(part, minlength=10) for part in np.split(data.labels, [data.train]))
    kept_in = Path(data.images.filename).parent if isinstance(data.images, np.memmap) and data.images.filename else None
    print(f"name: {data.name}")
    print(f"images: {data.train} train, {len(data.labels) - data.train} test")
    print(f"per class: {' '.join(map(str, train))} train, {' '.join(map(str, test))} test")
    print(f"sha256: {hashlib.sha256(memoryview(data.images)).hexdigest()} of the decoded images")
    print(f"kept in: {kept_in or 'memory alone'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
