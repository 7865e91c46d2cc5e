"""The forms of CIFAR-10 that the trial reads, and its errors for everything else."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data import JPEG75, KNOWN, UNKNOWN, DataError, load

from tests.trial.stand_ins import StandIn, as_archive, as_binary, as_pack, as_python, stand_in

ROOT = Path(__file__).resolve().parents[2]
PACK = Path(os.environ.get("CIFAR10_DATA") or ROOT.parent / "shared/data/cifar10_jpeg75.npz")
DATA = stand_in()
NOT_VERIFIED = {"verify": False}
Form = Callable[[Path, StandIn], Path]

FORMS: dict[str, Form] = {
    "python version": as_python,
    "python version, as Python 2 wrote it": lambda folder, data: as_python(folder, data, by_python_2=True),
    "folder with the python version in it, as torchvision has it": lambda folder, data: as_python(folder, data).parent,
    "python version, packed": lambda folder, data: as_archive(as_python(folder, data)),
    "binary version": as_binary,
    "folder with the binary version in it": lambda folder, data: as_binary(folder, data).parent,
    "binary version, packed": lambda folder, data: as_archive(as_binary(folder, data)),
    "folder with an archive in it": lambda folder, data: _moved(
        as_archive(as_binary(folder / "a", data)), folder / "b"
    ),
}


def _moved(path: Path, folder: Path) -> Path:
    folder.mkdir()
    path.rename(folder / path.name)
    return folder


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_standard_form_gives_the_same_images(form: Form, tmp_path: Path) -> None:
    source = form(tmp_path / "data", DATA)
    data = load(str(source), verify=False, cache=tmp_path / "kept")
    assert np.array_equal(data.images, DATA.images)
    assert np.array_equal(data.labels, DATA.labels)
    assert (data.train, data.name) == (100, UNKNOWN)


def test_the_images_are_memory_mapped_and_read_only(tmp_path: Path) -> None:
    data = load(str(as_binary(tmp_path, DATA)), verify=False, cache=tmp_path / "kept")
    assert isinstance(data.images, np.memmap)
    assert data.images.flags.c_contiguous
    assert not data.images.flags.writeable
    assert not data.labels.flags.writeable


def test_a_pack_gives_the_images_of_its_jpegs(tmp_path: Path) -> None:
    path, images = as_pack(tmp_path / "pack.npz", DATA)
    data = load(str(path), verify=False, cache=tmp_path / "kept")
    assert np.array_equal(data.images, images)
    assert np.array_equal(data.labels, DATA.labels)
    assert (data.train, data.name) == (100, UNKNOWN)


def test_the_environment_can_name_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIFAR10_DATA", str(as_binary(tmp_path, DATA)))
    assert load(None, verify=False, cache=tmp_path / "kept").train == 100


def test_the_real_pack_matches_its_description(tmp_path: Path) -> None:
    if not PACK.is_file():
        pytest.skip(f"no data pack at {PACK}: CIFAR10_DATA names one")
    data = load(str(PACK), cache=tmp_path)
    assert data.name == JPEG75 == "CIFAR-10 (JPEG q75 copy)"
    assert hashlib.sha256(memoryview(data.images)).hexdigest() == (
        "5950db2d734da18b1478b8235a822a2c35f8d74c0fd7859f25e64ec0153923f9"
    )
    assert np.bincount(data.labels[: data.train]).tolist() == [5000] * 10
    assert np.bincount(data.labels[data.train :]).tolist() == [1000] * 10


def refused(source: Path | str | None, cache: Path, **options: Any) -> str:
    with pytest.raises(DataError) as problem:
        load(None if source is None else str(source), cache=cache, **options)
    message = str(problem.value)
    assert "\n" not in message
    return message


def test_missing_data_is_reported_with_every_way_to_name_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CIFAR10_DATA", raising=False)
    message = refused(None, tmp_path)
    for word in (
        "--data",
        "CIFAR10_DATA",
        "cifar-10-batches-py",
        "cifar-10-batches-bin",
        ".tar.gz",
        "pack",
        "--download",
    ):
        assert word in message


@pytest.mark.parametrize("form", [as_python, as_binary, lambda folder, data: as_pack(folder / "p.npz", data)[0]])
def test_data_other_than_the_published_set_is_refused_even_if_another_process_accepted_it(
    form: Form, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    source = form(tmp_path / "data", DATA)
    first = refused(source, tmp_path / "kept")
    assert "published one is" in first or "pack that is known has" in first
    assert "--no-verify" in first
    assert load(str(source), verify=False, cache=tmp_path / "kept").name != KNOWN
    assert refused(source, tmp_path / "kept") == first


class Hostile:
    """Unpickling this without restrictions creates a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    batches = as_python(tmp_path, DATA)
    batch = {b"data": Hostile(tmp_path / "was-here"), b"labels": [1]}
    (batches / "data_batch_3").write_bytes(pickle.dumps(batch))
    assert "data_batch_3: not read as a batch of CIFAR-10 (it asks for posix.mkdir" in refused(
        batches, tmp_path / "kept", verify=False
    )
    assert not (tmp_path / "was-here").exists()


