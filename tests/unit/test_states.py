"""The states of an attempt: every pair of the table, the data of a transition,
and the diagram in the docs.
"""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from controller.core.model import Attempt, AttemptState, FailureClass, StopCause
from controller.core.states import (
    TRANSITIONS,
    AttemptEvent,
    Ended,
    ImpossibleTransition,
    ObservedRunning,
    Signal,
    StopAsked,
    Waits,
    diagram,
    step,
)
from tests.unit.builders import (
    CANCELLED,
    CREATED,
    FAILED,
    INFEASIBLE,
    PRUNED,
    RUNNING,
    STOPPING,
    SUCCEEDED,
    at,
    attempt,
)

EVENTS: dict[Signal, AttemptEvent] = {
    Signal.WAITING: Waits("no room", at(1)),
    Signal.OBSERVED_RUNNING: ObservedRunning(at(1)),
    Signal.STOP_ASKED: StopAsked(StopCause.CANCELLED),
    Signal.SUCCEEDED: Ended(SUCCEEDED, at(2)),
    Signal.PRUNED: Ended(PRUNED, at(2)),
    Signal.INFEASIBLE: Ended(INFEASIBLE, at(2)),
    Signal.FAILED: Ended(FAILED, at(2)),
    Signal.CANCELLED: Ended(CANCELLED, at(2)),
}
BY_ITSELF = {Signal.SUCCEEDED: SUCCEEDED, Signal.INFEASIBLE: INFEASIBLE, Signal.FAILED: FAILED}
# Repeated here on purpose, so that a change of the table is deliberate.
LIFE = {
    CREATED: {
        Signal.WAITING: CREATED,
        Signal.OBSERVED_RUNNING: RUNNING,
        Signal.STOP_ASKED: STOPPING,
        **BY_ITSELF,
    },
    RUNNING: {
        Signal.WAITING: CREATED,
        Signal.OBSERVED_RUNNING: RUNNING,
        Signal.STOP_ASKED: STOPPING,
        **BY_ITSELF,
    },
    STOPPING: {
        Signal.OBSERVED_RUNNING: STOPPING,
        Signal.STOP_ASKED: STOPPING,
        Signal.PRUNED: PRUNED,
        Signal.CANCELLED: CANCELLED,
        **BY_ITSELF,
    },
}


@pytest.mark.parametrize(("state", "signal"), list(itertools.product(AttemptState, Signal)))
def test_every_pair_of_the_table_leads_where_it_should_or_raises(
    state: AttemptState, signal: Signal
) -> None:
    before = attempt(1, state, cause=StopCause.CANCELLED if state is STOPPING else None)
    expected = LIFE.get(state, {}).get(signal)
    if expected is None:
        with pytest.raises(
            ImpossibleTransition, match=f"no transition from {state.value} on {signal.value}"
        ):
            step(before, EVENTS[signal])
    else:
        assert step(before, EVENTS[signal]).state is expected


def test_an_ended_attempt_ignores_further_events() -> None:
    assert {state for state, row in TRANSITIONS.items() if not row} == {
        s for s in AttemptState if s.ended
    }


def test_the_reason_for_waiting_is_kept_until_the_attempt_runs() -> None:
    waiting = step(attempt(1), Waits("QuotaExceeded: requests.nvidia.com/gpu 8/8", at(1)))
    assert (waiting.state, waiting.reason) == (
        CREATED,
        "QuotaExceeded: requests.nvidia.com/gpu 8/8",
    )
    assert step(waiting, ObservedRunning(at(1))).reason == ""


def test_a_preempted_attempt_waits_without_a_node_and_starts_over() -> None:
    seen = step(attempt(1), ObservedRunning(at(1), "gpu-3"))
    waiting = step(seen, Waits("preempted by Kueue, waits in queue team-a", at(9)))
    assert waiting == Attempt(
        0, 1, CREATED, reason="preempted by Kueue, waits in queue team-a", earlier_s=8
    )
    assert step(waiting, ObservedRunning(at(60), "gpu-7")) == Attempt(
        0, 1, RUNNING, start_time=at(60), node="gpu-7", earlier_s=8
    )


def test_the_first_status_that_has_a_start_sets_it_and_a_later_one_does_not_move_it() -> None:
    seen = step(attempt(1), ObservedRunning(at(1), "gpu-3"))
    assert seen == Attempt(0, 1, RUNNING, start_time=at(1), node="gpu-3")
    assert step(seen, ObservedRunning(at(9), "gpu-3")) == seen


def test_the_first_cause_of_a_stop_is_kept() -> None:
    asked = step(attempt(1, RUNNING), StopAsked(StopCause.PRUNED, "below the median"))
    assert asked.stop_cause is StopCause.PRUNED
    assert step(asked, StopAsked(StopCause.INTERRUPTED, "interrupted")) == asked


def test_an_end_carries_all_its_facts() -> None:
    end = Ended(
        FAILED,
        at(9),
        start_time=at(1),
        step=4,
        reason="exit code 1",
        failure_class=FailureClass.USER_ERROR,
        exit_code=1,
        node="gpu-3",
    )
    assert step(attempt(2, trial=7), end) == Attempt(
        7,
        2,
        FAILED,
        start_time=at(1),
        end_time=at(9),
        exit_code=1,
        step=4,
        failure_class=FailureClass.USER_ERROR,
        reason="exit code 1",
        node="gpu-3",
    )


def test_an_end_keeps_the_start_and_the_node_that_were_seen() -> None:
    seen = replace(attempt(1, RUNNING), node="gpu-3")
    ended = step(seen, Ended(SUCCEEDED, at(9), start_time=at(5), value=0.5))
    assert (ended.start_time, ended.node, ended.value) == (seen.start_time, "gpu-3", 0.5)


def test_the_documentation_shows_the_table_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs/states.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{diagram()}\n```" in page, (
        "docs/states.md is stale: copy controller.core.states.diagram()"
    )
    assert [s.value for s in AttemptState if f"| `{s.value}` |" not in page] == []
