"""A proposal in steps: the worker needs nothing of the engine, and the points are the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from suggest.engine import Draft, Engine
from suggest.space import Choice, Float, Int, Parameter, Space
from suggest.study import Algorithm, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Trial, TrialState
from suggest.workers import Workers

NUMBERS = Space((Parameter("x", Float(0.0, 1.0)), Parameter("n", Int(1, 50))))
SMALL = Space((Parameter("a", Int(1, 4)), Parameter("b", Choice(("x", "y", "z")))))  # 12 points


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    pool = Workers(size=1)
    yield pool
    pool.close()


def study(algorithm: str, space: Space = NUMBERS, **settings: str | int) -> Study:
    spec = StudySpec(
        space,
        (Objective("loss", Direction.MINIMIZE),),
        Algorithm(algorithm, seed=7, settings=settings),
    )
    return Study(StudyName("default", "s"), "uid", spec, 7)


def after_trials(engine: Engine, trials: int) -> Engine:
    for number in range(engine.next_number, trials):
        (one,) = engine.propose(1).trials
        engine.put(Trial(number, TrialState.SUCCEEDED, one.parameters, value=float(number % 7)))
    return engine


def computed(draft: Draft) -> Draft:
    while draft.proposal is None:
        draft.resume(draft.computation())
    return draft


@pytest.mark.parametrize(
    "algorithm", ["gp", "default", "cmaes", "optuna:tpe", "optuna:nsgaii", "optuna:bruteforce"]
)
def test_every_model_in_a_worker_proposes_in_steps(pool: Workers, algorithm: str) -> None:
    space = SMALL if algorithm == "optuna:bruteforce" else NUMBERS
    engine = after_trials(
        Engine(study(algorithm, space), (), (), workers=pool), 12 if space is NUMBERS else 5
    )
    draft = engine.draft(2)
    assert draft.proposal is None, "a worker computes it"
    assert computed(draft).proposal == Engine(study(algorithm, space), engine.trials(), ()).propose(
        2
    )


def test_a_short_proposal_has_no_steps(pool: Workers) -> None:
    engine = after_trials(Engine(study("tpe"), (), (), workers=pool), 12)
    assert engine.draft(1).proposal == engine.propose(1)


def test_trials_that_end_meanwhile_change_nothing_of_a_draft(pool: Workers) -> None:
    engine = after_trials(Engine(study("gp"), (), (), workers=pool), 12)
    engine.put(running := Trial(12, TrialState.RUNNING, {"x": 0.5, "n": 5}))
    expected = engine.propose(1)
    draft = engine.draft(1)
    engine.put(replace(running, state=TrialState.SUCCEEDED, value=-3.0))
    assert computed(draft).proposal == expected
    assert engine.fits(draft)
    assert engine.propose(1) != expected, "the result matters"


def test_a_draft_is_stale_when_its_number_is_taken_or_the_space_has_grown(pool: Workers) -> None:
    engine = after_trials(Engine(study("gp"), (), (), workers=pool), 12)
    draft = computed(engine.draft(1))
    assert draft.proposal is not None
    assert engine.renumbered(draft) == draft.proposal
    engine.put(Trial(12, TrialState.RUNNING, {"x": 0.123, "n": 5}))
    assert not engine.fits(draft)
    moved = engine.renumbered(draft)
    assert moved is not None
    assert [(p.number, p.parameters) for p in moved.trials] == [
        (13, draft.proposal.trials[0].parameters)
    ]
    engine.put(Trial(13, TrialState.RUNNING, draft.proposal.trials[0].parameters))
    assert engine.renumbered(draft) is None, "a running trial has the point"
    other = computed(engine.draft(1))
    grown = Space((Parameter("x", Float(0.0, 2.0)), *NUMBERS.parameters[1:]))
    engine.update_study(replace(engine.study, spec=replace(engine.study.spec, space=grown)))
    assert engine.renumbered(other) is None


def test_a_cheaper_point_is_new_to_the_study_where_repeats_are_unwanted(pool: Workers) -> None:
    engine = Engine(study("gp", SMALL, duplicates="resample"), (), (), workers=pool)
    found: list[object] = []
    for number in range(12):
        (one,) = engine.propose_cheaper().trials
        assert (one.number, one.proposed_by) == (number, "tpe")
        found.append(repr(one.parameters))
        engine.put(Trial(number, TrialState.SUCCEEDED, one.parameters, value=float(number)))
    assert len(set(found)) == 12
    assert engine.propose_cheaper().exhausted


@pytest.mark.parametrize(
    ("algorithm", "has_cheaper"),
    [
        ("gp", True),
        ("default", True),
        ("optuna:tpe", True),
        ("tpe", False),
        ("random", False),
        ("optuna:qmc", False),
    ],
)
def test_slow_model_based_algorithms_have_a_cheaper_alternative(
    pool: Workers, algorithm: str, has_cheaper: bool
) -> None:
    assert Engine(study(algorithm), (), (), workers=pool).has_cheaper == has_cheaper
