"""The standard CIFAR-10 files: the python and the binary version, as a folder or as the published .tar.gz.

Files are not trusted: pickles are read by an unpickler that can only build arrays of bytes, and contents are checked
before use. Invalid files raise DataError. This module writes nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

KNOWN = "CIFAR-10"
UNKNOWN = "CIFAR-10 (unverified copy)"
CLASSES = 10
PIXELS = 32 * 32 * 3
LARGEST = 64 << 20  # bytes of a batch, twice the real size; protects from archives that would fill the memory
CURE = "--no-verify accepts copies and substitutes without verification"

# MD5, as published in torchvision's CIFAR10 class (torchvision/datasets/cifar.py).
PYTHON = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
# MD5 of the members of cifar-10-binary.tar.gz (itself c32a1d4ab5d03f1284b67883e8d87530, on the data set's own page), as
# published by the loaders of rai-project/dldataset (vision/cifar10.go) and of libtorch tutorials (fetch_cifar10.cmake).
BINARY = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
FOLDERS = {"cifar-10-batches-py": PYTHON, "cifar-10-batches-bin": BINARY}
ARCHIVES = ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz")
Array = np.ndarray[Any, np.dtype[np.uint8]]


class DataError(Exception):
    """Invalid data. The message has the place, the value, the rule and the cure in one sentence."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """images: (n, 32, 32, 3) uint8; labels: (n,) uint8.

    The first `train` images are the training set, the others the test set. `name` is printed with every figure.
    """

    images: Array
    labels: Array
    train: int
    name: str


def batches_in(folder: Path) -> dict[str, str] | None:
    """Return the names and hashes of the version whose batches are in this folder, None if there are none."""
    for hashes in (PYTHON, BINARY):
        if any((folder / name).exists() for name in hashes):
            return hashes
    return None


def read_folder(folder: Path, *, verify: bool) -> Dataset:
    hashes = batches_in(folder)
    assert hashes is not None
    missing = [name for name in hashes if not (folder / name).exists()]
    if missing:
        raise DataError(
            f"{folder}: {' and '.join(missing)} missing, and it takes all of {', '.join(hashes)}; copy it again"
        )
    return _join(((name, (folder / name).read_bytes()) for name in hashes), folder, hashes, verify=verify)


def read_archive(path: Path, *, verify: bool) -> Dataset:
    members: dict[str, bytes] = {}
    try:
        with gzip.open(path) as unpacked:
            with tarfile.open(fileobj=unpacked, mode="r|") as archive:
                for member in archive:
                    name = member.name.rpartition("/")[2]
                    if member.isfile() and (name in PYTHON or name in BINARY):
                        members[name] = _member(archive, member, f"{path}: {name}")
            while unpacked.read(1 << 20):  # read to the end, which has the checksum
                pass
    except (gzip.BadGzipFile, tarfile.TarError, EOFError, zlib.error) as problem:
        raise DataError(f"{path}: not a complete archive ({problem}); copy it again") from problem
    hashes = PYTHON if any(name in PYTHON for name in members) else BINARY
    missing = [name for name in hashes if name not in members]
    if missing:
        raise DataError(f"{path}: {' and '.join(missing)} missing in it, and it takes all of {', '.join(hashes)}")
    return _join(((name, members[name]) for name in hashes), path, hashes, verify=verify)


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo, place: str) -> bytes:
    if member.size > LARGEST:
        raise DataError(f"{place} has {member.size} bytes, and no batch has over {LARGEST}; copy the archive again")
    opened = archive.extractfile(member)
    assert opened is not None  # the member is a regular file
    return opened.read()


def _join(batches: Iterator[tuple[str, bytes]], place: Path, hashes: dict[str, str], *, verify: bool) -> Dataset:
    """Concatenate all batches. Batches with other hashes are refused, or mark the data as an unverified copy."""
    images: list[Array] = []
    labels: list[Array] = []
    hashes_match = True
    for name, content in batches:
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
        hashes_match &= digest == hashes[name]
        if verify and digest != hashes[name]:
            # Raise before any byte is unpickled.
            raise DataError(f"{place}/{name}: its MD5 is {digest}, and the published one is {hashes[name]}; {CURE}")
        parse = unpickled if hashes is PYTHON else records
        planes, classes = parse(content, f"{place}/{name}")
        images.append(planes)
        labels.append(classes)
    planes = np.concatenate(images).reshape(-1, 3, 32, 32)
    return Dataset(
        images=np.ascontiguousarray(planes.transpose(0, 2, 3, 1)),
        labels=np.concatenate(labels),
        train=len(planes) - len(labels[-1]),
        name=KNOWN if hashes_match else UNKNOWN,
    )


def records(content: bytes, place: str) -> tuple[Array, Array]:
    """Read the binary version: per image one byte for the label, then 1,024 bytes each of red, green and blue."""
    if not content or len(content) % (PIXELS + 1):
        raise DataError(
            f"{place}: {len(content)} bytes are not a whole number of images of {PIXELS + 1}; copy it again"
        )
    table = np.frombuffer(content, np.uint8).reshape(-1, PIXELS + 1)
    return table[:, 1:], checked_labels(table[:, 0], place)


def checked_labels(labels: Array, place: str) -> Array:
    if len(labels) and labels.max() >= CLASSES:
        row = int(np.argmax(labels >= CLASSES))
        raise DataError(
            f"{place}: image {row} has label {labels[row]}, and labels are 0 to {CLASSES - 1}; copy it again"
        )
    return np.ascontiguousarray(labels)


class _Type:
    """Replaces numpy.dtype in pickles; records its arguments."""

    def __init__(self, spec: object = None, *_: object) -> None:
        self.spec = spec

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and the like, which do not matter for bytes."""


