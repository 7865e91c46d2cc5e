"""The exception with which a Python program ended is found in its log, also if lines follow it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from controller.core.failures import Exit, FailureClass, LogSummary, judge
from controller.core.metrics import LINES_AFTER_EXCEPTION, LogReader
from controller.core.model import ExperimentObjective, MetricsRule
from suggest.study import Direction
from tests.unit.builders import START

ERROR = (
    "Traceback (most recent call last):\n  File 't.py', line 1\n    f()\nValueError: too large\n"
)


def exception(log: str, size: int = 0) -> str:
    """Return what a reader finds that gets the log in parts of this many bytes."""
    reader = LogReader(MetricsRule(), ExperimentObjective("loss", Direction.MINIMIZE))
    data = log.encode()
    for begin in range(0, len(data), size or len(data)):
        reader.feed(data[begin : begin + (size or len(data))])
    reader.finish()
    return reader.exception


@pytest.mark.parametrize("size", [0, 1, 7, 64])
@pytest.mark.parametrize(
    ("log", "found"),
    [
        ("loss=1\nbye\n", ""),
        (ERROR, "ValueError: too large"),
        (ERROR.rstrip(), "ValueError: too large"),
        (ERROR.replace("\n", "\r\n"), "ValueError: too large"),
        (f"loss=1\n{ERROR}wandb: Find logs at: ./wandb/x\n", "ValueError: too large"),
        (
            f"{ERROR}\nDuring handling of it:\n\n{ERROR.replace('Value', 'Key')}",
            "KeyError: too large",
        ),
        ("".join(f"[rank0]: {line}\n" for line in ERROR.splitlines()), "ValueError: too large"),
        (ERROR + "more\n" * (LINES_AFTER_EXCEPTION - 1), "ValueError: too large"),
        (ERROR + "more\n" * (LINES_AFTER_EXCEPTION + 1), ""),
        (f"  + Exception Group {ERROR}", ""),
    ],
)
def test_the_last_traceback_near_the_end_names_it(log: str, found: str, size: int) -> None:
    assert exception(log, size) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("raise ValueError('first\\nsecond\\nthird')", "ValueError: first"),
        ("e = KeyError('a')\ne.add_note('a note')\nraise e", "KeyError: 'a'"),
        (
            "import atexit\natexit.register(print, 'saved to x', flush=True)\n"
            "raise RuntimeError('CUDA out of memory')",
            "RuntimeError: CUDA out of memory",
        ),
        (
            "class A:\n    def __del__(self): raise OSError('closed')\na = A()\n"
            "raise ValueError('the cause')",
            "ValueError: the cause",
        ),
    ],
)
def test_what_python_prints_is_understood(body: str, found: str) -> None:
    command = [sys.executable, "-c", body]
    ended = subprocess.run(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, check=False)
    assert exception(ended.stdout.decode()) == found


@pytest.mark.parametrize(
    ("code", "reason", "failure_class"),
    [
        (1, "exit code 1: MemoryError", FailureClass.OUT_OF_MEMORY),
        (42, "too wide", None),
    ],
)
def test_a_failure_is_judged_by_the_exception_and_not_by_the_last_line(
    code: int, reason: str, failure_class: FailureClass | None
) -> None:
    log = LogSummary(last_line="too wide", exception="MemoryError")
    judged = judge(Exit(START, code=code), log, None)
    assert (judged.reason, judged.failure_class) == (reason, failure_class)
