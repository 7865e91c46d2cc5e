"""Decoded images are cached once, completely or not at all, whatever other processes do and however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from data import UNKNOWN, load
from decoded import decode_once, kept, key_of, locked
from formats import Dataset

from tests.trial.stand_ins import as_binary, stand_in

TRIAL = Path(__file__).resolve().parents[2] / "trial_image"
DATA = stand_in()


def fresh() -> Dataset:
    return Dataset(images=DATA.images.copy(), labels=DATA.labels.copy(), train=DATA.train, name=UNKNOWN)


def running(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(TRIAL)}
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_one_of_several_threads_decodes_and_all_share_the_result(tmp_path: Path) -> None:
    decoding: list[str] = []
    second_began = threading.Event()
    found: list[Dataset] = []

    def decode() -> Dataset:
        decoding.append(threading.current_thread().name)
        assert second_began.wait(20)
        return fresh()

    def one() -> None:
        if decoding:
            second_began.set()
        found.append(decode_once("key", tmp_path, decode))

    threads = [threading.Thread(target=one) for _ in range(3)]
    threads[0].start()
    while not decoding and threads[0].is_alive():
        threads[0].join(0.01)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(decoding) == 1
    assert [np.array_equal(each.images, DATA.images) for each in found] == [True, True, True]


def test_processes_that_start_together_all_get_the_same_images(tmp_path: Path) -> None:
    source = as_binary(tmp_path / "data", DATA)
    code = """if True:
        import sys, zlib
        from pathlib import Path
        from data import load
        data = load(sys.argv[1], verify=False, cache=Path(sys.argv[2]))
        print(type(data.images).__name__, zlib.crc32(data.images), data.labels.sum())"""
    processes = [running(code, source, tmp_path / "kept") for _ in range(3)]
    output = [process.communicate(timeout=60) for process in processes]
    assert len(set(output)) == 1
    assert output[0][0].startswith("memmap ")
    assert output[0][1] == ""
    assert sorted(path.suffix for path in (tmp_path / "kept").iterdir()) == ["", ".lock"]


def test_a_process_killed_while_decoding_does_not_block_others(tmp_path: Path) -> None:
    code = """if True:
        import os, signal, sys
        from pathlib import Path
        from decoded import decode_once
        decode_once("key", Path(sys.argv[1]), lambda: os.kill(os.getpid(), signal.SIGKILL))"""
    process = running(code, tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert kept("key", tmp_path) is None
    assert isinstance(decode_once("key", tmp_path, fresh).images, np.memmap)


def test_a_process_killed_while_writing_leaves_no_entry_that_passes_as_complete(tmp_path: Path) -> None:
    code = """if True:
        import os, signal, sys
        from pathlib import Path
        import numpy as np
        from decoded import decode_once
        from formats import Dataset
        class Deadly:  # to whoever turns it into bytes, when the images are written already
            def __array__(self, *_, **__):
                os.kill(os.getpid(), signal.SIGKILL)
        images = np.zeros((120, 32, 32, 3), np.uint8)
        decode_once("key", Path(sys.argv[1]), lambda: Dataset(images, Deadly(), 100, "half"))"""
    process = running(code, tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("key.*.new/images.npy"))) == 1
    assert kept("key", tmp_path) is None
    assert np.array_equal(decode_once("key", tmp_path, fresh).images, DATA.images)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "key.lock"]


@pytest.mark.parametrize("file", ["images.npy", "labels.npy", "about.json"])
@pytest.mark.parametrize("change", ["cut short", "emptied", "missing", "a folder"])
def test_an_incomplete_entry_is_rebuilt(file: str, change: str, tmp_path: Path) -> None:
    decode_once("key", tmp_path, fresh)
    path = tmp_path / "key" / file
    content = path.read_bytes()
    path.unlink()
    match change:
        case "cut short":
            path.write_bytes(content[:-20])
        case "emptied":
            path.touch()
        case "a folder":
            path.mkdir()
    assert kept("key", tmp_path) is None
    assert np.array_equal(decode_once("key", tmp_path, fresh).images, DATA.images)
    assert kept("key", tmp_path) is not None


def test_a_process_can_keep_using_an_entry_while_another_rebuilds_it(tmp_path: Path) -> None:
    first = decode_once("key", tmp_path, fresh)
    (tmp_path / "key" / "about.json").unlink()
    decode_once("key", tmp_path, fresh)
    assert np.array_equal(first.images, DATA.images)


def test_without_a_writable_cache_the_images_stay_in_memory_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    data = load(str(as_binary(tmp_path, DATA)), verify=False, cache=tmp_path / "file")
    assert np.array_equal(data.images, DATA.images)
    assert not isinstance(data.images, np.memmap)
    assert not data.images.flags.writeable
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"data.py: {tmp_path}/file: File exists; the decoded images stay in memory")
    assert "TUNER_CIFAR10_CACHE" in line


def test_with_a_full_disk_the_images_stay_in_memory_and_no_file_is_left(tmp_path: Path) -> None:
    code = """if True:
        import resource, sys
        from pathlib import Path
        from data import load
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        data = load(sys.argv[1], verify=False, cache=Path(sys.argv[2]))
        print(type(data.images).__name__, len(data.images))"""
    process = running(code, as_binary(tmp_path, DATA), tmp_path / "kept")
    out, err = process.communicate(timeout=60)
    assert out == "ndarray 120\n"
    assert "the decoded images stay in memory" in err
    assert len(err.splitlines()) == 1
    assert [path.suffix for path in (tmp_path / "kept").iterdir()] == [".lock"]


def test_a_read_only_cache_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A container image may contain the cache: it is used without a lock, which could not be taken there."""
    source = as_binary(tmp_path, DATA)
    load(str(source), verify=False, cache=tmp_path / "kept")
    (lock,) = (tmp_path / "kept").glob("*.lock")
    with locked(lock):
        assert isinstance(load(str(source), verify=False, cache=tmp_path / "kept").images, np.memmap)
    assert capsys.readouterr().err == ""


def test_different_contents_have_different_keys(tmp_path: Path) -> None:
    file = tmp_path / "file"
    keys = set()
    for content, changed_s in (
        (b"a" * 300_000, 1),
        (b"a" * 300_000, 2),
        (b"b" + b"a" * 299_999, 2),
        (b"a" * 299_999 + b"b", 2),
    ):
        file.write_bytes(content)
        os.utime(file, (changed_s, changed_s))
        keys.add(key_of([file]))
    assert len(keys) == 4
    assert key_of([file]) in keys
