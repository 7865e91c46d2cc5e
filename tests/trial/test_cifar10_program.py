"""The program as trials run it, on a small data set: its output, its ends,
and attempts that resume an earlier one.

The workers of a distributed training are real processes that communicate over loopback.
"""

from __future__ import annotations

import io
import json
import re
import signal
import socket
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torch_here import needs_torch
from tests.trial.fork_server import Child, ForkServer, fork_server
from tests.trial.stand_ins import stand_in, write_batches

pytestmark = needs_torch
TINY = (
    "--no-verify",
    "--recipe=fast",
    "--width=4",
    "--batch=20",
    "--valid-images=20",
    "--device=cpu",
    "--lr=4",
)
LINE = re.compile(
    r"epoch=(\d+) accuracy=(\d\.\d{5}) loss=(\d+\.\d{5}) seconds=[\d.]+ images_per_second=\d+"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return {"CIFAR10_DATA": write_batches(tmp_path_factory.mktemp("data"), stand_in(per_class=24))}


@pytest.fixture(scope="module")
def trials() -> Iterator[ForkServer]:
    with fork_server() as it:
        yield it


def told(lines: list[str]) -> list[tuple[str, ...]]:
    """Return (epoch, accuracy, loss) of each line with metrics."""
    return [found.groups() for line in lines if (found := LINE.fullmatch(line))]


def numbers(lines: list[str]) -> list[tuple[float, ...]]:
    return [tuple(map(float, line)) for line in told(lines)]


def workers(
    trials: ForkServer, folder: Path, *flags: str, size: int = 2, **environment: object
) -> list[Child]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": size, **environment}
    return [
        trials.start(
            *TINY, *flags, log=folder / f"{len(list(folder.iterdir()))}.txt", RANK=rank, **world
        )
        for rank in range(size)
    ]


def test_a_training_prints_one_line_per_epoch_and_a_result(
    tmp_path: Path, data: dict[str, object], trials: ForkServer
) -> None:
    child = trials.start(
        *TINY, "--epochs=2", log=tmp_path / "log", TUNER_CHECKPOINT_DIR=tmp_path, **data
    )
    assert child.wait() == 0, child.lines
    *lines, last = child.lines
    assert [epoch for epoch, _, _ in told(lines)] == ["1", "2"]
    assert len(lines) == 2
    result = json.loads(last)
    numbers_of_it = {name for name, value in result.items() if isinstance(value, int | float)}
    assert numbers_of_it == {"epoch", "accuracy", "loss"}, "the tuner takes them for measurements"
    assert result["data"] == "CIFAR-10 (unverified copy)"
    assert (result["of"], result["training"]["images"]) == ("20 held-out images", 180)
    assert set(result["seconds"]) >= {
        "imports",
        "context",
        "data",
        "training",
        "evaluation",
        "total",
    }


def test_the_final_run_trains_on_all_data_and_reads_the_test_set_once_and_saves_a_model(
    tmp_path: Path, data: dict[str, object], trials: ForkServer
) -> None:
    flags = ("--epochs=2", "--final", "--tta")
    child = trials.start(
        *TINY, *flags, log=tmp_path / "log", TUNER_OUTPUT_DIR=tmp_path / "output", **data
    )
    assert child.wait() == 0, child.lines
    first, said, last, result = child.lines
    assert re.fullmatch(r"epoch=1 train_loss=\S+ seconds=\S+ images_per_second=\S+", first)
    assert said == "the test set is read now, and only once: 40 images"
    assert LINE.fullmatch(last)
    found = json.loads(result)
    assert (found["of"], found["training"]["images"]) == ("the test set, read once: 40 images", 200)
    assert found["model"] == str(tmp_path / "output" / "model.pt")
    assert 0 <= found["accuracySixViews"] <= 1


def test_the_final_model_of_two_workers_is_saved_where_it_outlives_a_pod(
    tmp_path: Path, data: dict[str, object], trials: ForkServer
) -> None:
    where = {
        "TUNER_OUTPUT_DIR": tmp_path / "output",
        "TUNER_CHECKPOINT_DIR": tmp_path / "kept",
        **data,
    }
    (tmp_path / "logs").mkdir()
    both = workers(trials, tmp_path / "logs", "--epochs=0.5", "--final", "--sync-bn", **where)
    assert [child.wait() for child in both] == [0, 0], [child.lines for child in both]
    assert json.loads(both[0].lines[-1])["model"] == str(tmp_path / "output" / "model.pt")
    assert sorted(file.name for file in (tmp_path / "kept").iterdir()) == [
        "checkpoint.pt",
        "model.pt",
    ]


def test_a_failed_export_loses_the_model_but_not_the_result(
    tmp_path: Path, data: dict[str, object], trials: ForkServer
) -> None:
    (tmp_path / "file").touch()
    flags, where = ("--epochs=0.5", "--final"), {"TUNER_OUTPUT_DIR": tmp_path / "file" / "folder"}
    child = trials.start(*TINY, *flags, log=tmp_path / "log", **where, **data)
    assert child.wait() == 1
    *_, result, sentence = child.lines
    assert "accuracy" in json.loads(result)
    assert "model" not in json.loads(result)
    assert sentence.startswith(
        "cifar10.py: the training has ended well, but its model is not exported: [Errno 20]"
    )


def test_sigterm_ends_a_training_at_once_and_the_next_attempt_ends_as_an_uninterrupted_one(
    tmp_path: Path, data: dict[str, object], trials: ForkServer
) -> None:
    def start(name: str, folder: str, end_at: str = "") -> Child:
        where = {"TUNER_CHECKPOINT_DIR": tmp_path / folder}
        return trials.start(
            *TINY, "--epochs=6", log=tmp_path / name, end_at=end_at, **where, **data
        )

    stopped, whole = start("stopped", "a", end_at="epoch=3 "), start("whole", "b")
    assert stopped.wait() == 143
    assert [epoch for epoch, _, _ in told(stopped.lines)] == ["1", "2", "3"]
    assert len(stopped.lines) == 3
    resumed = start("resumed", "a")
    assert (resumed.wait(), whole.wait()) == (0, 0)
    assert told(resumed.lines) == told(whole.lines)
    ends = [tensors(tmp_path / folder / "checkpoint.pt") for folder in "ab"]
    assert len(ends[0]) > 20
    assert json.loads(resumed.lines[-1])["training"]["resumedAfterEpoch"] == 2, (
        "the third was said and not yet kept"
    )
    assert ends[0] == ends[1], "to the last bit"


def tensors(checkpoint: Path) -> list[bytes]:
    """Return the tensors' bytes of a file with one line and torch's zip format,
    which has them in `data`.
    """
    with zipfile.ZipFile(io.BytesIO(checkpoint.read_bytes().partition(b"\n")[2])) as kept:
        return [kept.read(name) for name in sorted(kept.namelist()) if "/data/" in name]


def test_a_loss_that_is_not_finite_is_infeasible(
    tmp_path: Path, data: dict[str, object], trials: ForkServer
) -> None:
    flags = ("--recipe=sweep", "--lr=1000", "--momentum=0.99", "--batch-norm=false", "--epochs=9")
    child = trials.start(*TINY, *flags, log=tmp_path / "log", **data)
    assert child.wait() == 42
    assert re.match(
        r"the loss is no longer finite in epoch \d: --lr 1000 is too large with", child.lines[-1]
    )


@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        (
            ("--batch=181",),
            42,
            "--batch 181 is larger than the 180 training images; use at most 180",
        ),
        (
            ("--train-images=181",),
            2,
            "cifar10.py: --train-images 181 and --valid-images 20 are more than the 200 images",
        ),
        (
            ("--device=gpu",),
            2,
            "cifar10.py: --device gpu is not allowed; it is auto, cpu, cuda or cuda:N",
        ),
        (("--data=/nothing/here",), 1, "cifar10.py: /nothing/here: "),
    ],
)
def test_an_error_is_reported_in_one_sentence(
    flags: tuple[str, ...],
    code: int,
    sentence: str,
    tmp_path: Path,
    data: dict[str, object],
    trials: ForkServer,
) -> None:
    child = trials.start(*TINY, *flags, log=tmp_path / "log", **data)
    assert child.wait() == code
    (line,) = child.lines
    assert line.startswith(sentence)


