"""CIFAR-10 as torchvision stores it: the folder `cifar-10-batches-py`,
whose files have published hashes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from errors import DataError
from torchvision.datasets import CIFAR10

VERIFIED = "CIFAR-10"
UNVERIFIED = "CIFAR-10 (unverified copy)"
CURE = (
    f"--data and CIFAR10_DATA name the folder that holds {CIFAR10.base_folder}, as torchvision "
    "downloads it; --no-verify accepts copies with other contents"
)


class UnverifiedCIFAR10(CIFAR10):
    """Files with CIFAR-10's names and format, and any contents.

    torchvision compares no hash that is None.
    """

    train_list = tuple((name, None) for name, _ in CIFAR10.train_list)
    test_list = tuple((name, None) for name, _ in CIFAR10.test_list)
    meta = {**CIFAR10.meta, "md5": None}  # noqa: RUF012


@dataclass(frozen=True, slots=True)
class Dataset:
    """images: (n, 32, 32, 3) uint8, contiguous; labels: (n,) int64.

    The first `train` images are the training set, the others the test set.
    `name` is printed with every figure.
    """

    images: np.ndarray[Any, np.dtype[np.uint8]]
    labels: np.ndarray[Any, np.dtype[np.int64]]
    train: int
    name: str


def load(folder: str | None, *, verify: bool, test: bool) -> Dataset:
    """Load the training set, and with `test` the test set, from a folder (None: CIFAR10_DATA).

    With `verify`, torchvision compares every file with its published hash before it unpickles any.

    Raises:
        DataError: there is no data in the folder, or it is invalid.
    """
    folder = folder or os.environ.get("CIFAR10_DATA")
    if not folder:
        raise DataError(f"no data: {CURE}")
    dataset = CIFAR10 if verify else UnverifiedCIFAR10
    try:
        parts = [dataset(folder, train=True)]
        if test:
            parts.append(dataset(folder, train=False))
        images = np.concatenate([part.data for part in parts])
        labels = np.concatenate([np.asarray(part.targets, np.int64) for part in parts])
    except MemoryError:
        raise
    except Exception as problem:  # an unverified pickle can raise nearly any exception
        reason = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise DataError(f"{folder}: {reason}; {CURE}") from problem
    return Dataset(
        np.ascontiguousarray(images), labels, len(parts[0]), VERIFIED if verify else UNVERIFIED
    )
