"""Classification of ends, as a table: what was observed, and the failure class."""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from controller.core.attempt import Exit
from controller.core.failures import Judgment, LogSummary, judge, may_retry
from controller.core.model import Attempt, AttemptState, FailureClass, StopCause
from tests.unit.builders import CANCELLED, FAILED, INFEASIBLE, PRUNED, START, SUCCEEDED, attempt

CONFIGURATION, INFRASTRUCTURE = FailureClass.CONFIGURATION, FailureClass.INFRASTRUCTURE
MEMORY, MISSING = FailureClass.OUT_OF_MEMORY, FailureClass.METRICS_MISSING
TIMEOUT, USER = FailureClass.TIMEOUT, FailureClass.USER_ERROR
KILL, SEGV, TERM = int(signal.SIGKILL), int(signal.SIGSEGV), int(signal.SIGTERM)


def failed(failure_class: FailureClass, reason: str) -> Judgment:
    return Judgment(FAILED, failure_class, reason)


@dataclass(frozen=True)
class Seen:
    """The observed facts about an end."""

    end: Exit
    log: LogSummary
    of_trial: bool


def seen(
    *,
    value: float | None = None,
    metric: str = "",
    last_line: str = "",
    other_names: Sequence[tuple[str, int]] = (),
    of_trial: bool = True,
    lost: str = "",
    **end: Any,
) -> Seen:
    return Seen(
        Exit(START, **end), LogSummary(value, metric, last_line, other_names, lost=lost), of_trial
    )


