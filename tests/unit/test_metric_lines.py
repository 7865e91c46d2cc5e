"""Lines as libraries and people print them: what is read, at which step,
and what of it reaches the store.

The recordings are real output, made by `tests/fixtures/metric_lines/record_metric_lines.py`.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from controller.core.metrics import MAX_NAMES, LogReader, MetricReading
from controller.core.model import ExperimentObjective, MetricsRule
from suggest.study import Direction, ValueRule

RECORDINGS = Path(__file__).parents[1] / "fixtures" / "metric_lines"


def a_reader(
    metric: str = "accuracy", *, value: str = "last", step: str = "", start: int = 0
) -> LogReader:
    return LogReader(
        MetricsRule(step),
        ExperimentObjective(metric, Direction.MAXIMIZE, ValueRule(value)),
        start=start,
    )


def read(
    *lines: str, metric: str = "accuracy", step: str = "", start: int = 0
) -> list[tuple[str, int, float]]:
    reader = a_reader(metric, step=step, start=start)
    readings = reader.feed("".join(f"{line}\n" for line in lines).encode()) + reader.finish()
    return [(r.metric, r.step, r.value) for r in readings]


def curve(log: str | bytes, metric: str, *, start: int = 0) -> dict[int, float]:
    """Return what the store keeps of a metric: the last reading of each step."""
    reader = a_reader(metric, start=start)
    readings = reader.feed(log.encode() if isinstance(log, str) else log) + reader.finish()
    kept: dict[int, float] = {}
    for reading in readings:
        if reading.metric == metric:
            kept[reading.step] = reading.value
    return kept


# The epochs' validation metric of each recording, and what else people optimize there.
CURVES = [
    ("keras-verbose1-3.15.1", "val_accuracy", {1: 0.7656, 2: 0.7969, 3: 0.875}),
    ("keras-verbose1-3.15.1", "loss", {1: 0.6388, 2: 0.5075, 3: 0.4465}),
    ("keras-verbose2-3.15.1", "val_accuracy", {1: 0.7656, 2: 0.7969, 3: 0.875}),
    ("keras-verbose2-3.15.1", "loss", {1: 0.6388, 2: 0.5075, 3: 0.4465}),
    ("transformers-4.57.6", "eval_accuracy", {1: 0.5625, 2: 0.875, 3: 0.875}),
    (
        "transformers-4.57.6",
        "eval_loss",
        {1: 0.6825713515281677, 2: 0.6410142183303833, 3: 0.6147875189781189},
    ),
    (
        "transformers-4.57.6",
        "loss",
        {1: 0.6936, 2: 0.6915, 3: 0.6789, 4: 0.6635, 5: 0.646, 6: 0.6281},
    ),
    ("transformers-5.23.0", "eval_accuracy", {1: 0.5625, 2: 0.875, 3: 0.875}),
    ("transformers-5.23.0", "eval_loss", {1: 0.6826, 2: 0.641, 3: 0.6148}),
    (
        "transformers-5.23.0",
        "loss",
        {1: 0.6936, 2: 0.6915, 3: 0.6789, 4: 0.6635, 5: 0.646, 6: 0.6281},
    ),
    ("lightning-tqdm-2.6.6", "val_acc", {0: 0.766, 1: 0.828, 2: 0.875}),
    ("lightning-tqdm-2.6.6", "val_loss", {0: 0.639, 1: 0.57, 2: 0.48842301964759827}),
    ("lightning-tqdm-2.6.6", "test/acc", {2: 0.875}),
    ("lightning-rich-2.6.6", "val_acc", {2: 0.875}),  # it draws once, at the end
    ("lightning-rich-2.6.6", "test/acc", {2: 0.875}),
    ("lightning-plain-2.6.6", "val_acc", {0: 0.766, 1: 0.828, 2: 0.875}),
    ("lightning-plain-2.6.6", "test/acc", {2: 0.875}),
    ("fastai-2.8.12", "accuracy", {0: 0.796875, 1: 0.875, 2: 0.875}),
    ("fastai-2.8.12", "valid_loss", {0: 0.431917, 1: 0.280489, 2: 0.28051}),
    ("xgboost-3.2.0", "validation-logloss", {0: 0.53708, 1: 0.44981, 2: 0.39507, 3: 0.3627}),
    ("xgboost-3.2.0", "validation-error@0.4", {0: 0.14062, 1: 0.14062, 2: 0.125, 3: 0.125}),
    ("lightgbm-4.7.0", "valid_1's auc", {10: 0.963725, 20: 0.964216, 30: 0.965196, 12: 0.966176}),
    ("lightgbm-4.7.0", "training's auc", {10: 0.927816, 20: 0.941166, 30: 0.947184, 12: 0.935973}),
    # of the last set
    ("lightgbm-4.7.0", "auc", {10: 0.963725, 20: 0.964216, 30: 0.965196, 12: 0.966176}),
    ("catboost-1.2.10", "test", {0: 0.8705882, 1: 0.9318627, 2: 0.9230392, 3: 0.9348039}),
    ("sklearn-mlp-1.9.1", "loss", {1: 0.73336567, 2: 0.73064212, 3: 0.72789471, 4: 0.72540167}),
    ("sklearn-sgd-1.9.1", "loss", {1: 4.177384, 2: 3.70719, 3: 2.679096, 4: 2.608371}),
    ("sklearn-boosting-1.9.1", "Train Loss", {1: 1.2847, 2: 1.1779, 3: 1.0896, 4: 0.9957}),
    ("sklearn-grid-1.9.1", "score", {1: 0.805, 2: 0.836, 3: 0.805, 4: 0.805}),
    ("sklearn-report-1.9.1", "accuracy", {1: 0.890625}),
    (
        "tqdm-epochs-4.70.1",
        "val_acc",
        {0: 0.781, 1: 0.734, 2: 0.672, 3: 0.688, 4: 0.703, 5: 0.75, 6: 0.75},
    ),
    ("tqdm-batches-4.70.1", "val_acc", {1: 0.8281, 2: 0.8594, 3: 0.875}),
    ("tqdm-batches-4.70.1", "loss", {1: 0.6248, 2: 0.5196, 3: 0.4762}),
    ("torch-mnist-example-2.15.0", "Accuracy", {1: 49 / 64, 2: 53 / 64, 3: 56 / 64}),
    ("torch-mnist-example-2.15.0", "Loss", {1: 0.656972, 2: 0.591495, 3: 0.511656}),
    ("torch-quickstart-2.15.0", "Accuracy", {1: 0.766, 2: 0.828, 3: 0.875}),
    ("torch-tensors-2.15.0", "val_acc", {0: 0.7812, 1: 0.7344, 2: 0.6719}),
    ("torch-tensors-2.15.0", "np_acc", {0: 0.78125, 1: 0.734375, 2: 0.671875}),
]


@pytest.mark.parametrize(
    ("recording", "metric", "expected"),
    CURVES,
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_output_of_a_library_is_read_without_configuration(
    recording: str, metric: str, expected: dict[int, float]
) -> None:
    assert curve((RECORDINGS / f"{recording}.txt").read_bytes(), metric) == expected


def test_every_recorded_output_is_read() -> None:
    assert {path.stem for path in RECORDINGS.glob("*.txt")} == {
        recording for recording, _, _ in CURVES
    }


@pytest.mark.parametrize("recording", sorted({recording for recording, _, _ in CURVES}))
@pytest.mark.parametrize("portion", [1, 7, 100])
def test_portions_of_a_recording_make_no_difference(recording: str, portion: int) -> None:
    log = (RECORDINGS / f"{recording}.txt").read_bytes()
    whole, parts = a_reader("loss"), a_reader("loss")
    at_once = whole.feed(log) + whole.finish()
    piecewise = [
        r for at in range(0, len(log), portion) for r in parts.feed(log[at : at + portion])
    ] + parts.finish()
    assert piecewise == at_once
    assert (parts.value, parts.step, parts.last_line) == (whole.value, whole.step, whole.last_line)


ACCURACY = [("accuracy", 1, 0.91)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # Values.
        ("accuracy: tensor(0.91)", ACCURACY),
        ("accuracy=tensor(0.91, device='cuda:0')", ACCURACY),
        ("accuracy: tensor([0.91], device='cuda:0', grad_fn=<MeanBackward0>)", ACCURACY),
        ("accuracy: torch.tensor(0.91)", ACCURACY),
        ("{'accuracy': np.float64(0.91)}", ACCURACY),
        ("{'accuracy': Array(0.91, dtype=float32)}", ACCURACY),
        ("accuracy: 91%", ACCURACY),
        ("accuracy: 91.0 %", ACCURACY),
        ("accuracy: 91%.", ACCURACY),
        ("Accuracy: 9913/10000 (99%)", [("Accuracy", 1, 0.9913)]),
        ("accuracy: 9913/10000", []),  # a share, or how far it is?
        ("accuracy: 9913 / 10000", []),
        ("accuracy=1,078.22", []),  # not its first digit
        ("accuracy: 12,345", []),
        ("accuracy=0.91,128", ACCURACY),  # with a step
        ("accuracy=9.1e-1,100", ACCURACY),
        ("accuracy=0.91,loss=2", [("accuracy", 1, 0.91), ("loss", 1, 2.0)]),
        ("accuracy: 0/0 (0%)", []),
        ("{'accuracy': '0.91', 'note': 'nanny'}", ACCURACY),
        ('{"accuracy": "0.91", "note": "9 lives"}', ACCURACY),
        ('{"accuracy": "91%"}', ACCURACY),
        ("{'accuracy': 'nan'}", [("accuracy", 1, math.nan)]),
        # Nested JSON.
        ('{"eval": {"accuracy": 0.91}}', [("eval.accuracy", 1, 0.91), ("accuracy", 1, 0.91)]),
        (
            '{"epoch": 3, "train": {"accuracy": 0.95}, "eval": {"accuracy": 0.91}}',
            [("train.accuracy", 3, 0.95), ("eval.accuracy", 3, 0.91)],
        ),
        (
            '{"accuracy": 0.91, "train": {"accuracy": 0.95}}',
            [*ACCURACY, ("train.accuracy", 1, 0.95)],
        ),
        # Logging.
        ("2026-11-23 10:00:01,123 - INFO - root - accuracy: 0.91", ACCURACY),
        ("INFO:root:accuracy: 0.91", ACCURACY),
        ("[2026-11-23 10:00:01] accuracy=0.91", ACCURACY),
        ("I1123 10:00:01.123456 7 train.py:12] accuracy=0.91", ACCURACY),
        ("time: 10:00:01 date: 2026-11-23 accuracy: 0.91", ACCURACY),
        ("\x1b[2K\x1b[1A\x1b[32maccuracy\x1b[0m: \x1b]0;title\x070.91", ACCURACY),
        # Steps.
        ("epoch 3: accuracy=0.91", [("accuracy", 3, 0.91)]),
        ("Epoch 3/10, accuracy=0.91", [("accuracy", 3, 0.91)]),
        ("Epoch [3/10], Step [100/600], accuracy: 0.91", [("accuracy", 3, 0.91)]),
        ("[Epoch 3] accuracy: 0.91", [("accuracy", 3, 0.91)]),
        ("EPOCH #3 accuracy: 0.91", [("accuracy", 3, 0.91)]),
        ("Epoch: 3 accuracy: 0.91", [("accuracy", 3, 0.91)]),
        ("[3] accuracy: 0.91", [("accuracy", 3, 0.91)]),
        ("[12:00:01] [3] accuracy: 0.91", [("accuracy", 3, 0.91)]),
        ("[3]\taccuracy:0.91\tloss:0.5", [("accuracy", 3, 0.91), ("loss", 3, 0.5)]),
        ("[3]\taccuracy:0.91+0.02", [("accuracy", 3, 0.91)]),
        ("step 300 | accuracy 0.5 | accuracy: 0.91", [("accuracy", 300, 0.91)]),
        ("iter 5 accuracy=0.91", [("accuracy", 5, 0.91)]),
        ("Iteration 5, accuracy = 0.91", [("accuracy", 5, 0.91)]),
        ("{'accuracy': 0.91, 'global_step': 40, 'epoch': 2}", [("accuracy", 2, 0.91)]),
        ("iteration=40 accuracy=0.91", [("accuracy", 40, 0.91)]),
        ("[Info] Iteration:10, valid_1 accuracy : 0.91", [("accuracy", 10, 0.91)]),
        ("epoch 0.5: accuracy=0.91", ACCURACY),
        ("epochs 30 accuracy=0.91", ACCURACY),
        ("2026-11-23 accuracy=0.91", ACCURACY),
    ],
)
def test_a_line_is_read(line: str, expected: list[tuple[str, int, float]]) -> None:
    found = [each for each in read(line) if each[0] not in ("global_step", "train.py")]
    assert repr(found) == repr(expected)  # repr: nan is equal to nothing


@pytest.mark.parametrize(
    ("metric", "line"),
    [
        ("eval/loss", "eval/loss: 0.5"),
        ("validation-rmse", "[0]\ttrain-rmse:0.9\tvalidation-rmse:0.5"),
        ("valid_0's auc", "[10]\tvalid_0's auc: 0.5"),
        ("valid_0's auc", "final valid_0's auc: 0.5"),
        ("eval.loss", '{"eval": {"loss": 0.5}}'),
        ("Test Accuracy", "Test Accuracy: 50%"),
        ("top-1 (%)", "top-1 (%) = 0.5"),
        ("acc@1", "acc@1=0.5 acc@5=0.9"),
    ],
)
def test_a_metric_may_have_any_name_that_is_printed(metric: str, line: str) -> None:
    assert curve(line + "\n", metric) in ({1: 0.5}, {0: 0.5}, {10: 0.5})


def test_an_objective_with_the_name_of_a_step_is_a_metric() -> None:
    assert curve("iteration=40\niteration=30\n", "iteration") == {1: 40.0, 2: 30.0}


def test_the_objective_is_never_read_under_another_name() -> None:
    assert (
        curve("Val_Acc: 0.9\ntrain_val_acc: 0.8\nval_acc_best: 0.7\nVAL_ACC=0.6\n", "val_acc") == {}
    )


def test_a_percentage_is_reported_as_it_was_written() -> None:
    reader = a_reader()
    reader.feed(b"other: 50%\naccuracy: 91.3%\naccuracy: 92.5%\n")
    assert "91.3% is 0.913" in reader.remarks["percentage"]
    assert reader.value == 0.925


# Steps


def test_header_gives_the_step_of_the_lines_below() -> None:
    log = "Epoch 1/2\nloss: 0.5\naccuracy: 0.8\nEpoch 2/2\nloss: 0.4\naccuracy: 0.9\n"
    assert read(*log.splitlines()) == [
        ("loss", 1, 0.5),
        ("accuracy", 1, 0.8),
        ("loss", 2, 0.4),
        ("accuracy", 2, 0.9),
    ]


@pytest.mark.parametrize(
    "header",
    [
        "Epoch 6/10",
        "epoch 6:",
        "-- Epoch 6",
        "=== EPOCH 6 of 10 ===",
        "2026-11-23 10:00:01,1 - INFO - Epoch 6",
    ],
)
def test_header_may_be_written_in_many_ways(header: str) -> None:
    assert curve(f"{header}\naccuracy: 0.9\n", "accuracy") == {6: 0.9}


@pytest.mark.parametrize(
    "line",
    [
        "resumed from epoch 6",
        "epoch 6 took long",
        "saved epoch 6 to disk",
        "Epoch 6: accuracy has improved",
    ],
)
def test_sentence_that_mentions_an_epoch_is_not_a_header(line: str) -> None:
    assert curve(f"{line}\naccuracy: 0.9\n", "accuracy") == {1: 0.9}


def test_the_counter_continues_after_the_last_step_of_earlier_attempts() -> None:
    assert curve("accuracy=0.8\naccuracy=0.9\n", "accuracy", start=6) == {7: 0.8, 8: 0.9}


def test_printed_step_counts_whatever_earlier_attempts_reached() -> None:
    assert curve("epoch 6: accuracy=0.8\nepoch 7: accuracy=0.9\n", "accuracy", start=9) == {
        6: 0.8,
        7: 0.9,
    }


def test_half_epochs_of_a_resumed_attempt_are_counted_on() -> None:
    log = "".join(f"{{'accuracy': 0.{n}, 'epoch': {n / 2}}}\n" for n in range(3, 6))
    assert curve(log, "accuracy", start=2) == {3: 0.3, 4: 0.4, 5: 0.5}


def test_the_files_own_step_key_is_found_as_a_word_too() -> None:
    assert read("Tree 40: epoch 2 accuracy=0.9", step="tree") == [("accuracy", 40, 0.9)]


def test_the_last_of_many_lines_for_a_step_counts() -> None:
    log = "".join(f"epoch {n // 3} batch: loss=0.{n}\n" for n in range(1, 9))
    assert curve(log, "loss") == {0: 0.2, 1: 0.5, 2: 0.8}
    reader = a_reader("loss")
    assert [r for r in reader.feed(log.encode()) if r.step == 2] == []
    assert reader.finish() == [MetricReading("loss", 2, 0.8)]


# Progress bars


def bar(position: int, total: int, postfix: str, label: str = "") -> str:
    done = 100 * position // total
    return (
        f"\r{label}{done:3d}%|{'#' * (done // 10):10}| {position}/{total} [00:01<00:09,  "
        f"7.01it/s, {postfix}]"
    )


def test_a_value_after_a_carriage_return_is_read_before_the_line_ends() -> None:
    reader = a_reader()
    found = [r for n in range(4) for r in reader.feed(bar(n, 9, f"accuracy=0.{n}").encode())]
    assert found == [MetricReading("accuracy", 0, 0.0), MetricReading("accuracy", 1, 0.1)]
    assert (reader.last, reader.step) == (0.2, 2)


def test_each_epoch_of_labeled_bars_has_one_reading_its_last() -> None:
    log = "".join(
        bar(n, 50, f"accuracy={epoch}.{n:02d}", f"Epoch {epoch}: ")
        for epoch in range(1, 4)
        for n in range(51)
    )
    assert curve(log, "accuracy") == {1: 1.50, 2: 2.50, 3: 3.50}


def test_bars_over_batches_have_one_reading_each_from_the_second_on() -> None:
    one = "".join(bar(n, 9, f"accuracy={1 - n / 100}") for n in range(10)) + "\n"
    assert curve(one * 3, "accuracy") == {**{n: 1 - n / 100 for n in range(10)}, 18: 0.91, 27: 0.91}


@pytest.mark.parametrize(("rule", "value"), [("last", 0.3), ("best", 0.9), ("worst", 0.1)])
def test_the_rule_of_the_objective_chooses_its_value(rule: str, value: float) -> None:
    reader = a_reader(value=rule)
    reader.feed(b"accuracy=0.5\naccuracy=0.9\naccuracy=0.1\naccuracy=nan\naccuracy=0.3\n")
    assert reader.value == value


def test_the_best_value_is_never_that_of_a_batch() -> None:
    reader = a_reader(value="best")
    one = "".join(bar(n, 9, f"accuracy={1 - n / 100}") for n in range(10)) + "\n"
    reader.feed(one.encode())
    assert reader.value == 1.0
    reader.feed(one.encode())
    assert reader.value == 0.91


def test_the_bar_of_a_resumed_attempt_continues() -> None:
    log = "".join(bar(n, 4, f"accuracy=0.{n}") for n in range(4))
    assert curve(log, "accuracy", start=5) == {6: 0.0, 7: 0.1, 8: 0.2, 9: 0.3}
    log = "".join(bar(n, 9, f"accuracy=0.{n}") for n in range(6, 9))
    assert curve(log, "accuracy", start=5) == {6: 0.6, 7: 0.7, 8: 0.8}


@pytest.mark.parametrize("steps", [10_000, pytest.param(40_000, marks=pytest.mark.soak)])
def test_ten_thousand_updates_become_a_few_hundred_readings(steps: int) -> None:
    log = "".join(bar(n, steps, f"accuracy={n}") for n in range(steps + 1))
    kept = curve(log, "accuracy")
    assert len(kept) < 1000
    assert list(kept)[:128] == list(range(128))
    assert kept[steps] == steps
    named = "".join(f"\rstep={n} accuracy={n}" for n in range(steps + 1))
    assert curve(named, "accuracy") == kept


def test_updates_without_a_step_are_one_reading() -> None:
    assert curve("".join(f"\raccuracy={n}" for n in range(10_000)) + "\n", "accuracy") == {1: 9999}


def test_line_that_is_printed_beside_a_bar_is_read_as_if_it_were_alone() -> None:
    log = bar(4, 9, "accuracy=0.4", "Epoch 1: ") + "epoch 7: accuracy=0.7\n"
    assert curve(log, "accuracy") == {1: 0.4, 7: 0.7}


def test_provisional_value_of_a_killed_trial_is_read_at_the_end() -> None:
    reader = a_reader()
    assert reader.feed(("Epoch 4/9\n" + bar(4, 9, "accuracy=0.4") + "\r 5").encode()) == []
    assert (reader.value, reader.last, reader.step) == (None, 0.4, 4)
    assert reader.finish() == [MetricReading("accuracy", 4, 0.4)]
    assert (reader.value, reader.finish()) == (0.4, [])


# Names in place of the metric


def other_names(metric: str, log: str) -> list[tuple[str, int]]:
    reader = a_reader(metric)
    reader.feed(log.encode())
    return reader.other_names()


@pytest.mark.parametrize(
    ("metric", "printed"),
    [
        ("val_acc", "Val_Acc"),
        ("val_acc", "val-acc"),
        ("val_acc", "val_accuracy"),
        ("rmse", "validation-rmse"),
        ("loss", "eval_loss"),
        ("acuracy", "accuracy"),
        ("eval/loss", "eval_loss"),
    ],
)
def test_a_similar_metric_name_is_suggested(metric: str, printed: str) -> None:
    assert other_names(metric, f"{printed}: 0.5 lr: 0.1\n" * 10) == [(printed, 10)]


def test_the_most_frequent_names_are_listed_if_none_is_similar() -> None:
    log = "loss: 0.5\n" * 3 + "lr: 0.1\n" * 2 + "rank: 7 loss: 0.4\nseed: 1\n"
    assert other_names("val_acc", log) == [("loss", 4), ("lr", 2), ("rank", 1)]


def test_names_are_remembered_in_bounded_memory() -> None:
    reader = a_reader()
    reader.feed(b"".join(b"name%d: 1\n" % n for n in range(10 * MAX_NAMES)))
    assert len(reader._names) == MAX_NAMES


# Garbage


def garbage() -> Iterator[bytes]:
    units = [
        "1/",
        "1 ",
        "[1",
        "[ ",
        "epoch 1 ",
        "epoch ",
        "=tensor(",
        "=np.",
        "1/2 [0",
        "=1/",
        "| ",
        "  1  a",
        "a=1%",
    ]
    units += ["{'a':", "\x1b]", "\x1b[", "│", "\r", "\b", "a:", "INFO", "1it [0", "9"]
    for unit in map(str.encode, units):
        yield unit * (1_000_000 // len(unit))
    yield b"epoch  a  b\n" + b"1  " * 300_000
    yield b"\n".join([b"epoch" + b"  a" * 31] * 3000)
    yield b'{"a":' * 200_000
    yield b'{"a":' * 5000 + b"1" + b"}" * 5000


@pytest.mark.parametrize("line", list(garbage()), ids=lambda line: repr(line[:12]))
@pytest.mark.timeout(30)  # a search that backtracks takes hours
def test_a_megabyte_of_garbage_is_read_once(line: bytes) -> None:
    for cut in (line, b"epoch=" + line + b"\n", line + b"=1\n"):
        reader = a_reader()
        reader.feed(cut)
        reader.finish()


# Numbers that must not be read as others


def reading(
    lines: Sequence[str], metric: str, **settings: Any
) -> tuple[list[tuple[int, float]], LogReader]:
    reader = LogReader(MetricsRule(), ExperimentObjective(metric, Direction.MAXIMIZE), **settings)
    readings = reader.feed("".join(f"{line}\n" for line in lines).encode()) + reader.finish()
    return [(r.step, r.value) for r in readings if r.metric == metric], reader


@pytest.mark.parametrize(
    ("printed", "cure"),
    [
        ("0,9731", "print it with a point, 0.9731"),
        ("-12,5", "print it with a point, -12.5"),
        *(
            (each, "print a plain number such as 0.97")
            for each in (
                "1,234.5",
                "1,2,3",
                "5min",
                "12k",
                "900KB",
                "0x1F",
                "1_000",
                "10/100",
                "1.2.3",
                "10.0.0.1",
                "12:30:01",
                "2024-01-02",
                "3e",
            )
        ),
    ],
)
def test_what_is_not_a_plain_number_is_refused_with_the_cure(printed: str, cure: str) -> None:
    for line in (f"accuracy: {printed}", f"accuracy={printed} loss=0.5"):
        values, reader = reading([line], "accuracy")
        assert (values, reader.value, reader.unreadable("accuracy")) == ([], None, printed)
        assert reader.remarks["unreadable"].endswith(cure)


def test_values_in_another_unit_than_the_first_are_not_read() -> None:
    values, reader = reading(["size: 900 KB", "size: 1.2 MB", "size: 800 KB"], "size")
    assert values == [(1, 900), (2, 800)]
    assert set(reader.remarks) == {"unit", "units"}


@pytest.mark.parametrize(
    "prefix", ["0: ", "[12345] ", "rank0: ", "[rank1]: ", "2026-01-02 03:04:05,678 INFO "]
)
def test_a_constant_prefix_is_not_a_step(prefix: str) -> None:
    assert reading([f"{prefix}accuracy=0.{n}" for n in (1, 2, 3)], "accuracy")[0] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
    ]


@pytest.mark.parametrize("line", ["[{}] accuracy=0.{}", "{}: accuracy=0.{}"])
def test_a_prefix_that_counts_is_a_step(line: str) -> None:
    assert reading([line.format(n, n) for n in (3, 4, 5)], "accuracy")[0] == [
        (3, 0.3),
        (4, 0.4),
        (5, 0.5),
    ]


BOTH = [
    "Train accuracy: 0.99",
    "Test accuracy: 0.80",
    "Train accuracy: 0.995",
    "Test accuracy: 0.82",
]


def test_of_a_metric_that_is_printed_for_several_parts_of_the_data_the_best_for_a_search_is_read() -> (
    None
):
    values, reader = reading(BOTH, "accuracy")
    assert (dict(values), reader.value) == ({1: 0.8, 2: 0.82}, 0.82)
    assert reader.remarks["phases"] == (
        '"test accuracy" is read as accuracy, and "train accuracy" is not; to choose, set the '
        "metric to train_accuracy"
    )
    assert not reader.unreadable("accuracy")
    assert (
        reading(["Test: loss=0.5", "Validation: loss=0.4", "Test: loss=0.3"], "loss")[1].value
        == 0.4
    )


@pytest.mark.parametrize("metric", ["test_accuracy", "test accuracy", "Test accuracy"])
def test_a_part_of_the_data_can_be_chosen(metric: str) -> None:
    values, reader = reading(BOTH, metric)
    assert (values, reader.remarks) == ([(1, 0.8), (2, 0.82)], {})


@pytest.mark.parametrize(
    "line",
    [
        "Namespace(lr=0.1, epochs=10, seed=1)",
        "+ python train.py --u1=17 --weight-decay=0.1",
        "{'batch': 32}",
        "batch=32",
        "TrainingArguments(output_dir='x', num_train_epochs=3, betas=(0.9, 0.999), eps=1e-08)",
    ],
)
def test_a_line_that_repeats_the_parameters_is_not_a_metric(line: str) -> None:
    reader = LogReader(
        MetricsRule(), ExperimentObjective("accuracy", Direction.MAXIMIZE), parameters={"batch": 32}
    )
    readings = reader.feed(f"{line}\naccuracy=0.5\n".encode()) + reader.finish()
    assert readings == [MetricReading("accuracy", 1, 0.5)]


def test_a_schedule_of_a_parameter_is_a_metric() -> None:
    readings = reading(
        ["lr=0.1 accuracy=0.5", "lr=0.01 accuracy=0.6"], "accuracy", parameters={"lr": 0.1}
    )[1]
    assert ("lr", 1) in readings.other_names("lrs")


@pytest.mark.parametrize(
    ("lines", "metric", "expected"),
    [
        (
            [
                '{"level": "info", "msg": "epoch=1 accuracy=0.1"}',
                '{"message": "epoch=2 accuracy=0.2"}',
            ],
            "accuracy",
            {1: 0.1, 2: 0.2},
        ),
        (
            ["step 250: train loss 2.0, val loss 2.1", "step 500: train loss 1.8, val loss 1.9"],
            "val_loss",
            {250: 2.1, 500: 1.9},
        ),
        (["step 250: train loss 2.0, val loss 2.1"], "val loss", {250: 2.1}),
        (["step 250: train loss 2.0, val loss 2.1"], "loss", {250: 2.1}),
        (
            [" * Acc@1 55.300 Acc@5 80.100", " * Acc@1 56.300 Acc@5 81.100"],
            "Acc@1",
            {1: 55.3, 2: 56.3},
        ),
        ([" * Acc@1 55.3"], "Acc@1", {1: 55.3}),
        (["loss 3 times lower", "no loss 3 words"], "loss", {}),
    ],
)
def test_lines_without_a_sign_and_texts_in_json_are_read(
    lines: list[str], metric: str, expected: dict[int, float]
) -> None:
    assert dict(reading(lines, metric)[0]) == expected


def test_names_with_any_characters_are_read_of_every_metric_that_a_trial_must_report() -> None:
    names = ("hit@10", "latency (ms)", "mAP@[IoU=0.5]", "top-1 acc")
    reader = LogReader(
        MetricsRule(),
        ExperimentObjective("accuracy", Direction.MAXIMIZE),
        other_metrics=dict.fromkeys(names, ValueRule.LAST),
    )
    reader.feed(b"accuracy=0.9 hit@10=0.5 latency (ms): 3.5 mAP@[IoU=0.5]: 0.41 top-1 acc = 0.7\n")
    assert [reader.value_of(name) for name in names] == [0.5, 3.5, 0.41, 0.7]
    assert "IoU" not in dict(reader.other_names("IoU"))


@pytest.mark.parametrize(
    "printed",
    [
        "1.234,56",
        "1'234.5",
        "1 234.5",
        "1\u202f234,5",
        "10^-3",
        "3*10^-3",
        "3 x 10^-3",
        "1.5×10⁻³",
        "1.#QNAN",
    ],
)
def test_a_number_in_another_notation_is_refused_not_read_in_part(printed: str) -> None:
    reader = a_reader()
    assert (reader.feed(f"accuracy: {printed}\n".encode()), reader.value) == ([], None)
    assert reader.unreadable("accuracy") == printed


@pytest.mark.parametrize("unit", ["k", "kW", "Mbit/s", "img/s", "hrs", "d", "percent", "millis"])
def test_any_usual_unit_is_said(unit: str) -> None:
    reader = a_reader()
    reader.feed(f"accuracy: 12 {unit}\n".encode())
    assert f"12 {unit} is read as 12" in reader.remarks["unit"]


def test_a_value_in_another_scale_of_its_unit_is_not_read() -> None:
    reader = a_reader()
    reader.feed(b"accuracy: 3 kW\naccuracy: 900 W\n")
    assert reader.value == 3.0


def test_a_duration_in_two_units_is_refused() -> None:
    reader = a_reader()
    assert (reader.feed(b"accuracy: 1 min 30 s\n"), reader.value) == ([], None)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("Train set accuracy: 0.99", "Test set accuracy: 0.8"),
        ("Train Epoch: 1 accuracy: 0.8", "Test Epoch: 1 accuracy: 0.8"),
    ],
)
def test_the_part_of_the_data_is_known_by_more_words(train: str, test: str) -> None:
    reader = a_reader()
    reader.feed(f"{test}\n{train}\n".encode())
    assert reader.value == 0.8
    assert '"train accuracy" is not' in reader.remarks["phases"]


def test_the_echo_of_a_rounded_parameter_is_not_a_metric() -> None:
    reader = LogReader(
        MetricsRule(),
        ExperimentObjective("accuracy", Direction.MAXIMIZE),
        parameters={"lr": 0.00031234},
    )
    assert [reading.metric for reading in reader.feed(b"lr=0.0003 accuracy=0.9\n")] == ["accuracy"]


@pytest.mark.parametrize("key", ["@message", "MESSAGE", "body", "textPayload"])
def test_the_text_of_a_json_line_is_read_under_the_names_of_loggers(key: str) -> None:
    assert read(f'{{"{key}": "epoch=1 accuracy=0.97", "level": "info"}}') == [("accuracy", 1, 0.97)]


def test_a_json_object_within_the_text_of_a_json_line_is_read() -> None:
    assert read(r'{"log": "{\"epoch\": 1, \"accuracy\": 0.97}\n", "stream": "stdout"}') == [
        ("accuracy", 1, 0.97)
    ]


def test_a_json_string_that_is_not_a_number_is_said() -> None:
    reader = a_reader()
    reader.feed(b'{"accuracy": "0,97"}\n')
    assert reader.unreadable("accuracy") == "0,97"


def test_a_longer_name_that_ends_with_the_metric_is_not_its_unreadable_value() -> None:
    reader = a_reader()
    reader.feed(b"train/accuracy: 0.99\n")
    assert reader.unreadable("accuracy") == ""
