"""The heart of the tests: drawn experiments, whole, in virtual time, with everything that can break broken."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from controller.model import ExperimentState
from tests.sim.plans import plans
from tests.sim.world import Plan, World, stores

_UIDS = (f"{n:05d}" for n in itertools.count())


@pytest.fixture(scope="module")
def play_plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Plan], ExperimentState]]:
    folder: Path = tmp_path_factory.mktemp("sim")
    store, studies = stores(folder)
    yield lambda plan: World(plan, store=store, studies=studies, uid=next(_UIDS)).run()
    studies.close()
    store.close()


@pytest.mark.timeout(0)
@settings(
    max_examples=int(os.environ.get("TUNER_SIM_EXAMPLES", "300")),
    deadline=timedelta(seconds=20),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    derandomize="CI" in os.environ,  # a change is judged by its own faults; people draw anew each time
)
@given(plan=plans())
def test_no_experiment_breaks_a_promise(play_plan: Callable[[Plan], ExperimentState], plan: Plan) -> None:
    assert play_plan(plan).finished