ENDS = [
    ("it reported a value", seen(code=0, value=0.9), None, Judgment(SUCCEEDED)),
    (
        "it reported nothing",
        seen(code=0, metric="accuracy", last_line="done"),
        None,
        failed(
            MISSING,
            'exit code 0, but no line of its log reported "accuracy": print it as accuracy=0.97',
        ),
    ),
    (
        "it said nothing at all",
        seen(code=0, metric="accuracy"),
        None,
        failed(
            MISSING,
            'exit code 0, but no line of its log reported "accuracy": the log is empty or gone',
        ),
    ),
    (
        "it reported the metric under nearly its name",
        seen(code=0, metric="val_acc", last_line="done", other_names=[("Val_Acc", 10), ("acc", 1)]),
        None,
        failed(
            MISSING,
            'exit code 0, but no "val_acc" in the log; it has "Val_Acc" (10 times), "acc" (1 '
            "time): "
            'set spec.objective.metric to the name that is printed, or print "val_acc"',
        ),
    ),
    (
        "what it reported is lost",
        seen(code=0, metric="accuracy", lost="the end of its log could not be read"),
        None,
        failed(INFRASTRUCTURE, "exit code 0, but the end of its log could not be read"),
    ),
    (
        "a part of its log is lost, but no value",
        seen(code=0, value=0.9, lost="lines"),
        None,
        Judgment(SUCCEEDED),
    ),
    (
        "it reported nan",
        seen(code=0, value=math.nan, metric="accuracy"),
        None,
        failed(MISSING, 'the last "accuracy" was nan, not a finite number'),
    ),
    (
        "it reported inf",
        seen(code=0, value=math.inf, metric="loss"),
        None,
        failed(MISSING, 'the last "loss" was inf, not a finite number'),
    ),
    (
        "42 is infeasible, whatever was measured",
        seen(code=42, value=0.9, last_line="too wide"),
        None,
        Judgment(INFEASIBLE, reason="too wide"),
    ),
    (
        "what another worker said of it comes before what the first was saying",
        seen(code=42, last_line="epoch=2 accuracy=0.4", reason="too wide"),
        None,
        Judgment(INFEASIBLE, reason="too wide"),
    ),
    (
        "42 of a final stage's worker",
        seen(code=42, last_line="epoch=2 accuracy=0.4", reason="too wide", of_trial=False),
        None,
        failed(USER, "exit code 42: too wide"),
    ),
    ("42 without a word", seen(code=42), None, Judgment(INFEASIBLE, reason="exit code 42")),
    (
        "an error of the program",
        seen(code=1, last_line="KeyError: 'x'"),
        None,
        failed(USER, "exit code 1: KeyError: 'x'"),
    ),
    (
        "an error after good values",
        seen(code=3, value=0.9),
        None,
        failed(USER, "exit code 3, and nothing in its log"),
    ),
    (
        "its disk is full",
        seen(code=1, full_disk="state/0/1"),
        None,
        failed(
            INFRASTRUCTURE,
            "exit code 1, and nothing in its log; the disk of state/0/1 is full: free some space",
        ),
    ),
    (
        "its disk is full, and it ends without its metric",
        seen(code=0, last_line="epoch 3", full_disk="state/0/1"),
        None,
        failed(
            INFRASTRUCTURE, "exit code 0: epoch 3; the disk of state/0/1 is full: free some space"
        ),
    ),
    (
        "its disk is full, which it does not need",
        seen(code=0, value=0.9, full_disk="state/0/1"),
        None,
        Judgment(SUCCEEDED),
    ),
    (
        "it says that another try may do",
        seen(code=75, value=0.9, last_line="rank 1 of 2 was lost"),
        None,
        failed(INFRASTRUCTURE, "exit code 75: rank 1 of 2 was lost"),
    ),
    *(
        (
            f"it says what it lacked: {message}",
            seen(code=1, last_line=message),
            None,
            failed(MEMORY, f"exit code 1: {message}"),
        )
        for message in (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "cifar10.py: out of memory: the GPU has no room for --batch 65536",
            "MemoryError",
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.00 TiB for an array",
            "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried "
            "to allocate 9 bytes.",
            "ResourceExhaustedError: OOM when allocating tensor with shape[4096]",
            "OSError: [Errno 12] Cannot allocate memory",
        )
    ),
    (
        "what it says of memory is not an error where it succeeds",
        seen(code=0, value=0.9, last_line="recovered from: out of memory"),
        None,
        Judgment(SUCCEEDED),
    ),
    (
        "a shell found no command",
        seen(code=127, last_line="sh: trian: not found"),
        None,
        failed(
            CONFIGURATION, "exit code 127 (a command could not be executed): sh: trian: not found"
        ),
    ),
    (
        "a shell could not execute it",
        seen(code=126),
        None,
        failed(
            CONFIGURATION, "exit code 126 (a command could not be executed), and nothing in its log"
        ),
    ),
    (
        "127 of a program that had run",
        seen(code=127, value=0.9, last_line="x"),
        None,
        failed(USER, "exit code 127: x"),
    ),
    (
        "killed, and the system says why",
        seen(signal=KILL, out_of_memory=True),
        None,
        failed(MEMORY, "killed by the system: out of memory"),
    ),
    (
        "137 instead of the signal",
        seen(code=137, out_of_memory=True),
        None,
        failed(MEMORY, "killed by the system: out of memory (exit code 137)"),
    ),
    (
        "a child was killed for memory, the program coped",
        seen(code=0, value=0.9, out_of_memory=True),
        None,
        Judgment(SUCCEEDED),
    ),
    (
        "killed by somebody",
        seen(signal=KILL),
        None,
        failed(INFRASTRUCTURE, "killed by SIGKILL, which tuner did not send"),
    ),
    ("crashed", seen(signal=SEGV), None, failed(INFRASTRUCTURE, "its program crashed (SIGSEGV)")),
    (
        "crashed under a shell or in a container, which tell an exit code for it",
        seen(code=134, value=0.9, last_line="terminate called"),
        None,
        failed(INFRASTRUCTURE, "exit code 134 (its program crashed: SIGABRT): terminate called"),
    ),
    (
        "crashed in the same way without a word",
        seen(code=139),
        None,
        failed(
            INFRASTRUCTURE, "exit code 139 (its program crashed: SIGSEGV), and nothing in its log"
        ),
    ),
    (
        "crashed for want of memory",
        seen(code=134, last_line="RuntimeError: CUDA error: out of memory"),
        None,
        failed(
            MEMORY,
            "exit code 134 (its program crashed: SIGABRT): RuntimeError: CUDA error: out of memory",
        ),
    ),
    (
        "killed by a nameless signal",
        seen(signal=61),
        None,
        failed(INFRASTRUCTURE, "killed by signal 61, which tuner did not send"),
    ),
    (
        "nobody saw its end",
        seen(unknown=True),
        None,
        failed(INFRASTRUCTURE, "the process is gone and its exit code is unknown"),
    ),
    (
        "it ran too long",
        seen(signal=KILL, timed_out=True),
        None,
        failed(TIMEOUT, "it ran longer than its timeout of 60 s"),
    ),
    (
        "pruned, by our signal",
        seen(signal=TERM, stopped=True),
        StopCause.PRUNED,
        Judgment(PRUNED, reason="because"),
    ),
    (
        "pruned, and it left politely",
        seen(code=0, value=0.9, stopped=True),
        StopCause.PRUNED,
        Judgment(PRUNED, reason="because"),
    ),
    (
        "cancelled, and killed after its grace",
        seen(signal=KILL, stopped=True),
        StopCause.CANCELLED,
        Judgment(CANCELLED, reason="because"),
    ),
    (
        "interrupted",
        seen(signal=TERM, stopped=True),
        StopCause.INTERRUPTED,
        Judgment(CANCELLED, reason="because"),
    ),
    (
        "asked to stop, and nobody saw its end",
        seen(unknown=True),
        StopCause.PRUNED,
        Judgment(PRUNED, reason="because"),
    ),
    (
        "its timeout struck within the grace time of our stop",
        seen(signal=KILL, stopped=True, timed_out=True),
        StopCause.INTERRUPTED,
        Judgment(CANCELLED, reason="because"),
    ),
    (
        "it succeeded before our signal",
        seen(code=0, value=0.9),
        StopCause.PRUNED,
        Judgment(SUCCEEDED),
    ),
    (
        "it failed before our signal",
        seen(code=1, last_line="x"),
        StopCause.CANCELLED,
        failed(USER, "exit code 1: x"),
    ),
]


