"""Observation as a table: the known attempt, the status, and the resulting event."""

from dataclasses import replace

import pytest

from controller.core.attempt import AttemptStatus, Exit
from controller.core.metrics import LogReader
from controller.core.model import Attempt, FailureClass, StopCause
from controller.core.observe import event_for
from controller.core.states import AttemptEvent, Ended, ObservedRunning, Waits
from suggest.study import Pruning
from tests.unit.builders import (
    CANCELLED,
    CREATED,
    FAILED,
    INFEASIBLE,
    PRUNED,
    RUNNING,
    STOPPING,
    SUCCEEDED,
    a_spec,
    an_objective,
    at,
    attempt,
)

CRASHED, LOST = FailureClass.USER_ERROR, FailureClass.INFRASTRUCTURE
NOW = at(99)


def a_log(text: str = "") -> LogReader:
    spec = a_spec()
    log = LogReader(spec.metrics, spec.objective)
    log.feed(text.encode())
    log.finish()
    return log


def shown(
    *,
    code: int | None = None,
    signal: int | None = None,
    stopped: bool = False,
    unknown: bool = False,
) -> AttemptStatus:
    """A status that has ended with these facts, or is running without any."""
    ended = code is not None or signal is not None or unknown
    exit_ = Exit(at(9), code, signal, stopped=stopped, unknown=unknown) if ended else None
    return AttemptStatus("digits-x7k2q-0", at(1), exit_, "gpu-3")


def stopping(cause: StopCause) -> Attempt:
    return attempt(1, STOPPING, cause=cause, reason="because")


PREEMPTED = AttemptStatus("digits-x7k2q-0", None, waiting="preempted by Kueue", suspended=True)
NEW, GOING = attempt(1, CREATED), attempt(1, RUNNING)
GOOD = "epoch=4 accuracy=0.9"
VANISHED = "the attempt disappeared from the runtime"
TABLE: list[tuple[str, Attempt, AttemptStatus | None, str, AttemptEvent | None]] = [
    ("recorded, not seen: it is started again", NEW, None, "", None),
    ("recorded, and it runs", NEW, shown(), "", ObservedRunning(at(1), "gpu-3")),
    ("running, and it still runs", GOING, shown(), "", None),
    (
        "running, and preempted: it waits again",
        GOING,
        PREEMPTED,
        "",
        Waits("preempted by Kueue", NOW),
    ),
    (
        "it waits, and says nothing new",
        attempt(1, CREATED, reason="preempted by Kueue"),
        PREEMPTED,
        "",
        None,
    ),
    (
        "running, and one of its workers is replaced",
        GOING,
        AttemptStatus("digits-x7k2q-0", None),
        "",
        None,
    ),
    (
        "stopping, and preempted before it was reached",
        stopping(StopCause.PRUNED),
        PREEMPTED,
        "",
        None,
    ),
    ("stopping, and it still runs", stopping(StopCause.PRUNED), shown(), "", None),
    ("running, and gone", GOING, None, "", Ended(FAILED, NOW, reason=VANISHED, failure_class=LOST)),
    (
        "told to prune, and gone",
        stopping(StopCause.PRUNED),
        None,
        "",
        Ended(PRUNED, NOW, reason="because"),
    ),
    (
        "told to end, and gone",
        stopping(StopCause.CANCELLED),
        None,
        "",
        Ended(CANCELLED, NOW, reason="because"),
    ),
    (
        "interrupted, and gone",
        stopping(StopCause.INTERRUPTED),
        None,
        "",
        Ended(CANCELLED, NOW, reason="because"),
    ),
    (
        "recorded, and it has ended already",
        NEW,
        shown(code=0),
        GOOD,
        Ended(SUCCEEDED, at(9), start_time=at(1), value=0.9, step=4, exit_code=0, node="gpu-3"),
    ),
    (
        "infeasible: measured, but without a value",
        GOING,
        shown(code=42),
        GOOD + "\ntoo wide",
        Ended(
            INFEASIBLE,
            at(9),
            start_time=at(1),
            step=4,
            reason="too wide",
            exit_code=42,
            node="gpu-3",
        ),
    ),
    (
        "failed: measured, but without a value",
        GOING,
        shown(code=1),
        GOOD + "\nboom",
        Ended(
            FAILED,
            at(9),
            start_time=at(1),
            step=4,
            reason="exit code 1: boom",
            failure_class=CRASHED,
            exit_code=1,
            node="gpu-3",
        ),
    ),
    (
        "pruned keeps its last value",
        stopping(StopCause.PRUNED),
        shown(signal=15, stopped=True),
        GOOD,
        Ended(
            PRUNED,
            at(9),
            start_time=at(1),
            value=0.9,
            step=4,
            reason="because",
            signal=15,
            node="gpu-3",
        ),
    ),
    (
        "pruned at nan has no value",
        stopping(StopCause.PRUNED),
        shown(signal=15, stopped=True),
        "epoch=4 accuracy=nan",
        Ended(PRUNED, at(9), start_time=at(1), step=4, reason="because", signal=15, node="gpu-3"),
    ),
    (
        "nobody saw its end",
        GOING,
        shown(unknown=True),
        GOOD,
        Ended(
            FAILED,
            at(9),
            start_time=at(1),
            step=4,
            reason="the process is gone and its exit code is unknown",
            failure_class=LOST,
            node="gpu-3",
        ),
    ),
]


