"""Unpack a data pack of CIFAR-10 into the folder format that torchvision reads.

A pack has all images as JPEG in an .npz file: `head`, the header that all share; `scans`, the rest
of each, concatenated; `lens`, their sizes; and `labels`. JPEG is lossy, so trials read the result
with --no-verify, and figures name the copy: "CIFAR-10 (JPEG q75 copy)".

    python -m tests.trial.data_pack cifar10_jpeg75.npz FOLDER
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from tests.trial.stand_ins import StandIn, write_batches

END = b"\xff\xd9"  # the end of every JPEG, omitted from the scans


def read_pack(path: Path) -> StandIn:
    with np.load(path) as pack:
        head, scans = pack["head"].tobytes(), pack["scans"].tobytes()
        ends = np.cumsum(pack["lens"], dtype=np.int64)
        labels = pack["labels"]
    images = np.empty((len(labels), 32, 32, 3), np.uint8)
    start = 0
    for row, end in enumerate(ends):
        images[row] = np.asarray(Image.open(io.BytesIO(head + scans[start:end] + END)))
        start = end
    return StandIn(images, labels)


if __name__ == "__main__":
    write_batches(Path(sys.argv[2]), read_pack(Path(sys.argv[1])))
