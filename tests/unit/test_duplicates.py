"""A proposal that repeats a point: it runs again, another point is drawn,
or its value is reused.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suggest.engine import Engine
from suggest.grid import Grid
from suggest.samplers.distinct import _Known
from suggest.samplers.grid import HeldPoints
from suggest.space import Choice, Float, Int, Parameter, Space
from suggest.trial import Trial, TrialState
from tests.unit.searches import (
    MINIMIZE,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    examples,
    finish,
    play,
    spaces,
    study,
)

SMALL = Space((Parameter("a", Int(1, 4)), Parameter("b", Choice(("x", "y", "z")))))  # 12 points
ALGORITHMS = ("random", "tpe", "optuna:tpe")


def searching(algorithm: str, policy: str, space: Space = SMALL) -> Engine:
    return Engine(
        study(space, algorithm, config={"duplicates": policy}, direction=MINIMIZE), (), ()
    )


def different(trials: list[Trial]) -> int:
    return len({repr(sorted(t.parameters.items())) for t in trials})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_resampling_tries_every_point_of_a_finite_space_once_and_says_when_it_is_done(
    algorithm: str,
) -> None:
    engine = searching(algorithm, "resample")
    trials: list[Trial] = []
    for _ in range(12):
        [trial] = play(engine, 1)
        finish(engine, [trial], value=float(trial.parameters["a"]))
        trials.append(trial)
    assert different(trials) == 12
    assert (engine.propose(1).trials, engine.propose(1).exhausted) == ((), True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_points_of_one_batch_differ_too_and_end_with_the_space(algorithm: str) -> None:
    engine = searching(algorithm, "resample")
    finish(engine, play(engine, 3), value=1.0)
    trials = play(engine, 20)
    assert (len(trials), different(trials)) == (9, 9)
    assert engine.propose(1).exhausted


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_policy_allow_never_exhausts_the_space(algorithm: str) -> None:
    engine = searching(algorithm, "allow")
    trials = play(engine, 20)
    assert len(trials) == 20
    assert different(trials) < 20


def test_a_cancelled_trial_gives_its_point_back_and_a_failed_one_does_not() -> None:
    engine = searching("random", "resample")
    trials = play(engine, 12)
    finish(engine, trials[:1], TrialState.FAILED)
    assert engine.propose(1).exhausted
    finish(engine, trials[1:2], TrialState.CANCELLED)
    assert [p.parameters for p in engine.propose(3).trials] == [trials[1].parameters]


def test_a_queued_point_counts_as_known_and_an_enqueued_duplicate_still_runs() -> None:
    engine = searching("random", "resample")
    engine.put(Trial(0, QUEUED, {"a": 1, "b": "x"}))
    engine.put(Trial(1, QUEUED, {"a": 1, "b": "x"}))
    trials = play(engine, 20)
    assert [t.parameters for t in trials[:2]] == [{"a": 1, "b": "x"}] * 2
    assert (len(trials), different(trials)) == (13, 12)


def test_a_partial_point_is_completed_to_a_new_one_if_possible() -> None:
    engine = searching("tpe", "resample")
    for number in range(4):
        engine.put(Trial(number, QUEUED, {"a": 2}))
    assert different(play(engine, 4)) == 3
    assert not engine.propose(8).exhausted


def test_an_engine_rebuilt_from_its_trials_proposes_the_same() -> None:
    engine = searching("tpe", "resample")
    trials = play(engine, 9)
    for trial in reversed(trials[:5]):
        finish(engine, [trial], value=float(trial.number))
    finish(engine, trials[7:8], TrialState.CANCELLED)
    again = Engine(engine.study, list(engine.trials()), ())
    assert again.propose(4) == engine.propose(4)


def test_points_of_a_continuous_space_are_distinct_and_never_exhausted() -> None:
    space = Space((Parameter("x", Float(0, 1)), Parameter("kind", Choice(("a", "b")))))
    engine = searching("random", "resample", space)
    [first] = play(engine, 1)
    wanted = engine.propose(1).trials[0].parameters
    engine.put(Trial(1, QUEUED, wanted))
    engine.put(Trial(1, RUNNING, wanted))
    assert different([first, *play(engine, 50)]) == 51


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_known_value_is_offered_for_a_point_that_is_proposed_again(algorithm: str) -> None:
    engine = searching(algorithm, "reuse")
    finish(engine, play(engine, 6), value=1.0)
    numbers = {
        repr(sorted(t.parameters.items())): t.number for t in reversed(list(engine.trials()))
    }
    proposed = [p for p in engine.propose(30).trials if p.known is not None]
    assert proposed
    for p in proposed:
        assert p.known == numbers[repr(sorted(p.parameters.items()))]
    assert all(p.known is None for p in engine.propose(6, to_run=True).trials)


def test_a_space_whose_points_are_all_known_is_finished_though_values_could_be_reused() -> None:
    engine = searching("random", "reuse")
    while not (proposal := engine.propose(1)).exhausted:
        for p in proposal.trials:
            engine.put(Trial(p.number, SUCCEEDED, p.parameters, value=0.0))
    assert different(list(engine.trials())) == 12


def test_no_value_is_reused_of_a_trial_that_has_none_or_runs() -> None:
    engine = searching("random", "reuse")
    trials = play(engine, 11)
    finish(engine, trials[:4], TrialState.FAILED)
    finish(engine, trials[4:8], TrialState.PRUNED, value=1.0)
    [last] = engine.propose(5).trials
    assert (last.known, different([*trials, Trial(11, RUNNING, last.parameters)])) == (None, 12)


@given(spaces(finite=True, most=3), st.data())
@examples(60)
def test_a_free_point_is_any_point_that_no_trial_holds(space: Space, data: st.DataObject) -> None:
    grid = Grid(space, {})
    if grid.total > 400 or any(p.domain.count is None for p in space.parameters):
        return
    held = data.draw(st.sets(st.integers(0, grid.total - 1)))
    taken = data.draw(st.sets(st.integers(0, grid.total - 1))) - held
    known = _Known(space)
    for number, index in enumerate(held):
        known.put(Trial(number, RUNNING, grid.point(index)))
    free = known.free(sorted(taken))
    assert free == grid.total - len(held) - len(taken)
    found = {grid.index_of(known.free_point(place, sorted(taken))) for place in range(free)}
    assert found == set(range(grid.total)) - held - taken


def test_a_step_that_an_earlier_version_wrote_above_max_is_the_same_point() -> None:
    space = Space((Parameter("x", Float(-1.0, 0.1, step=1.1 / 3)), Parameter("y", Float(0, 1))))
    known = _Known(space)
    known.put(Trial(0, RUNNING, {"x": 0.1000000000000001, "y": 0.5}))
    assert known.holds(known.key({"x": 0.1, "y": 0.5}))


@given(st.sets(st.integers(0, 60)), st.integers(0, 60))
@examples(100)
def test_a_free_point_is_found_by_its_place_among_the_free_ones(held: set[int], place: int) -> None:
    free = [n for n in range(200) if n not in held]
    points = HeldPoints()
    for trial, point in enumerate(held):
        points.put(trial, point)
    assert points.free(place) == free[place]
