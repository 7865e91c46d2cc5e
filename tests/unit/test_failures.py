"""How an end is judged, as a table: what was seen, and what it is called."""

import math
import signal

import pytest

from controller.core.failures import Facts, Judgement, judge, may_retry
from controller.core.model import Attempt, AttemptState, FailureClass, StopCause
from tests.unit.builders import CANCELLED, FAILED, INFEASIBLE, PRUNED, SUCCEEDED, attempt

CONFIGURATION, INFRASTRUCTURE = FailureClass.CONFIGURATION, FailureClass.INFRASTRUCTURE
MEMORY, MISSING = FailureClass.OUT_OF_MEMORY, FailureClass.METRICS_MISSING
TIMEOUT, USER = FailureClass.TIMEOUT, FailureClass.USER_ERROR
KILL, SEGV, TERM = int(signal.SIGKILL), int(signal.SIGSEGV), int(signal.SIGTERM)


def failed(failure_class: FailureClass, reason: str) -> Judgement:
    return Judgement(FAILED, failure_class, reason)


ENDS = [
    ("it reported a value", Facts(code=0, value=0.9), None, Judgement(SUCCEEDED)),
    (
        "it reported nothing",
        Facts(code=0, metric="accuracy", last_line="done"),
        None,
        failed(MISSING, 'exit code 0, but no line of its log reported "accuracy"'),
    ),
    (
        "it said nothing at all",
        Facts(code=0, metric="accuracy"),
        None,
        failed(MISSING, 'exit code 0, but no line of its log reported "accuracy": there is nothing in it'),
    ),
    (
        "it reported the metric under nearly its name",
        Facts(code=0, metric="val_acc", last_line="done", near_misses=[("Val_Acc", 10), ("acc", 1)]),
        None,
        failed(
            MISSING,
            'exit code 0, but no "val_acc" in the log; it has "Val_Acc" (10 times), "acc" (1 time): '
            'set spec.objective.metric to the name that is printed, or print "val_acc"',
        ),
    ),
    (
        "what it reported is lost",
        Facts(code=0, metric="accuracy", reason="the end of its log could not be read"),
        None,
        failed(INFRASTRUCTURE, "exit code 0, but the end of its log could not be read"),
    ),
    ("a part of its log is lost, but no value", Facts(code=0, value=0.9, reason="lines"), None, Judgement(SUCCEEDED)),
    (
        "it reported nan",
        Facts(code=0, value=math.nan, metric="accuracy"),
        None,
        failed(MISSING, 'the last "accuracy" was nan, not a finite number'),
    ),
    (
        "it reported inf",
        Facts(code=0, value=math.inf, metric="loss"),
        None,
        failed(MISSING, 'the last "loss" was inf, not a finite number'),
    ),
    (
        "42 is infeasible, whatever was measured",
        Facts(code=42, value=0.9, last_line="too wide"),
        None,
        Judgement(INFEASIBLE, reason="too wide"),
    ),
    (
        "what another worker said of it comes before what the first was saying",
        Facts(code=42, last_line="epoch=2 accuracy=0.4", reason="too wide"),
        None,
        Judgement(INFEASIBLE, reason="too wide"),
    ),
    (
        "42 of a final stage's worker",
        Facts(code=42, last_line="epoch=2 accuracy=0.4", reason="too wide", of_trial=False),
        None,
        failed(USER, "exit code 42: too wide"),
    ),
    ("42 without a word", Facts(code=42), None, Judgement(INFEASIBLE, reason="exit code 42")),
    (
        "an error of the program",
        Facts(code=1, last_line="KeyError: 'x'"),
        None,
        failed(USER, "exit code 1: KeyError: 'x'"),
    ),
    ("an error after good values", Facts(code=3, value=0.9), None, failed(USER, "exit code 3, and nothing in its log")),
    (
        "it says that another try may do",
        Facts(code=75, value=0.9, last_line="rank 1 of 2 was lost"),
        None,
        failed(INFRASTRUCTURE, "exit code 75: rank 1 of 2 was lost"),
    ),
    *(
        (f"it says what it lacked: {said}", Facts(code=1, last_line=said), None, failed(MEMORY, f"exit code 1: {said}"))
        for said in (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "cifar10.py: out of memory: the GPU has no room for --batch 65536",
            "MemoryError",
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.00 TiB for an array",
            "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.",
            "ResourceExhaustedError: OOM when allocating tensor with shape[4096]",
            "OSError: [Errno 12] Cannot allocate memory",
        )
    ),
    (
        "what it says of memory is no error where it succeeds",
        Facts(code=0, value=0.9, last_line="recovered from: out of memory"),
        None,
        Judgement(SUCCEEDED),
    ),
    (
        "a shell found no command",
        Facts(code=127, last_line="sh: trian: not found"),
        None,
        failed(CONFIGURATION, "exit code 127 (a command could not be executed): sh: trian: not found"),
    ),
    (
        "a shell could not execute it",
        Facts(code=126),
        None,
        failed(CONFIGURATION, "exit code 126 (a command could not be executed), and nothing in its log"),
    ),
    (
        "127 of a program that had run",
        Facts(code=127, value=0.9, last_line="x"),
        None,
        failed(USER, "exit code 127: x"),
    ),
    (
        "killed, and the system says why",
        Facts(signal=KILL, out_of_memory=True),
        None,
        failed(MEMORY, "the system killed it for memory"),
    ),
    (
        "137 instead of the signal",
        Facts(code=137, out_of_memory=True),
        None,
        failed(MEMORY, "the system killed it for memory (exit code 137)"),
    ),
    (
        "a child was killed for memory, the program coped",
        Facts(code=0, value=0.9, out_of_memory=True),
        None,
        Judgement(SUCCEEDED),
    ),
    (
        "killed by somebody",
        Facts(signal=KILL),
        None,
        failed(INFRASTRUCTURE, "killed by SIGKILL, which tuner did not send"),
    ),
    ("crashed", Facts(signal=SEGV), None, failed(INFRASTRUCTURE, "its program crashed (SIGSEGV)")),
    (
        "crashed under a shell or in a container, which tell an exit code for it",
        Facts(code=134, value=0.9, last_line="terminate called"),
        None,
        failed(INFRASTRUCTURE, "exit code 134 (its program crashed: SIGABRT): terminate called"),
    ),
    (
        "crashed in the same way without a word",
        Facts(code=139),
        None,
        failed(INFRASTRUCTURE, "exit code 139 (its program crashed: SIGSEGV), and nothing in its log"),
    ),
    (
        "crashed for want of memory",
        Facts(code=134, last_line="RuntimeError: CUDA error: out of memory"),
        None,
        failed(MEMORY, "exit code 134 (its program crashed: SIGABRT): RuntimeError: CUDA error: out of memory"),
    ),
    (
        "killed by a nameless signal",
        Facts(signal=61),
        None,
        failed(INFRASTRUCTURE, "killed by signal 61, which tuner did not send"),
    ),
    (
        "nobody saw its end",
        Facts(unknown=True),
        None,
        failed(INFRASTRUCTURE, "it is gone and nobody saw its exit code"),
    ),
    (
        "it ran too long",
        Facts(signal=KILL, timed_out=True),
        None,
        failed(TIMEOUT, "it ran longer than its timeout of 60 s"),
    ),
    (
        "pruned, by our signal",
        Facts(signal=TERM, stopped=True),
        StopCause.PRUNED,
        Judgement(PRUNED, reason="because"),
    ),
    (
        "pruned, and it left politely",
        Facts(code=0, value=0.9, stopped=True),
        StopCause.PRUNED,
        Judgement(PRUNED, reason="because"),
    ),
    (
        "cancelled, and killed after its grace",
        Facts(signal=KILL, stopped=True),
        StopCause.CANCELLED,
        Judgement(CANCELLED, reason="because"),
    ),
    (
        "interrupted",
        Facts(signal=TERM, stopped=True),
        StopCause.INTERRUPTED,
        Judgement(CANCELLED, reason="because"),
    ),
    (
        "asked to stop, and nobody saw its end",
        Facts(unknown=True),
        StopCause.PRUNED,
        Judgement(PRUNED, reason="because"),
    ),
    (
        "its timeout struck within the grace time of our stop",
        Facts(signal=KILL, stopped=True, timed_out=True),
        StopCause.INTERRUPTED,
        Judgement(CANCELLED, reason="because"),
    ),
    ("it succeeded before our signal", Facts(code=0, value=0.9), StopCause.PRUNED, Judgement(SUCCEEDED)),
    (
        "it failed before our signal",
        Facts(code=1, last_line="x"),
        StopCause.CANCELLED,
        failed(USER, "exit code 1: x"),
    ),
]


