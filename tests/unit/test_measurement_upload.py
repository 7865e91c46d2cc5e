"""Measurements of many running trials, which are uploaded at once to a study behind a network."""

from __future__ import annotations

import asyncio
from collections.abc import Set

import pytest

from controller.core.metrics import MetricReading
from controller.measurement_upload import AT_ONCE, MeasurementUploader
from controller.memory import Memory
from controller.search import ExperimentStudy
from suggest.errors import NotFound, Unavailable
from suggest.study import StudyName
from suggest.trial import Measurement, StopAdvice
from tests.unit.builders import RUNNING, a_spec, a_trial, an_experiment, attempt

TRIALS = range(3 * AT_ONCE)


class DistantStudies:
    """Stands in for the service. Each call waits for all that are sent beside it."""

    def __init__(self, *, refused: Set[int] = frozenset(), gone: Set[int] = frozenset()) -> None:
        self.refused = refused
        self.gone = gone
        self.reported: list[int] = []
        self.in_progress: set[int] = set()
        self.most_at_once = 0

    async def report(
        self, _name: StudyName, number: int, _measurements: list[Measurement]
    ) -> StopAdvice:
        self.in_progress.add(number)
        self.most_at_once = max(self.most_at_once, len(self.in_progress))
        try:
            await asyncio.sleep(0)
            if number in self.refused:
                raise Unavailable(f"no reply for trial {number}")
            if number in self.gone:
                raise NotFound(f"trial {number} is gone")
            self.reported.append(number)
        finally:
            self.in_progress.discard(number)
        return StopAdvice(number % 2 == 1, "hopeless")


def running() -> Memory:
    memory = Memory(a_spec())
    for number in TRIALS:
        memory.open(a_trial(number), [attempt(1, RUNNING, trial=number)])
        memory.opened[number].note([MetricReading("accuracy", 1, 0.5)])
    return memory


def upload(memory: Memory, studies: DistantStudies) -> bool:
    # only one of its calls is made
    study = ExperimentStudy(an_experiment(), studies)  # type: ignore[arg-type]
    return asyncio.run(MeasurementUploader(study, at_once=True).send_due(memory, now_s=0.0))


def test_trials_do_not_wait_for_each_others_reply() -> None:
    memory, studies = running(), DistantStudies()
    assert upload(memory, studies)
    assert studies.most_at_once == AT_ONCE
    assert studies.reported == list(TRIALS)
    assert sorted(memory.advised) == [number for number in TRIALS if number % 2 == 1]
    assert not any(opened.unreported for opened in memory.opened.values())


def test_after_an_error_nothing_is_in_progress_and_nothing_is_lost() -> None:
    memory, studies = running(), DistantStudies(refused={2})
    with pytest.raises(Unavailable, match="no reply for trial 2"):
        upload(memory, studies)
    assert not studies.in_progress
    kept = {number for number in TRIALS if memory.opened[number].unreported}
    assert kept.isdisjoint(studies.reported)
    assert len(kept) >= 2 * AT_ONCE, "no call begins after the error"
    studies.refused = frozenset()
    upload(memory, studies)
    assert sorted(studies.reported) == list(TRIALS)


def test_an_outage_does_not_hide_an_error_that_remains() -> None:
    with pytest.raises(NotFound, match="trial 5 is gone"):
        upload(running(), DistantStudies(refused={2, 7}, gone={5}))