@pytest.mark.parametrize(
    ("known", "status", "logged", "expected"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_an_observed_status_becomes_an_event(
    known: Attempt, status: AttemptStatus | None, logged: str, expected: AttemptEvent | None
) -> None:
    log = a_log(logged)
    assert event_for(known, status, log, a_spec(), metrics=log, now=NOW) == expected


ROTATED = (
    "lines printed between 09:40 and 09:52 are missing: the node had rotated the log before "
    "they were read"
)
MARK = f"# tuner: gap: {ROTATED}\n"
BEST_IN_DOUBT = "the lines that were not read may have had another value of accuracy"


def observed(
    text: str,
    *,
    value: str = "last",
    pruning: bool = False,
    known: Attempt = GOING,
    **exit_fields: object,
) -> AttemptEvent | None:
    spec = replace(
        a_spec(objective=an_objective(value=value)), pruning=Pruning("median") if pruning else None
    )
    log = LogReader(spec.metrics, spec.objective)
    log.feed(text.encode())
    log.finish()
    status = AttemptStatus(
        "digits-x7k2q-0", at(1), Exit(at(9), 0, **exit_fields) if exit_fields else None
    )  # type: ignore[arg-type]
    return event_for(known, status, log, spec, metrics=log, now=NOW)


def ended(
    text: str, *, value: str = "last", pruning: bool = False, log_end_lost: str = ""
) -> Ended:
    event = observed(text, value=value, pruning=pruning, log_end_lost=log_end_lost)
    assert isinstance(event, Ended)
    return event


def test_a_gap_in_the_log_is_recorded_while_the_attempt_runs_and_only_once() -> None:
    assert observed(f"accuracy=0.5\n{MARK}x\n") == ObservedRunning(at(1), log_gap=ROTATED)
    assert observed(f"accuracy=0.5\n{MARK}x\n", known=replace(GOING, log_gap=ROTATED)) is None


def test_a_last_value_read_behind_the_gap_is_not_in_doubt() -> None:
    event = ended(f"accuracy=0.5\n{MARK}accuracy=0.9\n")
    assert (event.value, event.log_gap, event.value_doubt) == (0.9, ROTATED, "")


def test_a_last_value_read_before_the_gap_is_in_doubt() -> None:
    event = ended(f"accuracy=0.5\n{MARK}saved the model\n")
    assert (event.value, event.value_doubt) == (0.5, BEST_IN_DOUBT)


def test_a_best_value_is_in_doubt_wherever_the_gap_is() -> None:
    event = ended(f"accuracy=0.5\n{MARK}accuracy=0.9\n", value="best")
    assert (event.value, event.value_doubt) == (0.9, BEST_IN_DOUBT)


def test_a_curve_with_a_gap_is_in_doubt_where_pruning_compares_it() -> None:
    event = ended(f"accuracy=0.5\n{MARK}accuracy=0.9\n", pruning=True)
    assert (
        event.value_doubt
        == "its curve, which pruning median compares, lacks the steps that were not read"
    )


def test_a_lost_end_puts_every_value_in_doubt_and_discards_none() -> None:
    event = ended("accuracy=0.5\n", log_end_lost="the end of its log could not be read")
    assert (event.verdict, event.value, event.log_gap) == (
        SUCCEEDED,
        0.5,
        "the end of its log could not be read",
    )
    assert event.value_doubt == BEST_IN_DOUBT


@pytest.mark.parametrize("collects", [False, True])
def test_a_success_whose_logs_were_lost_is_the_fault_of_the_cluster(collects: bool) -> None:
    log, metrics = a_log(""), a_log("")
    end = Exit(at(9), 0, log_end_lost="its pod is gone", metrics_end_lost="its pod is gone")
    status = AttemptStatus("digits-x7k2q-0", at(1), end)
    read = metrics if collects else log
    event = event_for(GOING, status, log, a_spec(), metrics=read, now=NOW)
    assert isinstance(event, Ended)
    assert (event.failure_class, event.log_gap) == (LOST, "its pod is gone")


def test_a_whole_log_has_no_gap_and_no_doubt() -> None:
    event = ended("accuracy=0.5\n", value="best", pruning=True)
    assert (event.log_gap, event.value_doubt) == ("", "")


def test_a_success_whose_metric_is_in_the_gap_is_the_fault_of_the_cluster() -> None:
    event = ended(f"loading\n{MARK}done\n")
    assert (event.failure_class, event.reason) == (LOST, f"exit code 0, but {ROTATED}")


def test_a_vanished_attempt_keeps_the_step_that_its_log_had_reached() -> None:
    log = a_log(GOOD)
    event = event_for(GOING, None, log, a_spec(), metrics=log, now=NOW)
    assert isinstance(event, Ended)
    assert event.step == 4