class _Array:
    """Replaces numpy.ndarray in pickles: records the parts, so that file contents never control NumPy."""

    def __init__(self, *_: object) -> None:
        self.state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def whole(self) -> Array | None:
        """Return the array of (n, 3072) bytes, or None if the file describes anything else."""
        match self.state:
            case (_, (int(count), int(width)), _Type(spec=("u1" | b"u1")), False | 0, bytes(raw)):
                if count > 0 and width == PIXELS and len(raw) == count * width:
                    return np.frombuffer(raw, np.uint8).reshape(count, width)
        return None


def _latin_1(text: object, _encoding: object) -> bytes:
    """Replaces the function by which Python 3 pickles bytes for Python 2."""
    if not isinstance(text, str):
        raise pickle.UnpicklingError("bytes are not written as text")
    return text.encode("latin-1")


class _Unpickler(pickle.Unpickler):
    """Reads lists, dictionaries, text, numbers, and arrays as `_Array`: the real files contain nothing else."""

    def find_class(self, module: str, name: str) -> Any:  # returns a class or a function
        match module, name:
            case "numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct":
                return _Array
            case "numpy", "ndarray":
                return _Array
            case "numpy", "dtype":
                return _Type
            case "_codecs", "encode":
                return _latin_1
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of CIFAR-10 holds")


def unpickled(content: bytes, place: str) -> tuple[Array, Array]:
    """Read the python version, a pickle of {b"data": (n, 3072) uint8, b"labels": n integers, ...}."""
    try:
        batch = _Unpickler(BytesIO(content), encoding="bytes").load()
    except Exception as problem:  # a corrupted pickle can raise nearly any exception
        raise DataError(f"{place}: not read as a batch of CIFAR-10 ({problem}); copy it again") from problem
    # Python 2's text is read as bytes, Python 3's as text.
    data, labels = (
        (batch.get(key.encode(), batch.get(key)) if isinstance(batch, dict) else None) for key in ("data", "labels")
    )
    planes = data.whole() if isinstance(data, _Array) else None
    if planes is None:
        raise DataError(f"{place}: no `data` of shape (n, {PIXELS}) and type uint8 in it; is it a batch of CIFAR-10?")
    if not isinstance(labels, list) or len(labels) != len(planes):
        raise DataError(
            f"{place}: no `labels` in it, one for each of its {len(planes)} images; is it a batch of CIFAR-10?"
        )
    if not all(isinstance(label, int) and 0 <= label < CLASSES for label in labels):
        raise DataError(f"{place}: not all its labels are integers from 0 to {CLASSES - 1}; is it a batch of CIFAR-10?")
    return planes, np.array(labels, np.uint8)