def test_every_worker_prints_why_the_trial_is_infeasible(
    tmp_path: Path, data: dict[str, object], trials: ForkServer
) -> None:
    where = {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 9}
    child = trials.start(*TINY, "--batch=181", log=tmp_path / "log", **where, **data)
    assert child.wait() == 42
    assert child.lines == ["--batch 181 cannot be shared by 2 workers; use a multiple of 2"]


def test_a_requested_gpu_that_is_missing_is_an_error(
    tmp_path: Path, data: dict[str, object], trials: ForkServer
) -> None:
    child = trials.start(
        *TINY, "--device=cuda", log=tmp_path / "log", CUDA_VISIBLE_DEVICES="", **data
    )
    assert child.wait() == 1
    assert re.match(
        r"cifar10.py: --device cuda: torch \S+ finds no GPU here \(.*\); use --device cpu",
        child.lines[-1],
    )


def test_two_workers_train_the_same_network_as_one_with_the_same_batches(
    tmp_path: Path, data: dict[str, object], trials: ForkServer
) -> None:
    flags = ("--epochs=1.2", "--sync-bn")
    alone = trials.start(*TINY, *flags, log=tmp_path / "alone", **data)
    both = workers(trials, tmp_path, *flags, **data)
    assert [child.wait() for child in (alone, *both)] == [0, 0, 0], [child.lines for child in both]
    for mine, its in zip(numbers(both[0].lines), numbers(alone.lines), strict=True):
        assert mine == pytest.approx(its, abs=1e-4)
    assert both[1].lines == [], "only the first says anything"
    assert json.loads(both[0].lines[-1])["machine"]["workers"] == 2


