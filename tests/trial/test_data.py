"""The data that a trial reads, and its errors. Hashes and formats are torchvision's."""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.torch_here import needs_torch
from tests.trial.stand_ins import stand_in, write_batches

pytestmark = needs_torch
PACK = Path(__file__).resolve().parents[3] / "shared/data/cifar10_jpeg75.npz"
DATA = stand_in()


def test_the_test_set_is_read_only_on_request(tmp_path: Path) -> None:
    from data import UNVERIFIED, load

    folder = write_batches(tmp_path, DATA)
    train = load(str(folder), verify=False, test=False)
    assert (len(train.images), train.train, train.name) == (100, 100, UNVERIFIED)
    both = load(str(folder), verify=False, test=True)
    assert (len(both.images), both.train) == (120, 100)
    assert np.array_equal(both.images, DATA.images)
    assert np.array_equal(both.labels, DATA.labels)
    assert both.images.flags.c_contiguous


def test_the_environment_names_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from data import load

    monkeypatch.setenv("CIFAR10_DATA", str(write_batches(tmp_path, DATA)))
    assert load(None, verify=False, test=False).train == 100


def refused(folder: Path | None, *, verify: bool) -> str:
    from data import load
    from errors import DataError

    with pytest.raises(DataError) as problem:
        load(None if folder is None else str(folder), verify=verify, test=False)
    message = str(problem.value)
    assert "\n" not in message
    assert "CIFAR10_DATA name the folder that holds cifar-10-batches-py" in message
    return message


def test_missing_data_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CIFAR10_DATA", raising=False)
    assert refused(None, verify=True).startswith("no data: ")
    assert refused(tmp_path, verify=True).startswith(f"{tmp_path}: Dataset not found or corrupted")
    assert refused(tmp_path, verify=False).startswith(f"{tmp_path}: Dataset not found or corrupted")


class Hostile:
    """Unpickling this creates a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.folder),)


def test_files_other_than_the_published_ones_are_refused_before_they_are_unpickled(
    tmp_path: Path,
) -> None:
    folder = write_batches(tmp_path, DATA)
    (folder / "cifar-10-batches-py" / "data_batch_1").write_bytes(
        pickle.dumps(Hostile(tmp_path / "was-here"))
    )
    assert "--no-verify accepts copies with other contents" in refused(folder, verify=True)
    assert not (tmp_path / "was-here").exists()


def test_a_truncated_copy_is_reported(tmp_path: Path) -> None:
    folder = write_batches(tmp_path, DATA)
    batch = folder / "cifar-10-batches-py" / "data_batch_5"
    batch.write_bytes(batch.read_bytes()[:-100])
    assert refused(folder, verify=False).startswith(f"{folder}: pickle data was truncated")


def test_the_real_images_match_their_description(tmp_path: Path) -> None:
    from data import load

    from tests.trial.data_pack import read_pack

    if not PACK.is_file():
        pytest.skip(f"no data pack at {PACK}")
    folder = write_batches(tmp_path, read_pack(PACK))
    data = load(str(folder), verify=False, test=True)
    assert hashlib.sha256(data.images).hexdigest() == (
        "5950db2d734da18b1478b8235a822a2c35f8d74c0fd7859f25e64ec0153923f9"
    )
    assert np.bincount(data.labels[: data.train]).tolist() == [5000] * 10
    assert np.bincount(data.labels[data.train :]).tolist() == [1000] * 10
