"""The memory that a restarted controller rebuilds from the stores."""

from dataclasses import replace
from datetime import timedelta

import pytest

from controller.core.metrics import MetricReading
from controller.memory import Memory
from suggest.trial import TrialState
from tests.unit.builders import FAILED, RUNNING, START, SUCCEEDED, a_spec, a_trial, attempt

FIRST = replace(attempt(1, FAILED), step=5)


def test_restarted_controller_counts_steps_as_the_one_before() -> None:
    memory = Memory(a_spec())
    attempts = [FIRST, attempt(2, FAILED), attempt(3, RUNNING)]
    memory.open(a_trial(12), attempts)
    assert memory.opened[12].log.feed(b"accuracy=0.9\n") == [MetricReading("accuracy", 6, 0.9)]


def test_step_of_the_attempt_itself_is_read_again_from_its_log() -> None:
    memory = Memory(a_spec())
    memory.open(a_trial(12), [FIRST])
    assert memory.opened[12].log.feed(b"accuracy=0.9\n") == [MetricReading("accuracy", 1, 0.9)]


def test_new_attempt_counts_on() -> None:
    memory = Memory(a_spec())
    memory.open(a_trial(12), [FIRST])
    memory.begin(memory.opened[12], attempt(2), now_s=0.0)
    assert memory.opened[12].log.feed(b"accuracy=0.9\n") == [MetricReading("accuracy", 6, 0.9)]


def test_a_number_whose_trial_has_ended_is_another_trials_when_it_is_handed_out_first() -> None:
    memory = Memory(a_spec())
    assert not memory.belongs_to_another_client(a_trial(0))
    memory.note_attempt(attempt(1, SUCCEEDED))
    assert memory.belongs_to_another_client(replace(a_trial(0), tries=1))
    assert not memory.belongs_to_another_client(replace(a_trial(0), tries=2))
    assert not memory.belongs_to_another_client(
        replace(a_trial(0), tries=1, state=TrialState.CANCELLED)
    )


def test_a_running_attempt_is_not_taken_for_a_trial_with_other_parameters() -> None:
    memory = Memory(a_spec())
    memory.open(a_trial(0, lr=0.1), [attempt(1, RUNNING)])
    memory.note_attempt(attempt(1, RUNNING))
    assert not memory.belongs_to_another_client(a_trial(0, lr=0.1))
    assert memory.belongs_to_another_client(a_trial(0, lr=0.2))


@pytest.mark.parametrize("ahead_s", [-86_400.0, -300.0, 0.0, 300.0, 86_400.0])
def test_the_first_trial_runs_alone_for_as_long_as_this_controller_sees_it_run(
    ahead_s: float,
) -> None:
    """Its start time is that of another machine's clock, or of a wall clock that was set since."""
    memory = Memory(a_spec(canary_s=10.0))
    memory.open(a_trial(0), [])
    memory.begin(memory.opened[0], attempt(1), now_s=5.0)
    memory.judge_canary(95.0)  # it waits for a node
    assert (memory.canary_over, memory.longest_run_s(95.0)) == (False, None)
    memory.opened[0].attempts[-1] = replace(
        attempt(1, RUNNING), start_time=START + timedelta(seconds=ahead_s)
    )
    for now_s, over in ((100.0, False), (109.0, False), (110.0, True)):
        memory.judge_canary(now_s)
        assert (memory.canary_over, memory.longest_run_s(now_s)) == (over, now_s - 100.0)
    memory.opened[0].attempts[-1] = replace(attempt(1, RUNNING), start_time=None)
    memory.judge_canary(120.0)
    assert (memory.canary_over, memory.longest_run_s(120.0)) == (False, None), "it was preempted"
