"""Judge how an attempt ended: its exit and its log give the verdict,
the failure class and a reason for people.

Pure functions. The classes are `model.FailureClass`. docs/states.md has the table of ends;
`retries` in the file of the experiment says which are retried.
"""

from __future__ import annotations

import math
import re
import signal as signals
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller.core.attempt import Exit
from controller.core.metric_lines import number_cure
from controller.core.model import Attempt, AttemptState, FailureClass, StopCause

INFEASIBLE_EXIT_CODE = 42
# Sysexits' EX_TEMPFAIL, "the user is invited to retry": a lost worker, a server that is away.
TEMPORARY_EXIT_CODE = 75
# The system kills no process for a lack of GPU memory; the program reports it and exits. The other
# phrases are those of NumPy, torch and TensorFlow for a lack of main memory.
NO_MEMORY_SAID = re.compile(
    r"\bout of memory\b|OutOfMemory|MemoryError\b|\bOOM when allocating\b|\b(can't|cannot|unable "
    r"to) allocate memory\b",
    re.I,
)
# A shell's codes for "not executable", "not found".
SHELL_CANNOT_EXECUTE = frozenset({126, 127})
CRASHES = frozenset(
    {
        signals.SIGSEGV,
        signals.SIGABRT,
        signals.SIGBUS,
        signals.SIGFPE,
        signals.SIGILL,
        signals.SIGSYS,
    }
)
# A shell or a container runtime reports a crash as an exit code of 128 plus the signal.
CRASH_CODES = {128 + crash: crash.name for crash in CRASHES}
REASON_LENGTH = 500


@dataclass(frozen=True, slots=True)
class CollectedSummary:
    """What a collector has read of an ended attempt.

    place: the file or the endpoint, for people.
    is_empty: the collector has read nothing.
    skipped: lines that are not JSON objects.
    note: the collector's last message about its source.
    """

    place: str
    is_empty: bool = False
    skipped: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class LogSummary:
    """What the log of an ended attempt says about the metrics that the trial must report.

    metric: the first required metric without a finite value; the objective's if all have one.
    value: the value of `metric` by the experiment's rule; may be non-finite.
    other_names: names in the log, if `metric` is not, each with the number of lines that have it.
    place: the key of the experiment's file that names the metric.
    collected: what was read where the measurements are not in the log.
    unreadable: the metric's value as printed, where it is not a number.
    not_finite_fails: a trial whose value is nan or infinite has failed; otherwise it is infeasible.
    lost: which lines were not read, where the measurements are read.
    exception: the line that names the exception with which a Python program ended.
    """

    value: float | None = None
    metric: str = ""
    last_line: str = ""
    other_names: Sequence[tuple[str, int]] = ()
    place: str = "spec.objective.metric"
    collected: CollectedSummary | None = None
    unreadable: str = ""
    not_finite_fails: bool = True
    lost: str = ""
    exception: str = ""


@dataclass(frozen=True, slots=True)
class Judgment:
    verdict: AttemptState
    failure_class: FailureClass | None = None
    reason: str = ""


def judge(
    end: Exit,
    log: LogSummary,
    cause: StopCause | None,
    *,
    of_trial: bool = True,
    asked_because: str = "",
    timeout_s: float | None = None,
    may_pause: bool = True,
    calls_function: bool = False,
) -> Judgment:
    """Judge how an attempt ended.

    Args:
        cause: Why the controller asked the attempt to stop, if it did. An attempt that ended by
            itself before the signal is judged by its exit.
        of_trial: False for the final stage, which is judged by its exit code alone.
        asked_because: The reason given with the request to stop.
        timeout_s: The attempt's timeout, for the message.
        may_pause: A command that could not be executed pauses the experiment; otherwise it is an
            error of the trial.
        calls_function: The worker of Python's functions ends with 0 only if the function has
            returned: a request to stop came too late.
    """
    # A requested stop comes before the timeout, which may expire within
    # the grace period of that stop.
    returned = calls_function and end.code == 0
    if cause is not None and (end.stopped or end.unknown) and not returned:
        return Judgment(verdict_of(cause), reason=asked_because or cause.value)
    if end.timed_out:
        limit = f" of {timeout_s:g} s" if timeout_s is not None else ""
        return _failed(FailureClass.TIMEOUT, f"it ran longer than its timeout{limit}")
    if end.failure_class is not None:
        return _failed(end.failure_class, end.reason)
    if end.unknown:
        return _failed(
            FailureClass.INFRASTRUCTURE, "the process is gone and its exit code is unknown"
        )
    if end.signal is not None:
        if end.out_of_memory:
            return _failed(FailureClass.OUT_OF_MEMORY, "killed by the system: out of memory")
        name = _signal_name(end.signal)
        if end.signal in CRASHES:
            return _failed(FailureClass.INFRASTRUCTURE, f"its program crashed ({name})")
        return _failed(FailureClass.INFRASTRUCTURE, f"killed by {name}, which tuner did not send")
    return _judge_code(end, log, of_trial=of_trial, may_pause=may_pause)


def verdict_of(cause: StopCause) -> AttemptState:
    """Return the verdict on an attempt that ended because the controller asked it to."""
    return AttemptState.PRUNED if cause is StopCause.PRUNED else AttemptState.CANCELLED


