"""Small substitutes for CIFAR-10 in every form that the trial reads: random images, the same number of each class.

They have the formats of the originals, including pickles of Python 2, so that tests need no download of 170 MB.
"""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
Array = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class StandIn:
    """images: (n, 32, 32, 3); labels: (n,). The last sixth is the test set, as in the original."""

    images: Array
    labels: Array

    @property
    def train(self) -> int:
        return len(self.labels) * 5 // 6


def stand_in(per_class: int = 12, *, seed: int = 0) -> StandIn:
    """Each class has its own color and position under noise, so that it can be learned. per_class: a multiple of 6."""
    assert per_class % 6 == 0
    draw = np.random.default_rng(seed)
    labels = np.concatenate([draw.permutation(np.repeat(np.arange(10), per_class // 6)) for _ in range(6)])
    images = draw.integers(0, 100, (len(labels), 32, 32, 3))
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 4)
        image[row * 10 : row * 10 + 10, column * 8 : column * 8 + 8, label % 3] += 150
    return StandIn(images.astype(np.uint8), labels.astype(np.uint8))


def as_python(folder: Path, data: StandIn, *, by_python_2: bool = False) -> Path:
    """Write `cifar-10-batches-py` to this folder."""
    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name, planes, labels in _batches(data):
        content = _pickled_by_python_2(planes, labels) if by_python_2 else _pickled(planes, labels)
        (batches / name).write_bytes(content)
    return batches


def as_binary(folder: Path, data: StandIn) -> Path:
    """Write `cifar-10-batches-bin` to this folder."""
    batches = folder / "cifar-10-batches-bin"
    batches.mkdir(parents=True)
    for name, planes, labels in _batches(data):
        (batches / f"{name}.bin").write_bytes(np.c_[labels, planes].tobytes())
    return batches


def as_archive(batches: Path) -> Path:
    """Write the .tar.gz of one of these folders beside it."""
    name = {"cifar-10-batches-py": "cifar-10-python.tar.gz", "cifar-10-batches-bin": "cifar-10-binary.tar.gz"}
    path = batches.parent / name[batches.name]
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        archive.add(batches, batches.name)
    return path


def as_pack(path: Path, data: StandIn) -> tuple[Path, Array]:
    """Write a pack; return it and its decoded images, which JPEG changes. Needs Pillow."""
    from PIL import Image

    heads, scans, images = [], [], []
    for image in data.images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=75, subsampling=2)
        head, scan = _cut(file.getvalue())
        heads.append(head)
        scans.append(scan)
        images.append(np.asarray(Image.open(file)))
    assert len(set(heads)) == 1  # the standard's tables for every image
    np.savez(
        path,
        head=np.frombuffer(heads[0], np.uint8),
        scans=np.frombuffer(b"".join(scans), np.uint8),
        lens=np.array([len(scan) for scan in scans], np.uint16),
        labels=data.labels,
    )
    return path, np.stack(images)


def _cut(jpeg: bytes) -> tuple[bytes, bytes]:
    """Return everything up to the end of the scan header, and the scan without the two bytes that end every JPEG."""
    start = jpeg.index(b"\xff\xda")
    (length,) = struct.unpack(">H", jpeg[start + 2 : start + 4])
    end = start + 2 + length
    return jpeg[:end], jpeg[end:-2]


def _batches(data: StandIn) -> list[tuple[str, Array, Array]]:
    planes = data.images.transpose(0, 3, 1, 2).reshape(len(data.labels), -1)
    return list(zip(BATCHES, np.split(planes, 6), np.split(data.labels, 6), strict=True))


def _pickled(planes: Array, labels: Array) -> bytes:
    batch = {b"batch_label": b"a batch", b"labels": labels.tolist(), b"data": planes, b"filenames": [b"a.png"]}
    return pickle.dumps(batch, protocol=4)


def _pickled_by_python_2(planes: Array, labels: Array) -> bytes:
    """Pickle as cPickle did in 2009 with protocol 2: text as bytes, the array's bytes as text."""

    def text(content: bytes) -> bytes:
        short = len(content) < 256
        return (b"U" + struct.pack("<B", len(content)) if short else b"T" + struct.pack("<i", len(content))) + content

    def number(value: int) -> bytes:
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
    )
    kind = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    kind += b"(" + number(3) + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff" + number(0) + b"tb"
    count, width = planes.shape
    state = b"(" + number(1) + number(count) + number(width) + b"\x86" + kind + b"\x89" + text(planes.tobytes()) + b"tb"
    listed = b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + state + text(b"labels") + listed + b"u."
