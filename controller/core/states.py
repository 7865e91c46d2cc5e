"""The state machine of an attempt: the only place where an attempt's state changes.

    created ◄─► running ──► stopping
       │           │            │
       └───────────┴────────────┴──► succeeded · pruned · infeasible · failed · cancelled

A running attempt that its queue preempts is `created` again: the same attempt waits and runs again,
and its start time becomes that of the new run.

The runtime is observed every turn, so the same signal arrives many times: OBSERVED_RUNNING in
RUNNING is normal. An ended attempt takes no signals. A (state, signal) pair that is missing from
TRANSITIONS is a bug in the caller and raises. `docs/states.md` is generated from the table. No
clock, no I/O: the time of an event is part of the event.

The states of an experiment are in `model`; `decide` changes them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias, assert_never

from controller.core.model import Attempt, AttemptState, FailureClass, StopCause


class Signal(enum.Enum):
    WAITING = "observed waiting"
    OBSERVED_RUNNING = "observed running"
    STOP_ASKED = "stop asked"
    SUCCEEDED = "succeeded"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S, _G = AttemptState, Signal

TRANSITIONS: Mapping[AttemptState, Mapping[Signal, AttemptState]] = {
    _S.CREATED: {
        _G.WAITING: _S.CREATED,
        _G.OBSERVED_RUNNING: _S.RUNNING,
        # The attempt may be running already, since a start is recorded before it is made and a stop
        # before it is sent.
        _G.STOP_ASKED: _S.STOPPING,
        # It started and ended between two observations, or the runtime refused it.
        _G.SUCCEEDED: _S.SUCCEEDED,
        _G.INFEASIBLE: _S.INFEASIBLE,
        _G.FAILED: _S.FAILED,
    },
    _S.RUNNING: {
        _G.WAITING: _S.CREATED,
        _G.OBSERVED_RUNNING: _S.RUNNING,
        _G.STOP_ASKED: _S.STOPPING,
        _G.SUCCEEDED: _S.SUCCEEDED,
        _G.INFEASIBLE: _S.INFEASIBLE,
        _G.FAILED: _S.FAILED,
    },
    _S.STOPPING: {
        _G.OBSERVED_RUNNING: _S.STOPPING,
        _G.STOP_ASKED: _S.STOPPING,  # keeps the first cause
        _G.PRUNED: _S.PRUNED,
        _G.CANCELLED: _S.CANCELLED,
        # The attempt ended by itself before the signal reached it.
        _G.SUCCEEDED: _S.SUCCEEDED,
        _G.INFEASIBLE: _S.INFEASIBLE,
        _G.FAILED: _S.FAILED,
    },
    _S.SUCCEEDED: {},
    _S.PRUNED: {},
    _S.INFEASIBLE: {},
    _S.FAILED: {},
    _S.CANCELLED: {},
}

VERDICTS: Mapping[AttemptState, Signal] = {
    _S.SUCCEEDED: _G.SUCCEEDED,
    _S.PRUNED: _G.PRUNED,
    _S.INFEASIBLE: _G.INFEASIBLE,
    _S.FAILED: _G.FAILED,
    _S.CANCELLED: _G.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Waits:
    """The runtime holds the attempt without running it: not started, or preempted by its queue."""

    reason: str
    time: datetime


@dataclass(frozen=True, slots=True)
class ObservedRunning:
    """The runtime shows the attempt running."""

    start_time: datetime
    node: str = ""
    image: str = ""
    log_gap: str = ""


@dataclass(frozen=True, slots=True)
class StopAsked:
    cause: StopCause
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The attempt has ended.

    `verdict` is one of the five ended states. `value` is finite if the attempt succeeded; if it was
    pruned, it is the last finite value or None; otherwise it is None.
    """

    verdict: AttemptState
    time: datetime
    start_time: datetime | None = None
    value: float | None = None
    step: int | None = None
    reason: str = ""
    failure_class: FailureClass | None = None
    exit_code: int | None = None
    signal: int | None = None
    node: str = ""
    image: str = ""
    log_gap: str = ""
    value_doubt: str = ""


AttemptEvent: TypeAlias = Waits | ObservedRunning | StopAsked | Ended


class ImpossibleTransition(Exception):
    """The state has no transition on this signal, which is a bug in the caller."""


def step(attempt: Attempt, event: AttemptEvent) -> Attempt:
    """Return the attempt after the event.

    Raises:
        ImpossibleTransition: TRANSITIONS has no such pair.
    """
    signal = _signal(event)
    following = TRANSITIONS[attempt.state].get(signal)
    if following is None:
        raise ImpossibleTransition(
            f"trial {attempt.trial} attempt {attempt.number}: no transition from "
            f"{attempt.state.value} on {signal.value}"
        )
    match event:
        case Waits():
            return replace(
                attempt,
                state=following,
                reason=event.reason,
                earlier_s=attempt.ran_s(event.time),
                start_time=None,
                node="",
            )
        case ObservedRunning():
            return replace(
                attempt,
                state=following,
                start_time=attempt.start_time or event.start_time,
                reason="" if attempt.state is AttemptState.CREATED else attempt.reason,
                node=event.node,
                image=event.image,
                log_gap=event.log_gap or attempt.log_gap,
            )
        case StopAsked():
            if attempt.stop_cause is not None:
                return attempt
            return replace(attempt, state=following, stop_cause=event.cause, reason=event.reason)
        case Ended():
            return replace(
                attempt,
                state=following,
                start_time=attempt.start_time or event.start_time,
                end_time=event.time,
                value=event.value,
                step=event.step,
                reason=event.reason,
                failure_class=event.failure_class,
                exit_code=event.exit_code,
                signal=event.signal,
                node=event.node or attempt.node,
                image=event.image or attempt.image,
                log_gap=event.log_gap or attempt.log_gap,
                value_doubt=event.value_doubt,
            )
        case _:
            assert_never(event)


def _signal(event: AttemptEvent) -> Signal:
    match event:
        case Waits():
            return Signal.WAITING
        case ObservedRunning():
            return Signal.OBSERVED_RUNNING
        case StopAsked():
            return Signal.STOP_ASKED
        case Ended():
            return VERDICTS[event.verdict]
        case _:
            assert_never(event)


def diagram() -> str:
    """Return the table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> created"]
    for state, row in TRANSITIONS.items():
        lines += [
            f"    {state.value} --> {after.value}: {signal.value}"
            for signal, after in row.items()
            if after != state
        ]
    lines += [f"    {state.value} --> [*]" for state, row in TRANSITIONS.items() if not row]
    return "\n".join(lines)
