"""A small substitute for CIFAR-10 in its format: random images, the same number of each class.

So that tests need no download of 170 MB.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCHES = (
    "data_batch_1",
    "data_batch_2",
    "data_batch_3",
    "data_batch_4",
    "data_batch_5",
    "test_batch",
)
Array = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class StandIn:
    """images: (n, 32, 32, 3); labels: (n,). The last sixth is the test set, as in the original."""

    images: Array
    labels: Array


def stand_in(per_class: int = 12, *, seed: int = 0) -> StandIn:
    """Each class has its own color and position under noise, so that it can be learned. per_class:
    a multiple of 6.
    """
    assert per_class % 6 == 0
    draw = np.random.default_rng(seed)
    labels = np.concatenate(
        [draw.permutation(np.repeat(np.arange(10), per_class // 6)) for _ in range(6)]
    )
    images = draw.integers(0, 100, (len(labels), 32, 32, 3))
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 4)
        image[row * 10 : row * 10 + 10, column * 8 : column * 8 + 8, label % 3] += 150
    return StandIn(images.astype(np.uint8), labels.astype(np.uint8))


def write_batches(folder: Path, data: StandIn) -> Path:
    """Write `cifar-10-batches-py` to this folder, and return the folder."""
    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    planes = data.images.transpose(0, 3, 1, 2).reshape(len(data.labels), -1)
    for name, part, labels in zip(
        BATCHES, np.split(planes, 6), np.split(data.labels, 6), strict=True
    ):
        (batches / name).write_bytes(pickle.dumps({"data": part, "labels": labels.tolist()}))
    (batches / "batches.meta").write_bytes(
        pickle.dumps({"label_names": [str(label) for label in range(10)]})
    )
    return folder
