"""CIFAR-10 as a pack: all images as JPEG in one .npz file, a ninth of the size of the original files.

The pack contains `head`, the header that all images share; `scans`, the concatenated remainders of the images; `lens`,
their sizes in bytes; and `labels`. The first five sixths are the training set. JPEG is lossy, so figures name the copy
that was used. Pillow decodes the images and is needed for nothing else.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from formats import CURE, UNKNOWN, Array, DataError, Dataset, checked_labels

JPEG75 = "CIFAR-10 (JPEG q75 copy)"
SHA256 = "9c648cde2a4082a45c0348b491806379cf3b4fa1d851a34a00c28ec854bdacd4"
FIELDS = {"head": np.uint8, "scans": np.uint8, "lens": np.uint16, "labels": np.uint8}
END = b"\xff\xd9"  # the end of every JPEG, omitted from the scans


def read_pack(path: Path, *, verify: bool) -> Dataset:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if verify and digest != SHA256:
        raise DataError(f"{path}: its SHA-256 is {digest}, and the pack that is known has {SHA256}; {CURE}")
    fields = _fields(path)
    labels = checked_labels(fields["labels"], str(path))
    return Dataset(
        images=_decoded(path, fields),
        labels=labels,
        train=len(labels) * 5 // 6,
        name=JPEG75 if digest == SHA256 else UNKNOWN,
    )


def _fields(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as pack:
            missing = [name for name in FIELDS if name not in pack]
            if missing:
                raise DataError(f"{path}: {' and '.join(missing)} missing, and a pack has {', '.join(FIELDS)}")
            fields = {name: pack[name] for name in FIELDS}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError) as problem:
        raise DataError(f"{path}: not a complete pack ({problem}); copy it again") from problem
    for name, kind in FIELDS.items():
        if fields[name].dtype != kind or fields[name].ndim != 1:
            description = f"{fields[name].dtype} of shape {fields[name].shape}"
            raise DataError(f"{path}: `{name}` is {description}, and a pack has one row of {np.dtype(kind)} there")
    count, total = len(fields["labels"]), int(fields["lens"].sum(dtype=np.int64))
    if count < 6 or len(fields["lens"]) != count or total != len(fields["scans"]):
        scans = f"{len(fields['lens'])} lengths that add up to {total}, {len(fields['scans'])} bytes of scans"
        raise DataError(
            f"{path}: {count} labels, {scans}; these must agree, and six images are the least; copy it again"
        )
    return fields


def _decoded(path: Path, fields: dict[str, Any]) -> Array:
    """Decode sequentially: Pillow holds the GIL for images this small, so threads would not help."""
    try:
        from PIL import Image
    except ImportError as problem:
        raise DataError(f"{path}: a pack is decoded by Pillow, which is not installed; pip install pillow") from problem
    head, scans = fields["head"].tobytes(), fields["scans"].tobytes()
    images = np.empty((len(fields["lens"]), 32, 32, 3), np.uint8)
    start = 0
    for row, length in enumerate(fields["lens"].tolist()):
        jpeg = head + scans[start : start + length] + END
        start += length
        try:
            # Takes half the time of Image.open, which parses the header in Python before the decoder does.
            images[row] = np.asarray(Image.frombytes("RGB", (32, 32), jpeg, "jpeg", ("RGB", "")))
        except (ValueError, OSError) as problem:
            raise DataError(
                f"{path}: image {row} is not a JPEG of 32x32 pixels ({problem}); copy the pack again"
            ) from problem
    return images