def _judge_code(end: Exit, log: LogSummary, *, of_trial: bool, may_pause: bool) -> Judgment:
    # A successful program, and one that calls its parameters infeasible, may log exceptions.
    exception = "" if end.code in (0, INFEASIBLE_EXIT_CODE) else log.exception
    # end.reason is the message of a worker other than rank 0.
    message = end.reason or exception or log.last_line
    if end.code == 0 and not of_trial:
        return Judgment(AttemptState.SUCCEEDED)
    excerpt = f": {message}" if message else ", and nothing in its log"
    has_value = end.code == 0 and (log.value is not None or not of_trial)
    by_disk = end.full_disk and not end.out_of_memory
    if by_disk and not has_value and end.code != INFEASIBLE_EXIT_CODE:
        cause = f"the disk of {end.full_disk} is full: free some space"
        return _failed(FailureClass.INFRASTRUCTURE, f"exit code {end.code}{excerpt}; {cause}")
    if end.code == INFEASIBLE_EXIT_CODE and of_trial:
        return Judgment(AttemptState.INFEASIBLE, reason=message[:REASON_LENGTH] or "exit code 42")
    if end.code == 0:
        # The trial is not at fault if its log was lost.
        if log.value is None and log.lost:
            return _failed(FailureClass.INFRASTRUCTURE, f"exit code 0, but {log.lost}")
        if log.value is None:
            return _failed(FailureClass.METRICS_MISSING, f"exit code 0, but {_no_metric(log)}")
        if not math.isfinite(log.value):
            reason = f'the last "{log.metric}" was {log.value}, not a finite number'
            if log.not_finite_fails:
                return _failed(FailureClass.METRICS_MISSING, reason)
            return Judgment(AttemptState.INFEASIBLE, reason=reason)
        return Judgment(AttemptState.SUCCEEDED)
    # A child process was killed, or the container runtime reports the signal as 137.
    if end.out_of_memory:
        return _failed(
            FailureClass.OUT_OF_MEMORY,
            f"killed by the system: out of memory (exit code {end.code})",
        )
    if (failure_class := class_by_itself(end.code, message)) is not None:
        return _failed(failure_class, f"{describe_exit_code(end.code)}{excerpt}")
    if may_pause and end.code in SHELL_CANNOT_EXECUTE and log.value is None:
        return _failed(
            FailureClass.CONFIGURATION,
            f"exit code {end.code} (a command could not be executed){excerpt}",
        )
    return _failed(FailureClass.USER_ERROR, f"exit code {end.code}{excerpt}")


def _no_metric(log: LogSummary) -> str:
    if log.unreadable:
        return (
            f'"{log.metric}" is printed as {log.unreadable}, which is not read: '
            f"{number_cure(log.unreadable)}"
        )
    place = "the log" if log.collected is None else log.collected.place
    if not log.other_names and log.collected is not None:
        return _not_collected(log.metric, log.collected)
    if not log.other_names:
        explanation = f'no line of its log reported "{log.metric}"'
        if not log.last_line:
            return f"{explanation}: the log is empty or gone"
        return f"{explanation}: print it as {log.metric}=0.97"
    names = ", ".join(
        f'"{name}" ({times} time{"" if times == 1 else "s"})' for name, times in log.other_names
    )
    cure = f'set {log.place} to the name that is printed, or print "{log.metric}"'
    return f'no "{log.metric}" in {place}; it has {names}: {cure}'


def _not_collected(metric: str, collected: CollectedSummary) -> str:
    collector_note = f"; {collected.note}" if collected.note else ""
    if collected.is_empty:
        cure = (
            "the program must write to the path that TUNER_METRICS_FILE has, or listen at "
            "TUNER_METRICS_PORT"
        )
        return f"nothing was read from {collected.place}: {cure}"
    lines = (
        f"{collected.skipped} line{' is' if collected.skipped == 1 else 's are'} not a JSON object"
    )
    dropped = f" ({lines})" if collected.skipped else ""
    return f'no "{metric}" in {collected.place}{dropped}{collector_note}'


def class_by_itself(code: int | None, last_line: str) -> FailureClass | None:
    """Return the failure class that an exit code or last line names; None if neither does."""
    if code == TEMPORARY_EXIT_CODE:
        return FailureClass.INFRASTRUCTURE
    if NO_MEMORY_SAID.search(last_line):
        return FailureClass.OUT_OF_MEMORY
    return FailureClass.INFRASTRUCTURE if code in CRASH_CODES else None


def describe_exit_code(code: int | None) -> str:
    """Return how a reason words an exit code."""
    crash = CRASH_CODES.get(code or 0)
    return f"exit code {code}" + (f" (its program crashed: {crash})" if crash else "")


def _failed(failure_class: FailureClass, reason: str) -> Judgment:
    return Judgment(AttemptState.FAILED, failure_class, reason[:REASON_LENGTH])


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def may_retry(attempts: Iterable[Attempt], retries: Mapping[FailureClass, int]) -> bool:
    """Return whether the newest attempt may be retried.

    This holds if its class has failed at most `retries` times in this trial. Interrupted attempts,
    failures of other classes and everything up to one that is set aside do not count.
    """
    history: list[Attempt] = []
    for attempt in attempts:
        history = [] if attempt.set_aside else [*history, attempt]
    failure_class = history[-1].failure_class if history else None
    if failure_class is None:
        return False
    failures = sum(1 for attempt in history if attempt.failure_class is failure_class)
    return failures <= retries.get(failure_class, 0)
