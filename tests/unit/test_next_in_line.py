"""How many successors are created before a slot is free (docs/adr/0005-the-next-in-line.md)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controller.core.decide import decide
from controller.core.snapshot import Suggest
from controller.memory import Memory
from tests.unit.builders import RUNNING, SUCCEEDED, a_spec, attempt, open_trial, snapshot

BEGAN = datetime(2026, 11, 22, tzinfo=UTC)


def after(
    lasted_s: list[float], *, parallelism: int, independent: bool, runtime: str = "local"
) -> Memory:
    """Return the memory after attempts of these durations."""
    memory = Memory(replace(a_spec(parallelism=parallelism), runtime=runtime))
    memory.independent = independent
    for number, seconds in enumerate(lasted_s):
        ended = attempt(1, SUCCEEDED, trial=number)
        memory.note_attempt(
            replace(ended, start_time=BEGAN, end_time=BEGAN + timedelta(seconds=seconds))
        )
    return memory


@pytest.mark.parametrize(
    ("independent", "parallelism", "successors"),
    [
        pytest.param(True, 1, 2, id="nothing is lost where outcomes do not matter"),
        pytest.param(True, 16, 2, id="nor with many at once"),
        pytest.param(False, 1, 0, id="a search that learns one by one knows every outcome"),
        pytest.param(False, 7, 0, id="where few outcomes are missing one more would tell"),
        pytest.param(False, 8, 1, id="where many are it would not"),
        pytest.param(False, 16, 1, id="but no two"),
    ],
)
def test_short_trials_have_prefetched_successors(
    independent: bool, parallelism: int, successors: int
) -> None:
    assert after([0.2] * 4, parallelism=parallelism, independent=independent).prefetch == successors


@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize(
    ("lasted_s", "runtime"),
    [
        ([0.2] * 3, "local"),
        ([0.2, 0.2, 3.0, 0.2], "local"),
        ([5.0] * 4, "local"),
        ([15.0] * 4, "kubernetes"),
    ],
)
def test_nothing_is_prefetched_before_trials_are_known_to_be_short(
    lasted_s: list[float], runtime: str, independent: bool
) -> None:
    assert after(lasted_s, parallelism=8, independent=independent, runtime=runtime).prefetch == 0


def test_on_a_cluster_trials_of_seconds_are_short() -> None:
    assert after([5.0] * 4, parallelism=8, independent=False, runtime="kubernetes").prefetch == 1


@pytest.mark.parametrize(
    ("parallelism", "prefetch", "asked"), [(4, 0, 1), (4, 1, 2), (4, 2, 3), (1, 2, 2)]
)
def test_the_number_of_prefetched_trials_is_at_most_the_parallelism(
    parallelism: int, prefetch: int, asked: int
) -> None:
    running = [open_trial(number, RUNNING) for number in range(parallelism - 1)]
    before = replace(snapshot(a_spec(parallelism=parallelism), *running), prefetch=prefetch)
    assert decide(before) == [Suggest(asked)]


def test_with_gpus_nothing_is_prefetched() -> None:
    before = replace(snapshot(a_spec(parallelism=4), slots=4), prefetch=2)
    assert decide(before) == [Suggest(4)]
