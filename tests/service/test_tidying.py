"""What calls leave behind for Python's collector goes little by little: never so much that every call waits for it."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from suggest.client import Client
from suggest.engine import Engine
from suggest.server.interceptor import TIDY_EVERY
from suggest.study import Algorithm, Study, StudySpec
from suggest.trial import Trial, TrialState
from tests.service.running import NAME, SPEC, a_server


@pytest.fixture
def without_the_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Circle:
    def __init__(self) -> None:
        self.myself = self


@pytest.mark.usefixtures("without_the_collector")
def test_circles_go_after_some_hundred_calls(tmp_path: Path) -> None:
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        left = weakref.ref(Circle())
        assert left() is not None
        for _ in range(TIDY_EVERY):
            client.algorithms()
        assert left() is None


@pytest.mark.usefixtures("without_the_collector")
def test_proposals_leave_none() -> None:
    rng, learns = random.Random(1), StudySpec(SPEC.space, SPEC.objectives, Algorithm("tpe", seed=1))
    at = datetime.now(UTC)
    points = [{"x": rng.uniform(-10, 10), "kind": rng.choice("ab")} for _ in range(30)]
    trials = [Trial(k, TrialState.SUCCEEDED, x, value=rng.random(), create_time=at) for k, x in enumerate(points)]
    engine = Engine(Study(NAME, "uid", learns, seed=1), trials, [])
    engine.propose(3)  # what is made once, is made
    gc.collect()
    engine.propose(1)
    engine.propose(3)
    assert gc.collect() == 0