@pytest.mark.parametrize(("facts", "cause", "judgement"), [e[1:] for e in ENDS], ids=[e[0] for e in ENDS])
def test_an_end_is_judged(facts: Facts, cause: StopCause | None, judgement: Judgement) -> None:
    assert judge(facts, cause, asked_because="because", timeout_s=60.0) == judgement


def test_a_stop_without_a_reason_names_its_cause() -> None:
    assert judge(Facts(signal=TERM, stopped=True), StopCause.INTERRUPTED).reason == "interrupted"


def test_a_long_last_line_is_cut_in_the_reason() -> None:
    assert len(judge(Facts(code=1, last_line="x" * 9000), None).reason) == 500


@pytest.mark.parametrize(
    ("sentence", "history", "retries", "again"),
    [
        ("the first failure of its class", [INFRASTRUCTURE], {INFRASTRUCTURE: 1}, True),
        ("one more than is allowed", [INFRASTRUCTURE, INFRASTRUCTURE], {INFRASTRUCTURE: 1}, False),
        ("a class that is not listed", [USER], {INFRASTRUCTURE: 3}, False),
        ("another class does not count against it", [TIMEOUT, INFRASTRUCTURE], {INFRASTRUCTURE: 1}, True),
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
        attempt(n, AttemptState.FAILED if c else AttemptState.CANCELLED, failed=c) for n, c in enumerate(history, 1)
    ]
    assert may_retry(attempts, retries) is again
