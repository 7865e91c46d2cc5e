"""A batch of `tpe` is fitted once and goes on from there; it comes out as if each point had been asked for alone."""

import itertools

import pytest

from suggest.sampling import Wanted
from suggest.sampling.sampler import generator
from suggest.sampling.tpe import LIARS, TpeSettings
from suggest.sampling.tpe_model import TOGETHER, Model
from suggest.sampling.uniform import draw
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Scale, Space
from suggest.trial import Trial, TrialState
from tests.unit.searches import MINIMIZE, MIXED, RUNNING, SUCCEEDED, study

TREE = Space(
    (
        Parameter("kind", Choice(("tree", "net"))),
        Parameter("depth", Int(1, 40), (Condition("kind", ("tree",)),)),
        Parameter("rate", Float(1e-4, 1, Scale.LOG), (Condition("kind", ("net",)),)),
        Parameter("share", Float(0.1, 1)),
        Parameter("seed", Int(0, 10**6)),
    )
)


def history(space: Space, finished: int, running: int) -> tuple[list[Trial], list[Trial]]:
    """Every other number is free; those that run are among those that ended."""
    rng = generator(1, finished, "history")
    trials = []
    for number in range(finished + running):
        point: dict[str, str | int | float | bool] = {}
        for parameter in space.ordered:
            if parameter.active(point):
                point[parameter.name] = draw(parameter.domain, rng)
        state = RUNNING if number % 3 == 2 and number // 3 < running else SUCCEEDED
        trials.append(Trial(2 * number, state, point, value=rng.random() if state is SUCCEEDED else None))
    return [t for t in trials if t.finished], [t for t in trials if not t.finished]


def one_by_one(
    space: Space, finished: list[Trial], running: list[Trial], wanted: list[Wanted], settings: TpeSettings
) -> list[Assignment]:
    points: list[Assignment] = []
    for one in wanted:
        (point,) = model(space, settings).propose(finished, running[-LIARS:], [one])
        points.append(point)
        running = sorted([*running, Trial(one.number, TrialState.RUNNING, point)], key=lambda t: t.number)
    return points


def model(space: Space, settings: TpeSettings) -> Model:
    return Model(study(space, "tpe", direction=MINIMIZE).spec, 7, settings)


@pytest.mark.parametrize("space", [MIXED, TREE], ids=["flat", "conditional"])
@pytest.mark.parametrize(("finished", "running"), [(200, 0), (30, 10), (200, 60), (3, 0)])
def test_a_batch_is_what_one_by_one_would_be(space: Space, finished: int, running: int) -> None:
    done, open_ = history(space, finished, running)
    name = "seed" if space is TREE else "momentum"
    fixed = {name: 0 if name == "seed" else 0.5}
    old = [Wanted(11, {}), Wanted(31, fixed), Wanted(51, {})]  # enqueued long ago, their numbers between the others
    new = [Wanted(1000 + k, {}) for k in range(10)]
    for settings in (TpeSettings(), TpeSettings(multivariate=False), TpeSettings(constant_liar=False)):
        for wanted in (old + new, new):
            batch = model(space, settings).propose(done, open_, wanted)
            assert batch == one_by_one(space, done, open_, wanted, settings)


def test_a_batch_longer_than_what_is_drawn_together_is_too() -> None:
    done, open_ = history(MIXED, 60, 3)
    settings = TpeSettings(candidates=TOGETHER // 2)
    wanted = [Wanted(500 + k, {}) for k in range(5)]
    assert model(MIXED, settings).propose(done, open_, wanted) == one_by_one(MIXED, done, open_, wanted, settings)


def test_a_model_that_has_seen_other_windows_proposes_the_same() -> None:
    done, open_ = history(MIXED, 120, 12)
    lived, settings = model(MIXED, TpeSettings()), TpeSettings()
    for count in (20, 50, 90):
        ended = [Trial(t.number, SUCCEEDED, t.parameters, value=0.5) for t in open_[:4]]
        past = sorted([*done[:count], *ended], key=lambda t: t.number)
        lived.propose(done[:count], open_, [Wanted(900, {})])
        lived.propose(past, open_[4:], [Wanted(901, {})])
    wanted = [Wanted(1000, {}), Wanted(1001, {})]
    assert lived.propose(done[40:], open_[4:], wanted) == model(MIXED, settings).propose(done[40:], open_[4:], wanted)


def test_running_trials_change_nothing_without_constant_liar_and_keep_points_apart_with_it() -> None:
    done, open_ = history(MIXED, 50, 9)
    proud = model(MIXED, TpeSettings(constant_liar=False))
    assert proud.propose(done, open_, [Wanted(300, {})]) == proud.propose(done, [], [Wanted(300, {})])
    points = [
        p["lr"] for p in model(MIXED, TpeSettings()).propose(done, open_, [Wanted(300 + k, {}) for k in range(8)])
    ]
    assert all(a != b for a, b in itertools.combinations(points, 2))
