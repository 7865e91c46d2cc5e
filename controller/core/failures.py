"""How an attempt's end is judged: exit facts -> verdict, failure class and a reason for people. Pure.

What becomes of an end is a table in docs/states.md; what is retried, in the experiment's `retries`.
"""

from __future__ import annotations

import math
import re
import signal as signals
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.core.model import Attempt, AttemptState, FailureClass, StopCause

INFEASIBLE_EXIT_CODE = 42
TEMPORARY_EXIT_CODE = 75  # sysexits' EX_TEMPFAIL, "the user is invited to retry": a lost worker, a server that is away
# A GPU's memory is not the system's, so nobody is killed for it: the program says so itself and ends. Also what NumPy,
# torch and TensorFlow say of the machine's.
NO_MEMORY_SAID = re.compile(
    r"\bout of memory\b|OutOfMemory|MemoryError\b|\bOOM when allocating\b|\b(can't|cannot|unable to) allocate memory\b",
    re.I,
)
SHELL_CANNOT_EXECUTE = frozenset({126, 127})  # what shells answer for a command that is not executable, or not there
CRASHES = frozenset({signals.SIGSEGV, signals.SIGABRT, signals.SIGBUS, signals.SIGFPE, signals.SIGILL, signals.SIGSYS})
# What is left of a crash where a shell, or a container's runtime, tells an exit code for it.
CRASH_CODES = {128 + crash: crash.name for crash in CRASHES}
REASON_LENGTH = 500


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an end: the exit as the runtime tells it, and what the log said."""

    code: int | None = None
    signal: int | None = None
    stopped: bool = False
    timed_out: bool = False
    out_of_memory: bool = False
    unknown: bool = False
    failure_class: FailureClass | None = None
    reason: str = ""
    value: float | None = None  # the objective's, by the experiment's rule; may be non-finite
    metric: str = ""
    last_line: str = ""
    near_misses: Sequence[tuple[str, int]] = ()  # names in the log that are nearly `metric`, and in how many lines
    of_trial: bool = True  # False: of the final stage, whose exit code says it all


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: AttemptState
    failure_class: FailureClass | None = None
    reason: str = ""


def judge(
    facts: Facts, cause: StopCause | None, *, asked_because: str = "", timeout_s: float | None = None
) -> Judgement:
    """`cause`: why we had asked it to stop, if we had. What ended by itself before our signal is judged on its own."""
    # Before the timeout: it may strike in the grace time that our own stop gave.
    if cause is not None and (facts.stopped or facts.unknown):
        return Judgement(verdict_of(cause), reason=asked_because or cause.value)
    if facts.timed_out:
        limit = f" of {timeout_s:g} s" if timeout_s is not None else ""
        return _failed(FailureClass.TIMEOUT, f"it ran longer than its timeout{limit}")
    if facts.failure_class is not None:
        return _failed(facts.failure_class, facts.reason)
    if facts.unknown:
        return _failed(FailureClass.INFRASTRUCTURE, "it is gone and nobody saw its exit code")
    if facts.signal is not None:
        if facts.out_of_memory:
            return _failed(FailureClass.OUT_OF_MEMORY, "the system killed it for memory")
        name = _signal_name(facts.signal)
        if facts.signal in CRASHES:
            return _failed(FailureClass.INFRASTRUCTURE, f"its program crashed ({name})")
        return _failed(FailureClass.INFRASTRUCTURE, f"killed by {name}, which tuner did not send")
    return _judge_code(facts)


def verdict_of(cause: StopCause) -> AttemptState:
    """How an attempt ends that ended because we asked it to."""
    return AttemptState.PRUNED if cause is StopCause.PRUNED else AttemptState.CANCELLED


def _judge_code(facts: Facts) -> Judgement:
    said = facts.reason or facts.last_line  # a reason beside an error: of a worker whose log is not the attempt's
    if facts.code == 0 and not facts.of_trial:
        return Judgement(AttemptState.SUCCEEDED)
    if facts.code == INFEASIBLE_EXIT_CODE and facts.of_trial:
        return Judgement(AttemptState.INFEASIBLE, reason=said[:REASON_LENGTH] or "exit code 42")
    if facts.code == 0:
        if facts.value is None and facts.reason:  # of what it said something is lost, and no fault of its own
            return _failed(FailureClass.INFRASTRUCTURE, f"exit code 0, but {facts.reason}")
        if facts.value is None:
            return _failed(FailureClass.METRICS_MISSING, f"exit code 0, but {_no_metric(facts)}")
        if not math.isfinite(facts.value):
            return _failed(
                FailureClass.METRICS_MISSING, f'the last "{facts.metric}" was {facts.value}, not a finite number'
            )
        return Judgement(AttemptState.SUCCEEDED)
    if facts.out_of_memory:  # a child of it was killed, or a container's runtime turned the signal into 137
        return _failed(FailureClass.OUT_OF_MEMORY, f"the system killed it for memory (exit code {facts.code})")
    told = f": {said}" if said else ", and nothing in its log"
    if (failure_class := class_by_itself(facts.code, said)) is not None:
        return _failed(failure_class, f"{called(facts.code)}{told}")
    if facts.code in SHELL_CANNOT_EXECUTE and facts.value is None:
        return _failed(FailureClass.CONFIGURATION, f"exit code {facts.code} (a command could not be executed){told}")
    return _failed(FailureClass.USER_ERROR, f"exit code {facts.code}{told}")


def _no_metric(facts: Facts) -> str:
    if not facts.near_misses:
        missing = f'no line of its log reported "{facts.metric}"'
        return missing if facts.last_line else f"{missing}: there is nothing in it"
    names = ", ".join(f'"{name}" ({times} time{"" if times == 1 else "s"})' for name, times in facts.near_misses)
    cure = f'set spec.objective.metric to the name that is printed, or print "{facts.metric}"'
    return f'no "{facts.metric}" in the log; it has {names}: {cure}'


def class_by_itself(code: int | None, last_line: str) -> FailureClass | None:
    """What a program that ended with an error says of it, if it says what class it is of."""
    if code == TEMPORARY_EXIT_CODE:
        return FailureClass.INFRASTRUCTURE
    if NO_MEMORY_SAID.search(last_line):
        return FailureClass.OUT_OF_MEMORY
    return FailureClass.INFRASTRUCTURE if code in CRASH_CODES else None


def called(code: int | None) -> str:
    """An exit code in a reason."""
    crash = CRASH_CODES.get(code or 0)
    return f"exit code {code}" + (f" (its program crashed: {crash})" if crash else "")


def _failed(failure_class: FailureClass, reason: str) -> Judgement:
    return Judgement(AttemptState.FAILED, failure_class, reason[:REASON_LENGTH])


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def may_retry(attempts: Iterable[Attempt], retries: Mapping[FailureClass, int]) -> bool:
    """Whether the newest attempt's failure leaves a retry: its class has failed at most `retries` times in this trial.

    Interrupted attempts and other classes' failures do not count against it, nor does what was before a rerun.
    """
    history: list[Attempt] = []
    for attempt in attempts:
        history = [] if attempt.rerun else [*history, attempt]
    failure_class = history[-1].failure_class if history else None
    if failure_class is None:
        return False
    failures = sum(1 for attempt in history if attempt.failure_class is failure_class)
    return failures <= retries.get(failure_class, 0)