def test_a_lost_worker_ends_the_other_and_the_next_attempt_continues(
    tmp_path: Path, data: dict[str, object], trials: ForkServer
) -> None:
    kept = {"TUNER_CHECKPOINT_DIR": tmp_path / "checkpoint", **data}
    flags = ("--epochs=9999", "--train-images=40")
    first, second = workers(trials, tmp_path, *flags, **kept)
    first.until("epoch=2")
    second.send(signal.SIGKILL)
    assert (second.wait(), first.wait()) == (-signal.SIGKILL, 75)
    assert re.match(
        r"cifar10.py: a worker of 2 was lost \(\w.*\); rank 0 ends too", first.lines[-1]
    )
    again = workers(trials, tmp_path, *flags, **kept)
    # without the message and a line that may not be in the checkpoint
    kept_lines = first.lines[:-2]
    again[0].until(f"epoch={len(kept_lines) + 3} ")
    for child in again:
        child.send(signal.SIGTERM)
    assert {child.wait() for child in again} <= {143, 75}, (
        "the one may see the other go before it is told itself"
    )
    assert again[0].lines[: len(kept_lines)] == kept_lines
    assert [int(epoch) for epoch, _, _ in told(again[0].lines)] == list(
        range(1, len(again[0].lines) + 1)
    )


def test_workers_with_different_configurations_are_refused(
    tmp_path: Path, data: dict[str, object], trials: ForkServer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": server.getsockname()[1]}
    for other, size, what in (("--seed=2", 2, "parameters"), ("--seed=1", 4, "world size")):
        ranks = [
            trials.start(
                *TINY,
                seed,
                log=tmp_path / f"{what}{rank}",
                RANK=rank,
                WORLD_SIZE=its_size,
                **world,
                **data,
            )
            for rank, seed, its_size in ((0, "--seed=1", 2), (1, other, size))
        ]
        assert [child.wait() for child in ranks] == [2, 2]
        for child in ranks:
            (line,) = child.lines
            assert f"the workers differ in their {what}: " in line
            assert line.endswith("start all with the same command and the same data")


def test_the_wait_for_a_missing_worker_ends_at_its_timeout(
    tmp_path: Path, data: dict[str, object], trials: ForkServer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        world = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": server.getsockname()[1],
            "WORLD_SIZE": 2,
            "RANK": 0,
        }
    first = trials.start(*TINY, "--join-seconds=1", log=tmp_path / "log", **world, **data)
    assert first.wait() == 75
    assert first.lines[-1] == "cifar10.py: rank 1 of 2 did not join within 1 s; rank 0 ends"