def pixels(count: int, width: int = 3072) -> np.ndarray[Any, Any]:
    return np.zeros((count, width), np.uint8)


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ([1, 2], "no `data` of shape (n, 3072) and type uint8"),
        ({b"labels": [1]}, "no `data` of shape (n, 3072) and type uint8"),
        ({b"data": pixels(1, 3071), b"labels": [1]}, "no `data` of shape (n, 3072) and type uint8"),
        ({b"data": pixels(2).astype(np.float32), b"labels": [1, 1]}, "no `data` of shape (n, 3072) and type uint8"),
        ({b"data": np.array([None]), b"labels": [1]}, "no `data` of shape (n, 3072) and type uint8"),
        ({b"data": pixels(0), b"labels": []}, "no `data` of shape (n, 3072) and type uint8"),
        ({b"data": pixels(2)}, "no `labels` in it, one for each of its 2 images"),
        ({b"data": pixels(2), b"labels": [1]}, "no `labels` in it, one for each of its 2 images"),
        ({b"data": pixels(2), b"labels": [1, 10]}, "not all its labels are integers from 0 to 9"),
        ({b"data": pixels(2), b"labels": [1, -1]}, "not all its labels are integers from 0 to 9"),
        ({b"data": pixels(2), b"labels": [1, "cat"]}, "not all its labels are integers from 0 to 9"),
    ],
)
def test_a_batch_with_unexpected_contents_is_refused(batch: object, problem: str, tmp_path: Path) -> None:
    batches = as_python(tmp_path, DATA)
    (batches / "test_batch").write_bytes(pickle.dumps(batch, protocol=4))
    message = refused(batches, tmp_path / "kept", verify=False)
    assert message.startswith(f"{batches}/test_batch: ")
    assert problem in message


def shortened(path: Path, by: int = 100) -> Path:
    path.write_bytes(path.read_bytes()[:-by])
    return path


def test_truncated_batches_are_refused(tmp_path: Path) -> None:
    python, binary = as_python(tmp_path, DATA), as_binary(tmp_path, DATA)
    shortened(python / "data_batch_5")
    shortened(binary / "data_batch_5.bin")
    assert "data_batch_5: not read as a batch" in refused(python, tmp_path / "kept", verify=False)
    assert "not a whole number of images of 3073" in refused(binary, tmp_path / "kept", verify=False)
    shortened(binary / "data_batch_5.bin", by=20 * 3073 - 100)
    assert "data_batch_5.bin: 0 bytes are not a whole number" in refused(binary, tmp_path / "kept", verify=False)


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    batches = as_python(tmp_path, DATA)
    (batches / "data_batch_2").unlink()
    (batches / "test_batch").unlink()
    assert f"{batches}: data_batch_2 and test_batch missing" in refused(batches, tmp_path / "kept", verify=False)
    assert "data_batch_2 and test_batch missing in it" in refused(as_archive(batches), tmp_path / "kept", verify=False)


def test_a_label_out_of_range_is_reported(tmp_path: Path) -> None:
    labels = DATA.labels.copy()
    labels[3] = 11
    message = refused(as_binary(tmp_path, StandIn(DATA.images, labels)), tmp_path / "kept", verify=False)
    assert "data_batch_1.bin: image 3 has label 11, and labels are 0 to 9" in message


