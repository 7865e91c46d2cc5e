"""The memory that a restarted controller rebuilds from the stores."""

from dataclasses import replace

from controller.core.metrics import MetricReading
from controller.memory import Memory
from tests.unit.builders import FAILED, RUNNING, a_spec, a_trial, attempt

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