@pytest.mark.parametrize(
    ("seen", "cause", "judgment"), [e[1:] for e in ENDS], ids=[e[0] for e in ENDS]
)
def test_the_end_of_an_attempt_has_an_outcome(
    seen: Seen, cause: StopCause | None, judgment: Judgment
) -> None:
    judged = judge(
        seen.end, seen.log, cause, of_trial=seen.of_trial, asked_because="because", timeout_s=60.0
    )
    assert judged == judgment


def test_a_stop_without_a_reason_names_its_cause() -> None:
    assert (
        judge(Exit(START, signal=TERM, stopped=True), LogSummary(), StopCause.INTERRUPTED).reason
        == "interrupted"
    )


def test_a_function_that_has_returned_before_it_was_stopped_has_succeeded() -> None:
    def verdict(code: int, *, calls_function: bool) -> AttemptState:
        end, log = Exit(START, code=code, stopped=True), LogSummary(value=0.5)
        return judge(end, log, StopCause.PRUNED, calls_function=calls_function).verdict

    assert verdict(0, calls_function=True) is SUCCEEDED
    assert verdict(143, calls_function=True) is AttemptState.PRUNED
    # Any other program may end with 0 because it was stopped.
    assert verdict(0, calls_function=False) is AttemptState.PRUNED


def test_a_long_last_line_is_cut_in_the_reason() -> None:
    assert len(judge(Exit(START, code=1), LogSummary(last_line="x" * 9000), None).reason) == 500


@pytest.mark.parametrize(
    ("sentence", "history", "retries", "again"),
    [
        ("the first failure of its class", [INFRASTRUCTURE], {INFRASTRUCTURE: 1}, True),
        ("one more than is allowed", [INFRASTRUCTURE, INFRASTRUCTURE], {INFRASTRUCTURE: 1}, False),
        ("a class that is not listed", [USER], {INFRASTRUCTURE: 3}, False),
        (
            "another class does not count against it",
            [TIMEOUT, INFRASTRUCTURE],
            {INFRASTRUCTURE: 1},
            True,
        ),
        (
            "an interruption does not count against it",
            [INFRASTRUCTURE, None, INFRASTRUCTURE],
            {INFRASTRUCTURE: 2},
            True,
        ),
        ("the newest did not fail", [INFRASTRUCTURE, None], {INFRASTRUCTURE: 3}, False),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_retries_are_counted_by_class(
    sentence: str, history: list[FailureClass | None], retries: dict[FailureClass, int], again: bool
) -> None:
    attempts: list[Attempt] = [
        attempt(n, AttemptState.FAILED if c else AttemptState.CANCELLED, failed=c)
        for n, c in enumerate(history, 1)
    ]
    assert may_retry(attempts, retries) is again


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_can_mean_infeasible(value: float) -> None:
    log = LogSummary(value, "loss", not_finite_fails=False)
    reason = f'the last "loss" was {value}, not a finite number'
    assert judge(Exit(START, code=0), log, None) == Judgment(INFEASIBLE, reason=reason)
    assert judge(Exit(START, code=1), log, None).verdict is FAILED


def test_a_missing_command_is_an_error_of_the_trial_where_nothing_pauses() -> None:
    log = LogSummary(last_line="sh: trian: not found")
    judged = judge(Exit(START, code=127), log, None, may_pause=False)
    assert judged == failed(USER, "exit code 127: sh: trian: not found")
