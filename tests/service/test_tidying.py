"""Calls leave little for Python's garbage collector,
so that a collection never delays all calls.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from suggest.client import Client
from suggest.engine import Engine
from suggest.study import Algorithm, Study, StudySpec
from suggest.trial import Trial, TrialState
from tests.service.running import NAME, SPEC


@pytest.fixture
def without_the_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_the_collector")
def test_proposals_leave_no_reference_cycles() -> None:
    rng, learns = random.Random(1), StudySpec(SPEC.space, SPEC.objectives, Algorithm("tpe", seed=1))
    at = datetime.now(UTC)
    points = [{"x": rng.uniform(-10, 10), "kind": rng.choice("ab")} for _ in range(30)]
    trials = [
        Trial(k, TrialState.SUCCEEDED, x, value=rng.random(), create_time=at)
        for k, x in enumerate(points)
    ]
    engine = Engine(Study(NAME, "uid", learns, seed=1), trials, [])
    engine.propose(3)  # one-time initialization
    gc.collect()
    engine.propose(1)
    engine.propose(3)
    assert gc.collect() == 0


@pytest.mark.usefixtures("without_the_collector")
def test_ended_calls_free_their_streams_without_garbage_collection(client: Client) -> None:
    client.create_study(NAME, SPEC, request_id="create")
    # a connection has 100 streams
    assert {client.get_study(NAME).name for _ in range(150)} == {NAME}
