"""How a search space may grow, and that a search in a grown space keeps what it has learned."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from suggest.engine import Engine
from suggest.errors import InvalidArgument
from suggest.space import Assignment, Choice, Condition, Domain, Float, Int, Parameter, Scale, Space
from suggest.studies.space_growth import MAX_PAST, grown, growth_problems
from suggest.trial import Trial
from tests.unit.searches import RUNNING, SUCCEEDED, examples, finish, play, spaces, study

LOG = Scale.LOG
OPTIMIZER = Parameter("optimizer", Choice(("sgd", "adam")))
MOMENTUM = Parameter("momentum", Float(0, 0.9), (Condition("optimizer", ("sgd",)),))
TREE = Space((OPTIMIZER, MOMENTUM))
MORE = Parameter("optimizer", Choice(("lamb", "sgd", "adam")))


def of(*domains: Domain) -> Space:
    return Space(tuple(Parameter(f"p{k}", domain) for k, domain in enumerate(domains)))


def paths(old: Space, new: Space) -> list[str]:
    assert new.problems() == ()
    return [problem.path for problem in growth_problems(old, new)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Float(0, 1), Float(-1, 1)),
        (Float(1e-3, 1, LOG), Float(1e-5, 10, LOG)),
        (Float(0, 1, step=0.25), Float(-1, 1.5, step=0.125)),
        (Float(0, 1, step=0.25), Float(0, 1)),
        (Float(0, 1, points=3), Float(0, 1, points=5)),
        (Float(0, 1, points=3), Float(-1, 2, points=7)),
        (Float(1e-3, 1, LOG, points=4), Float(1e-5, 1, LOG, points=6)),
        (Float(0, 1, points=3), Float(0, 1)),
        (Float(1, 1), Float(0, 2, points=3)),
        (Int(1, 9, step=2), Int(1, 12)),
        (Int(4, 8, step=4), Int(0, 12, step=2)),
        (Int(1, 64, LOG), Int(1, 256, LOG)),
        (Choice(("a", 1)), Choice((True, 1, "b", "a"))),
    ],
)
def test_wider_ranges_more_choices_and_finer_steps_are_growth(old: Domain, new: Domain) -> None:
    assert paths(of(old), of(new)) == []
    assert paths(of(new), of(old)) != [] or of(new) == of(old) or old.count is None


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        (Float(0, 1), Float(0.1, 0.9), ["p0.min", "p0.max"]),
        (Float(0.1, 1), Float(0.1, 1, LOG), ["p0.scale"]),
        (Float(0, 1), Float(0, 1, step=0.5), ["p0.step"]),
        (Float(0, 1, step=0.25), Float(0, 1.2, step=0.3), ["p0.step"]),
        (Float(0, 1, step=0.25), Float(-0.1, 1.15, step=0.25), ["p0.step"]),
        (Float(0, 1, points=3), Float(0, 1, points=4), ["p0.points"]),
        (Float(0, 1, points=3), Float(0, 2, points=3), ["p0.points"]),
        (Int(1, 9), Int(1, 11, step=2), ["p0.step"]),
        (Int(1, 9), Float(1, 9), ["p0.type"]),
        (Int(1, 9), Choice((1, 2)), ["p0.type"]),
        (Choice(("a", 1)), Choice(("a", True)), ["p0.values"]),
    ],
)
def test_everything_else_is_refused_with_its_path(
    old: Domain, new: Domain, path: list[str]
) -> None:
    assert paths(of(old), of(new)) == path


@pytest.mark.parametrize(
    ("new", "path"),
    [
        (Space((OPTIMIZER,)), ["momentum"]),
        (Space((*TREE.parameters, Parameter("lr", Float(0, 1)))), ["lr"]),
        (Space((OPTIMIZER, replace(MOMENTUM, when=()))), ["momentum.when.optimizer"]),
        (
            Space((OPTIMIZER, replace(MOMENTUM, when=(Condition("optimizer", ("adam",)),)))),
            ["momentum.when.optimizer"],
        ),
        (
            Space((OPTIMIZER, replace(MOMENTUM, when=(Condition("optimizer", ("sgd", "adam")),)))),
            ["momentum.when.optimizer"],
        ),
        # Parameters that only a new choice activates are missing in no trial,
        # and neither are their dependents.
        (Space((MORE, replace(MOMENTUM, when=(Condition("optimizer", ("sgd", "lamb")),)))), []),
        (
            Space(
                (
                    MORE,
                    MOMENTUM,
                    Parameter("trust", Choice((True, False)), (Condition("optimizer", ("lamb",)),)),
                    Parameter("clip", Float(0, 1), (Condition("trust", (True,)),)),
                )
            ),
            [],
        ),
        (
            Space(
                (
                    MORE,
                    MOMENTUM,
                    Parameter("b", Int(1, 2), (Condition("optimizer", ("lamb", "sgd")),)),
                )
            ),
            ["b"],
        ),
    ],
)
def test_parameters_and_conditions_stay_except_for_what_new_choices_add(
    new: Space, path: list[str]
) -> None:
    assert paths(TREE, new) == path


@given(spaces())
@examples(50)
def test_an_unchanged_space_is_growth(space: Space) -> None:
    assert growth_problems(space, space) == ()
    one = study(space)
    assert grown(one, space, trials=3) is one


def test_a_grown_study_keeps_what_it_was_and_how_many_trials_that_had() -> None:
    one = grown(study(of(Float(0, 1))), of(Float(0, 2)), trials=3)
    two = grown(one, of(Float(0, 4)), trials=5)
    assert [(past.space, past.trials) for past in two.past] == [
        (of(Float(0, 1)), 3),
        (of(Float(0, 2)), 5),
    ]
    with pytest.raises(
        InvalidArgument,
        match=r"spec.parameters.p0.max: 2 is below 4, and a range only grows; raise it",
    ):
        grown(two, of(Float(0, 2)), trials=9)
    for wide in range(5, 3 + MAX_PAST):
        two = grown(two, of(Float(0, wide)), trials=9)
    with pytest.raises(InvalidArgument, match="has grown 100 times; create a new study"):
        grown(two, of(Float(0, 1000)), trials=9)
    words = tuple(f"{k:0>100}" for k in range(9_999))
    with pytest.raises(
        InvalidArgument, match="is too large to have grown so often; create a new study"
    ):
        grown(study(of(Choice(words))), of(Choice((*words, "more"))), trials=0)


def test_a_grown_grid_tries_what_is_new_and_repeats_nothing() -> None:
    old, new = (
        of(Float(0, 1, points=3), Choice(("a", "b"))),
        of(Float(0, 1, points=5), Choice(("c", "a", "b"))),
    )
    engine = Engine(study(old, "grid"), (), ())
    before = play(engine, 99)
    finish(engine, before, value=1.0)
    assert len(before) == 6
    engine.update_study(grown(engine.study, new, trials=6))
    after = play(engine, 99)
    points = {tuple(sorted(trial.parameters.items())) for trial in (*before, *after)}
    assert (len(after), len(points)) == (9, 15)
    assert engine.propose(1).exhausted


SMALL = Space((Parameter("x", Float(0, 1)), OPTIMIZER, MOMENTUM, Parameter("n", Int(1, 8, LOG))))
LARGE = Space((Parameter("x", Float(0, 4)), MORE, MOMENTUM, Parameter("n", Int(1, 32, LOG))))


def value(point: Assignment) -> float:
    """A value that keeps rising beyond the small space."""
    return float(point["x"])


def search(engine: Engine, count: int) -> list[Trial]:
    found = []
    for _ in range(count):
        [trial] = play(engine, 1)
        finish(engine, [trial], value=value(trial.parameters))
        found.append(trial)
    return found


@pytest.mark.parametrize("algorithm", ["random", "tpe", "optuna:tpe", "gp", "default"])
def test_a_search_in_a_grown_space_continues_like_a_restarted_one(algorithm: str) -> None:
    engine = Engine(study(SMALL, algorithm), (), ())
    before = search(engine, 15)
    running = play(engine, 2)
    engine.update_study(grown(engine.study, LARGE, trials=17))
    history = [Trial(t.number, SUCCEEDED, t.parameters, value=value(t.parameters)) for t in before]
    restarted = Engine(engine.study, [*history, *running], ())
    assert engine.propose(4) == restarted.propose(4)
    for trial in engine.propose(4).trials:
        assert LARGE.point_problems(trial.parameters, partial=False) == ()


@pytest.mark.parametrize("algorithm", ["tpe", "optuna:tpe"])
def test_earlier_trials_guide_the_search_in_the_grown_space(algorithm: str) -> None:
    engine = Engine(study(SMALL, algorithm), (), ())
    search(engine, 20)
    engine.update_study(grown(engine.study, LARGE, trials=20))
    after = search(engine, 20)
    beyond = [trial for trial in after[10:] if float(trial.parameters["x"]) > 1]
    assert len(beyond) > 5, "it has found the way beyond the old range"


def test_a_trial_that_runs_while_the_space_grows_still_counts() -> None:
    engine = Engine(study(of(Int(1, 3)), "grid"), (), ())
    [trial] = play(engine, 1)
    engine.update_study(grown(engine.study, of(Int(0, 3)), trials=1))
    assert [p.parameters["p0"] for p in engine.propose(9).trials] == [0, 2, 3]
    finish(engine, [trial], value=1.0)
    assert (engine.trial(0).value, engine.trial(0).parameters, trial.state) == (
        1.0,
        {"p0": 1},
        RUNNING,
    )
