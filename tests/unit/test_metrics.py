"""Log lines to measurements: every form of a line, split at any byte, and logs full of garbage."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.metrics import MAX_LINE_BYTES, MAX_METRICS, LogReader, MetricReading
from controller.core.model import MetricsFile, MetricsFormat, MetricsRule
from tests.unit.builders import an_objective


def a_reader(
    *, step: str = "", pattern: str | None = None, value: str = "last", maximize: bool = True
) -> LogReader:
    rule = MetricsRule(step, () if pattern is None else (pattern,))
    return LogReader(rule, an_objective(value=value, maximize=maximize))


def read(*lines: str, step: str = "", pattern: str | None = None) -> list[tuple[str, int, float]]:
    reader = a_reader(step=step, pattern=pattern)
    readings = reader.feed("".join(f"{line}\n" for line in lines).encode())
    return [(r.metric, r.step, r.value) for r in readings]


ACCURACY = [("accuracy", 1, 0.97)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # The forms.
        ("accuracy=0.97", ACCURACY),
        ("accuracy = 0.97", ACCURACY),
        ("accuracy: 0.97", ACCURACY),
        ("accuracy : 0.97", ACCURACY),
        ("accuracy:0.97", ACCURACY),
        ("[INFO] done; accuracy=0.97, thanks.", ACCURACY),
        ("accuracy\t=\t0.97\t", ACCURACY),
        ("\x1b[32maccuracy\x1b[0m=\x1b[1;31m0.97\x1b[0m", ACCURACY),
        ("epoch=3 accuracy=0.97 loss=0.11", [("accuracy", 3, 0.97), ("loss", 3, 0.11)]),
        ("Epoch 3/10 - loss: 0.3 - accuracy: 0.8", [("loss", 3, 0.3), ("accuracy", 3, 0.8)]),
        ("train/loss=0.5 val.top-5=0.9", [("train/loss", 1, 0.5), ("val.top-5", 1, 0.9)]),
        ("model-epoch=03-val_loss=0.25", [("model-epoch", 1, 3.0), ("val_loss", 1, 0.25)]),
        # JSON, and what only looks like it.
        ('{"epoch": 3, "accuracy": 0.97}', [("accuracy", 3, 0.97)]),
        ('  {"accuracy":0.97}  ', ACCURACY),
        ('{"accuracy": 0.97, "name": "x", "ok": true, "more": ["a", 1], "none": null}', ACCURACY),
        ('{"accuracy": 0.97, "more": {"a": 1}}', [*ACCURACY, ("more.a", 1, 1.0), ("a", 1, 1.0)]),
        ('{"accuracy": NaN}', [("accuracy", 1, math.nan)]),
        ('{"accuracy": -Infinity}', [("accuracy", 1, -math.inf)]),
        ('{"accuracy": 97}', [("accuracy", 1, 97.0)]),
        ('{"\\u0061ccuracy": 0.97}', ACCURACY),
        ('{"12":5}', [("12", 1, 5.0)]),
        # no service takes such names
        ('{"": 1, "a\\nb": 2, "\\ud800": 3, "accuracy": 0.97}', ACCURACY),
        ('{"' + "x" * 200 + '": 1, "accuracy": 0.97}', ACCURACY),
        ('{"big": 1' + "0" * 400 + ', "accuracy": 0.97}', ACCURACY),
        ("{'accuracy': 0.97, 'epoch': 2.0}", [("accuracy", 2, 0.97)]),
        ('{"accuracy": 0.97,}', ACCURACY),
        ('["accuracy", 0.97]', []),
        ("{" * 5000 + "}", []),
        # Numbers.
        ("loss=1e-4", [("loss", 1, 1e-4)]),
        ("loss=+1.5E+3", [("loss", 1, 1500.0)]),
        ("loss=-.5", [("loss", 1, -0.5)]),
        ("loss=3.", [("loss", 1, 3.0)]),
        ("loss=nan", [("loss", 1, math.nan)]),
        ("loss: -inf", [("loss", 1, -math.inf)]),
        ("loss: 1e999", [("loss", 1, math.inf)]),
        ("loss=0x10", []),
        ("loss=1.2.3", []),
        ("loss=info", []),
        ("accuracy: 97%", ACCURACY),  # as a fraction; the person is told
        ("eta=12s", []),
        # Steps.
        ("step=5 epoch=2 accuracy=0.97", [("accuracy", 5, 0.97)]),
        ("epoch=3.0 accuracy=0.97", [("accuracy", 3, 0.97)]),
        ("epoch=0 accuracy=0.97", [("accuracy", 0, 0.97)]),
        ("epoch=0.5 accuracy=0.97", ACCURACY),
        ("epoch=-1 accuracy=0.97", ACCURACY),
        ("step=nan accuracy=0.97", ACCURACY),
        ("step=1e300 accuracy=0.97", ACCURACY),
        # The rest of a log.
        ("", []),
        ("loading", []),
        ("2026-11-21 12:01:22,123 INFO loading shard 17 of 200", []),
        ("2026-11-21T12:01:22.5Z loading", []),
        ("12:01:22 accuracy=0.97", ACCURACY),
        ("12:01:22 [3/10] accuracy: 0.97", ACCURACY),
        ("path=/data/7 mode=train", []),
        ("a=b=3", [("b", 1, 3.0)]),
        # What a progress bar leaves standing.
        ("10%|# | accuracy=0.1\r99%|####| accuracy=0.97", ACCURACY),
        ("accuracy=0.97\r", ACCURACY),
        ("accuracy=0.1\r            \r", []),
    ],
)
def test_a_line_is_read(line: str, expected: list[tuple[str, int, float]]) -> None:
    assert repr(read(line)) == repr(expected)  # repr: nan is equal to nothing


def test_without_a_step_each_metric_counts_from_one() -> None:
    assert read("accuracy=1", "loss=5", "accuracy=2") == [
        ("accuracy", 1, 1.0),
        ("loss", 1, 5.0),
        ("accuracy", 2, 2.0),
    ]


def test_the_files_own_step_key_replaces_the_usual_ones() -> None:
    assert read("iteration=40 epoch=2 accuracy=0.9", step="iteration") == [
        ("epoch", 40, 2.0),
        ("accuracy", 40, 0.9),
    ]


def test_the_files_own_pattern_replaces_the_usual_forms() -> None:
    lines = ("<accuracy> 0.5 | <epoch> 2", "accuracy=0.9", "<accuracy> high")
    assert read(*lines, pattern=r"<(\w+)> (\S+)") == [("accuracy", 2, 0.5)]


def test_a_pattern_may_leave_a_group_out() -> None:
    assert read("accuracy=1", "=2", pattern=r"(\w+)?=(\S+)?") == [("accuracy", 1, 1.0)]


@pytest.mark.parametrize(
    ("rule", "maximize", "said", "value"),
    [
        ("last", True, "0.5 0.9 0.7", 0.7),
        ("best", True, "0.5 0.9 0.7", 0.9),
        ("best", False, "0.5 0.9 0.7", 0.5),
        ("best", True, "0.5 nan inf", 0.5),
        ("best", True, "inf", math.inf),
        ("last", True, "0.5 inf", math.inf),
        ("last", True, "", None),
    ],
)
def test_the_value_of_a_trial(rule: str, maximize: bool, said: str, value: float | None) -> None:
    reader = a_reader(value=rule, maximize=maximize)
    reader.feed("".join(f"accuracy={word}\n" for word in said.split()).encode())
    assert reader.value == value


def test_the_last_line_is_the_last_one_that_is_not_blank() -> None:
    reader = a_reader()
    reader.feed(b"accuracy=1\nthe end\n \n\r\n\n")
    assert (reader.last_line, reader.step, reader.offset) == ("the end", 1, 24)


@pytest.mark.parametrize(
    ("log", "last"),
    [
        (b"error: {\n  code = 14\n}\n>\n\n", "code = 14"),
        (b"error: {\n  code = 14\n}", "code = 14"),
        (b"...\n---\n", "---"),
        (b"...\n---", "---"),
        (b"why\n" + b">\n" * 200, ">"),
        ("why\n…\n".encode(), "why"),
        ("因为内存不足\n)\n".encode(), "因为内存不足"),
    ],
)
def test_the_last_line_has_a_word_if_one_is_near_the_end(log: bytes, last: str) -> None:
    reader = a_reader()
    reader.feed(log)
    reader.finish()
    assert reader.last_line == last


def test_a_line_without_its_end_is_read_when_the_log_is_complete() -> None:
    reader = a_reader()
    assert reader.feed(b"accuracy=0.97") == []
    assert reader.finish() == [MetricReading("accuracy", 1, 0.97)]
    assert reader.finish() == []


def test_invalid_utf8_affects_only_its_own_line() -> None:
    reader = a_reader()
    assert reader.feed(b"\xff\xfe accuracy=0.97 \x80\nloss\xa0=\xa01\n") == [
        MetricReading("accuracy", 1, 0.97)
    ]


def test_the_rest_of_a_line_beyond_the_limit_is_not_read_and_the_next_line_is() -> None:
    readings = a_reader().feed(
        b"accuracy=1 " + b"x" * MAX_LINE_BYTES + b" accuracy=2\naccuracy=3\n"
    )
    assert [r.value for r in readings] == [1.0, 3.0]


def test_a_progress_bar_may_be_longer_than_any_line() -> None:
    reader = a_reader()
    for n in range(9000):
        assert reader.feed(b"\r%d of 9000 accuracy=0.1" % n) == []
    assert reader.feed(b"\raccuracy=0.9\r\n") == [MetricReading("accuracy", 1, 0.9)]


def test_the_objective_has_a_place_among_any_number_of_metrics() -> None:
    others = [f"m{n}=1" for n in range(100)]
    assert [r[0] for r in read(*others, "accuracy=1")] == [f"m{n}" for n in range(MAX_METRICS)] + [
        "accuracy"
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"a-" * 40_000,
        b"a=" + b"1" * 60_000 + b"x",
        b"a" + b" " * 60_000 + b"x",
        b"x=" * 30_000,
        b"." * 60_000 + b"=1",
    ],
    ids=["names", "digits", "spaces", "signs", "dots"],
)
@pytest.mark.timeout(20)  # a search that backtracks takes minutes
def test_a_line_of_garbage_is_read_once(line: bytes) -> None:
    for _ in range(10):
        a_reader().feed(line + b"\n")


@pytest.mark.timeout(30)
def test_a_hundred_thousand_lines_of_junk_hide_nothing() -> None:
    junk = b"12:01:22 loading shard 17 of 200 from /data/x.bin\n" * 50_000
    assert a_reader().feed(junk + b"accuracy=0.97\n" + junk) == [MetricReading("accuracy", 1, 0.97)]


PIECES = st.sampled_from(
    [
        "\n",
        "\r",
        " ",
        "=",
        ":",
        "12:30",
        "accuracy",
        "accuracy=0.5",
        "loss: nan",
        "loss=\x1b[1m3",
        '{"accuracy": 1}',
        "epoch=3",
        "x" * 99,
    ]
)
LOGS = (
    st.lists(PIECES | st.text(max_size=5))
    .map("".join)
    .map(lambda text: text.encode("utf-8", "replace"))
)
LONG_LOGS = st.lists(LOGS | st.just(b"y" * MAX_LINE_BYTES) | st.binary(max_size=9), max_size=8).map(
    b"".join
)


@given(
    log=LONG_LOGS,
    cuts=st.lists(st.integers(0, 3 * MAX_LINE_BYTES) | st.integers(0, 300), max_size=8),
)
def test_the_portions_make_no_difference(log: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(log), *(c for c in cuts if c < len(log))})
    whole, parts = a_reader(), a_reader()
    at_once = whole.feed(log) + whole.finish()
    piecewise = [r for a, b in pairwise(edges) for r in parts.feed(log[a:b])] + parts.finish()
    assert repr(piecewise) == repr(at_once)
    assert (parts.last_line, parts.offset, parts.step) == (
        whole.last_line,
        whole.offset,
        whole.step,
    )


@given(log=LOGS)
def test_skipped_lines_have_no_metrics(log: bytes) -> None:
    whole, slowly = a_reader(), a_reader()
    at_once = whole.feed(b"\n" + log + b"\n")
    for line in log.split(b"\n"):
        slowly._take(line)
    assert (repr(at_once), whole.last_line) == (repr(slowly._completed()), slowly.last_line)


def test_half_epochs_are_counted_throughout_so_that_none_hides_behind_another() -> None:
    lines = [f"{{'accuracy': 0.{n}, 'epoch': {n / 2}}}" for n in range(1, 6)]
    assert read(*lines) == [("accuracy", n, float(f"0.{n}")) for n in range(1, 6)]


def test_hosts_ports_and_devices_are_not_metrics() -> None:
    assert read("cuda:0 localhost:8080 train.py:123 epoch:3 accuracy:0.97") == [
        ("accuracy", 3, 0.97)
    ]


JSON_FILE = MetricsRule(source=MetricsFile("m.json", MetricsFormat.JSON))


@pytest.mark.parametrize(
    ("text", "readings", "skipped"),
    [
        ('{"accuracy": 0.5}', [("accuracy", 1, 0.5)], 0),
        ('{"accuracy": "0.5", "epoch": "3"}', [("accuracy", 3, 0.5)], 0),
        ('{"accuracy": 0.5, "timestamp": 1.5e9}', [("accuracy", 1, 0.5)], 0),
        ('\n  \n{"accuracy": 0.5}\n', [("accuracy", 1, 0.5)], 0),
        ("accuracy=0.5", [], 1),
        ('[1]\n3\n"accuracy"\n{"accuracy": 0.5', [], 4),
        ('{"accuracy": "' + "9" * 10_000_000 + '"}\n{"accuracy": 0.5}', [("accuracy", 1, 0.5)], 1),
        ("{" * 100_000 + '\n{"accuracy": 0.5}', [("accuracy", 1, 0.5)], 1),
        ('# tuner: a note\n{"accuracy": 0.5}', [("accuracy", 1, 0.5)], 0),
    ],
)
def test_of_a_json_file_only_objects_are_read_and_other_lines_counted(
    text: str, readings: list[tuple[str, int, float]], skipped: int
) -> None:
    reader = LogReader(JSON_FILE, an_objective())
    found = reader.feed(text.encode()) + reader.finish()
    assert ([(r.metric, r.step, r.value) for r in found], reader.skipped) == (readings, skipped)


def test_the_step_of_an_event_is_its_step_and_no_tag() -> None:
    reader = LogReader(
        MetricsRule(source=MetricsFile("runs", MetricsFormat.TENSORBOARD)), an_objective()
    )
    found = reader.feed(b'{"step": 7, "epoch": 2.0, "accuracy": 0.5}\n{"accuracy": 0.6}\n')
    assert [(r.metric, r.step, r.value) for r in found] == [
        ("epoch", 7, 2.0),
        ("accuracy", 7, 0.5),
        ("accuracy", 8, 0.6),
    ]


@pytest.mark.parametrize(
    "lines", [["accuracy=0.1", "accuracy=0.2"], ["epoch=4", "accuracy=0.1", "accuracy=0.2"]]
)
def test_lines_that_a_collector_reads_again_are_the_same_steps(lines: list[str]) -> None:
    begin, rule = "# tuner: begin", MetricsRule(source=MetricsFile("m.txt"))
    reader, once = LogReader(rule, an_objective()), LogReader(rule, an_objective())
    twice = (
        reader.feed("\n".join([begin, *lines, begin, *lines, "accuracy=0.3", ""]).encode())
        + reader.finish()
    )
    expected = once.feed("\n".join([begin, *lines, "accuracy=0.3", ""]).encode()) + once.finish()
    assert set(twice) == set(expected)
    assert (reader.last, reader.step, reader.is_empty) == (once.last, once.step, False)


def test_a_collector_that_has_only_begun_has_read_nothing() -> None:
    reader = LogReader(MetricsRule(source=MetricsFile("m.txt")), an_objective())
    reader.feed(b"\n# tuner: begin\n# tuner: end\n")
    assert (reader.is_empty, reader.note) == (True, "")


def test_each_of_several_patterns_is_looked_for() -> None:
    rule = MetricsRule(patterns=(r"(accuracy) is (.+)", r"(epoch) (\d+)"))
    found = LogReader(rule, an_objective()).feed(b"epoch 4 accuracy is high\naccuracy is 0.5\n")
    assert [(r.metric, r.step, r.value) for r in found] == [("accuracy", 1, 0.5)]


def test_lines_that_mark_a_gap_are_no_output_and_split_the_log_at_their_place() -> None:
    rotated, trimmed = (
        b"# tuner: gap: accuracy=7 was lost",
        b"# tuner: gap: of its middle          ",
    )
    log = (
        b"accuracy=0.5\n"
        + rotated
        + b"\naccuracy=0.9\n"
        + trimmed
        + b"\nnot # tuner: gap: accuracy=0.7\n"
    )
    for size in (1, 7, 1000):
        reader = a_reader(value="last")
        readings: list[MetricReading] = []
        for start in range(0, len(log), size):
            readings += reader.feed(log[start : start + size])
        assert [reading.value for reading in readings] == [0.5, 0.9, 0.7]
        assert reader.gap == "accuracy=7 was lost; of its middle"
        assert not reader.may_lack("accuracy")