def test_damaged_and_oversized_archives_are_refused(tmp_path: Path) -> None:
    whole = as_archive(as_binary(tmp_path, DATA))
    content = whole.read_bytes()
    whole.write_bytes(content[: len(content) // 2])
    assert "not a complete archive" in refused(whole, tmp_path / "kept", verify=False)
    whole.write_bytes(content[:1000] + bytes(1000) + content[2000:])
    assert "not a complete archive" in refused(whole, tmp_path / "kept", verify=False)
    whole.write_bytes(b"\x1f\x8bhello")
    assert "not a complete archive" in refused(whole, tmp_path / "kept", verify=False)
    with tarfile.open(whole, "w:gz", compresslevel=1) as archive:
        sparse = tmp_path / "data_batch_1"
        with sparse.open("wb") as file:
            file.truncate((64 << 20) + 1)
        archive.add(sparse, "data_batch_1")
    assert "data_batch_1 has 67108865 bytes, and no batch has over 67108864" in refused(
        whole, tmp_path / "kept", verify=False
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"lens": None}, "lens missing, and a pack has head, scans, lens, labels"),
        (
            {"lens": np.full(120, 9, np.int64)},
            "`lens` is int64 of shape (120,), and a pack has one row of uint16 there",
        ),
        (
            {"head": np.zeros((2, 2), np.uint8)},
            "`head` is uint8 of shape (2, 2), and a pack has one row of uint8 there",
        ),
        ({"lens": np.full(120, 9, np.uint16)}, "120 labels, 120 lengths that add up to 1080"),
        ({"labels": np.full(119, 1, np.uint8)}, "119 labels, 120 lengths"),
        ({"labels": np.full(120, 77, np.uint8)}, "image 0 has label 77, and labels are 0 to 9"),
        ({"labels": np.array([None] * 120)}, "not a complete pack (Object arrays cannot be loaded"),
        ({"head": np.zeros(600, np.uint8)}, "image 0 is not a JPEG of 32x32 pixels"),
    ],
)
def test_a_pack_with_unexpected_contents_is_refused(change: dict[str, Any], problem: str, tmp_path: Path) -> None:
    path, _ = as_pack(tmp_path / "pack.npz", DATA)
    with np.load(path) as pack:
        fields = {**pack, **change}
    np.savez(path, **{name: value for name, value in fields.items() if value is not None})
    message = refused(path, tmp_path / "kept", verify=False)
    assert message.startswith(f"{path}: ")
    assert problem in message


def test_a_truncated_or_changed_pack_is_refused(tmp_path: Path) -> None:
    path, _ = as_pack(tmp_path / "pack.npz", DATA)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert "not a complete pack" in refused(path, tmp_path / "kept", verify=False)
    path.write_bytes(content[:30000] + bytes(1000) + content[31000:])
    assert "not a complete pack (Bad CRC-32" in refused(path, tmp_path / "kept", verify=False)


def test_a_missing_pillow_gives_one_sentence_with_the_cure(tmp_path: Path) -> None:
    path, _ = as_pack(tmp_path / "pack.npz", DATA)
    blocked = (
        "import sys; sys.modules['PIL'] = None; sys.argv = ['data.py', '--no-verify']; from data import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", blocked],
        env={**os.environ, "PYTHONPATH": str(ROOT / "trial_image"), "CIFAR10_DATA": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == (
        f"data.py: {path}: a pack is decoded by Pillow, which is not installed; pip install pillow\n"
    )


def test_missing_unreadable_and_unexpected_data_is_reported_with_its_path(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert refused(tmp_path / "gone", kept) == f"{tmp_path}/gone: No such file or directory; the data must be readable"
    (tmp_path / "photos").mkdir()
    assert "it holds nothing" in refused(tmp_path / "photos", kept)
    for number in range(8):
        (tmp_path / "photos" / f"{number}.png").touch()
    assert "it holds 0.png, 1.png, 2.png, 3.png, 4.png and 3 more" in refused(tmp_path / "photos", kept)
    assert "neither a .tar.gz nor a pack (.npz)" in refused(tmp_path / "photos" / "0.png", kept)
    batches = as_binary(tmp_path, DATA)
    (batches / "test_batch.bin").unlink()
    (batches / "test_batch.bin").mkdir()
    assert f"{batches}/test_batch.bin: Is a directory" in refused(batches, kept)


def test_the_command_prints_what_it_found_and_caches_it(tmp_path: Path) -> None:
    def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, ROOT / "trial_image/data.py", *arguments],
            env={**os.environ, "TUNER_CIFAR10_CACHE": str(tmp_path / "kept")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    source = as_binary(tmp_path, DATA)
    done = command("--data", source, "--no-verify")
    (entry,) = (path for path in (tmp_path / "kept").iterdir() if path.is_dir())
    assert done.stdout.splitlines() == [
        f"name: {UNKNOWN}",
        "images: 100 train, 20 test",
        f"per class: {' '.join(['10'] * 10)} train, {' '.join(['2'] * 10)} test",
        f"sha256: {hashlib.sha256(DATA.images.tobytes()).hexdigest()} of the decoded images",
        f"kept in: {entry}",
    ]
    assert (done.returncode, done.stderr) == (0, "")
    shutil.rmtree(source)
    done = command("--data", source)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"data.py: {source}: No such file or directory; the data must be readable\n"
