"""One study in memory: proposals, requests, measurements, values,
the best trial, and the rules of a spec.
"""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suggest.engine import Engine, check_spec
from suggest.errors import NotFound
from suggest.space import Choice, Condition, Float, Int, Parameter, Scale, Space, Value
from suggest.study import Algorithm, Direction, Objective, Pruning, StudySpec, ValueRule, better
from suggest.trial import Measurement, Trial, TrialState
from tests.unit.searches import (
    CHOICES,
    MAXIMIZE,
    MINIMIZE,
    MIXED,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    accuracy,
    examples,
    finish,
    play,
    spaces,
    study,
)

TREE = Space(
    (
        Parameter("optimizer", Choice(("sgd", "adam"))),
        Parameter("momentum", Float(0, 0.9), (Condition("optimizer", ("sgd",)),)),
        Parameter("lr", Float(1e-4, 1, Scale.LOG)),
    )
)


def test_queued_trials_come_first_and_partial_ones_are_completed() -> None:
    engine = Engine(study(TREE), (), ())
    engine.put(Trial(0, QUEUED, {"lr": 1, "optimizer": "adam"}))
    engine.put(Trial(1, QUEUED, {"optimizer": "sgd"}))
    first, second, third = engine.propose(3).trials
    assert (first.number, first.parameters, first.queued) == (
        0,
        {"optimizer": "adam", "lr": 1.0},
        True,
    )
    assert (second.number, second.parameters["optimizer"], second.queued) == (1, "sgd", True)
    assert list(second.parameters) == ["optimizer", "momentum", "lr"]
    assert (third.number, third.queued) == (2, False)
    assert engine.next_number == 2


def test_proposing_changes_nothing() -> None:
    engine = Engine(study(MIXED), (), ())
    assert engine.propose(3) == engine.propose(3)
    assert engine.propose(1).trials == engine.propose(3).trials[:1]


def test_a_proposal_made_before_it_is_asked_for_is_the_same() -> None:
    plain, prepared = Engine(study(MIXED, "tpe"), (), ()), Engine(study(MIXED, "tpe"), (), ())
    for turn in range(30):
        prepared.prepare()
        assert prepared.is_prepared
        count = 2 if turn % 5 == 0 else 1
        assert prepared.propose(count) == plain.propose(count)
        for engine in (plain, prepared):
            finish(
                engine,
                [Trial(p.number, RUNNING, p.parameters) for p in engine.propose(1).trials],
                value=float(turn % 7),
            )
        assert not prepared.is_prepared, "something has changed"
    prepared.prepare()
    prepared.update_study(study(MIXED, "tpe"))
    assert not prepared.is_prepared


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
def test_a_trials_draw_depends_on_the_seed_and_its_number_alone(algorithm: str) -> None:
    one = Engine(study(MIXED, algorithm), (), ())
    batch = play(one, 5)
    other = Engine(study(MIXED, algorithm), (), ())
    assert [play(other, 1)[0].parameters for _ in range(5)] == [t.parameters for t in batch]
    assert Engine(study(MIXED, algorithm, seed=8), (), ()).propose(1) != Engine(
        study(MIXED, algorithm), (), ()
    ).propose(1)


@given(spaces(), st.integers(0, 2**63 - 1))
@examples(80)
def test_random_points_are_inside_the_space(space: Space, seed: int) -> None:
    for trial in play(Engine(study(space, seed=seed), (), ()), 5):
        assert space.point_problems(trial.parameters, partial=False) == ()
        assert repr(space.canonical(trial.parameters)) == repr(dict(trial.parameters))


def test_random_search_covers_each_scale_evenly() -> None:
    space = Space(
        (
            Parameter("log", Float(1e-4, 1.0, Scale.LOG)),
            Parameter("whole", Int(1, 3)),
            Parameter("wide", Int(1, 1000, Scale.LOG)),
            Parameter("choice", CHOICES),
            Parameter("points", Float(1e-4, 1.0, Scale.LOG, points=5)),
        )
    )
    points = [t.parameters for t in play(Engine(study(space), (), ()), 2000)]

    def share(name: str, low: float, high: float) -> float:
        return sum(low <= float(p[name]) <= high for p in points) / len(points)

    assert share("log", 1e-4, 1e-2) == pytest.approx(0.5, abs=0.05)
    assert share("whole", 1, 1) == pytest.approx(1 / 3, abs=0.05)
    assert share("wide", 1, 31) == pytest.approx(0.5, abs=0.1)
    assert share("points", 1e-4, 1e-2) == pytest.approx(0.5, abs=0.05)
    assert len({p["points"] for p in points}) == 2000  # they apply to a grid only
    assert {repr(p["choice"]) for p in points} == {repr(v) for v in CHOICES.values}


def test_requests_find_their_trials_in_their_present_state() -> None:
    engine = Engine(study(MIXED), (), ())
    a = Trial(0, RUNNING, {"layers": 1}, request_id="r1")
    engine.put(a)
    engine.put(Trial(1, QUEUED, {}, request_id="added"))
    b = Trial(1, RUNNING, {"layers": 2}, request_id="r1")
    engine.put(b)
    assert engine.trials_of_request("r1") == (a, b)
    assert engine.trials_of_request("added") == ()
    done = Trial(0, SUCCEEDED, {"layers": 1}, request_id="r1", value=1.0)
    engine.put(done)
    assert engine.trials_of_request("r1") == (done, b)


def test_an_unknown_trial_is_not_found() -> None:
    with pytest.raises(NotFound, match="has no trial 3; there are none yet"):
        Engine(study(MIXED), (), ()).trial(3)


def test_the_last_report_of_a_step_wins() -> None:
    engine = Engine(study(MIXED), [Trial(0, RUNNING, {})], ())
    first, again = Measurement(1, "accuracy", 3, 0.5), Measurement(1, "accuracy", 3, 0.6)
    assert engine.fresh(0, [first, again]) == (again,)
    engine.measure(0, [first])
    assert engine.fresh(0, [first]) == ()
    assert engine.fresh(0, [again, first]) == ()
    others = (
        Measurement(2, "accuracy", 3, 0.6),
        Measurement(1, "loss", 3, 0.6),
        Measurement(1, "accuracy", 2, 0.6),
    )
    assert engine.fresh(0, [again, *others]) == (again, *others)
    engine.measure(0, [again])
    assert engine.value_of(0) == (0.6, 3)
    nothing = Measurement(1, "accuracy", 4, math.nan)
    engine.measure(0, [nothing])
    assert engine.fresh(0, [nothing]) == ()


@pytest.mark.parametrize(
    ("rule", "direction", "reported", "value"),
    [
        (ValueRule.LAST, MAXIMIZE, accuracy(0.1, 0.9, 0.5), (0.5, 2)),
        (ValueRule.BEST, MAXIMIZE, accuracy(0.1, 0.9, 0.5), (0.9, 1)),
        (ValueRule.BEST, MINIMIZE, accuracy(0.1, 0.9, 0.5), (0.1, 0)),
        (ValueRule.WORST, MAXIMIZE, accuracy(0.5, 0.1, math.nan, 0.9), (0.1, 1)),
        (ValueRule.WORST, MINIMIZE, accuracy(0.5, 0.9, math.inf), (0.9, 1)),
        (ValueRule.LAST, MAXIMIZE, accuracy(0.1, math.nan), (None, 1)),
        (ValueRule.BEST, MAXIMIZE, accuracy(math.inf, 0.1, math.nan), (0.1, 1)),
        (ValueRule.BEST, MAXIMIZE, accuracy(0.9, 0.1, 0.9), (0.9, 0)),
        (ValueRule.BEST, MAXIMIZE, accuracy(math.nan), (None, 0)),
        (ValueRule.LAST, MAXIMIZE, accuracy(0.1, 0.9) + accuracy(0.3, attempt=2), (0.3, 0)),
        (ValueRule.LAST, MAXIMIZE, list(reversed(accuracy(0.1, 0.9))), (0.9, 1)),
        (ValueRule.LAST, MAXIMIZE, [Measurement(1, "loss", 0, 1.0)], (None, None)),
        (ValueRule.LAST, MAXIMIZE, [*accuracy(0.9), Measurement(2, "loss", 0, 1.0)], (None, None)),
        (ValueRule.LAST, MAXIMIZE, [], (None, None)),
    ],
)
def test_the_value_of_a_trial_is_its_newest_attempts(
    rule: ValueRule,
    direction: Direction,
    reported: list[Measurement],
    value: tuple[float | None, int | None],
) -> None:
    engine = Engine(study(MIXED, value=rule, direction=direction), [Trial(0, RUNNING, {})], ())
    half = len(reported) // 2
    engine.measure(0, reported[:half])
    before = engine.value_of(0)
    assert engine.value_of(0, reported[half:]) == value, "with what is not stored yet"
    assert engine.value_of(0) == before, "and asking so changes nothing"
    engine.measure(0, reported[half:])
    assert engine.value_of(0) == value


@pytest.mark.parametrize(
    ("directions", "values", "than", "expected"),
    [
        ("max", [0.9], [0.1], True),
        ("max", [0.9], [0.9], False),
        ("min", [0.1], [0.9], True),
        ("min", [float("nan")], [0.9], False),
        ("min", [0.9], [float("nan")], False),
        ("max min", [0.9, 5.0], [0.9, 6.0], True),
        ("max min", [0.9, 6.0], [0.8, 5.0], False),
    ],
)
def test_a_better_trial_is_as_good_in_each_objective_and_better_in_one(
    directions: str, values: list[float], than: list[float], expected: bool
) -> None:
    words = {"max": Direction.MAXIMIZE, "min": Direction.MINIMIZE}
    objectives = [Objective(f"m{i}", words[word]) for i, word in enumerate(directions.split())]
    assert better(objectives, values, than) is expected


def test_a_deleted_trial_leaves_its_number_and_nothing_else() -> None:
    engine = Engine(
        study(MIXED, pruning={"minTrials": 1}),
        [Trial(0, SUCCEEDED, {}, value=0.5), Trial(2, RUNNING, {})],
        (),
    )
    engine.put(Trial(1, RUNNING, {}))
    engine.measure(1, accuracy(0.9))
    engine.measure(2, accuracy(0.1))
    engine.put(Trial(1, SUCCEEDED, {}, value=0.9))
    assert engine.advise(2).should_stop
    engine.put(Trial(1, TrialState.CANCELLED, {}))
    assert engine.next_number == 3
    assert not engine.advise(2).should_stop


@pytest.mark.parametrize(
    ("spec", "path", "says"),
    [
        ({"space": Space(())}, "space", "at least one"),
        ({"space": Space((Parameter("lr", Float(2, 1)),))}, "space.lr.min", "above max"),
        ({"objectives": ()}, "objectives", "1 to 8"),
        ({"objectives": (Objective("", MAXIMIZE),)}, "objectives[0].metric", "name the one"),
        ({"algorithm": Algorithm("randon")}, "algorithm.name", "did you mean random?"),
        ({"algorithm": Algorithm("zzz")}, "algorithm.name", "there are default, random, grid"),
        (
            {"algorithm": Algorithm("tpe", None, {"windov": 100})},
            "algorithm.settings.windov",
            "did you mean window?",
        ),
        (
            {"algorithm": Algorithm("tpe", None, {"window": 10})},
            "algorithm.settings.window",
            "use 50 or more",
        ),
        (
            {"algorithm": Algorithm("tpe", None, {"window": "x"})},
            "algorithm.settings.window",
            "not a whole number",
        ),
        (
            {"algorithm": Algorithm("tpe", None, {"multivariate": 1})},
            "algorithm.settings.multivariate",
            "true nor false",
        ),
        (
            {"algorithm": Algorithm("random", None, {"x": 1})},
            "algorithm.settings.x",
            "there are duplicates",
        ),
        (
            {"algorithm": Algorithm("random", None, {"duplicates": "no"})},
            "algorithm.settings.duplicates",
            "'no' is not one of allow, resample, reuse",
        ),
        ({"pruning": Pruning("medium")}, "pruning.name", "did you mean median?"),
        (
            {"pruning": Pruning("median", {"interval": 0})},
            "pruning.settings.interval",
            "use 1 or more",
        ),
        (
            {"pruning": Pruning("median", {"warmup": 3})},
            "pruning.settings.warmup",
            "did you mean warmupSteps?",
        ),
    ],
)
def test_a_wrong_spec_is_refused_at_its_place(
    spec: dict[str, object], path: str, says: str
) -> None:
    right: dict[str, object] = {
        "space": MIXED,
        "objectives": (Objective("accuracy", MAXIMIZE),),
        "algorithm": Algorithm("random"),
    }
    # a table of wrong parts
    (problem,) = check_spec(StudySpec(**{**right, **spec}))  # type: ignore[arg-type]
    assert problem.path == path
    assert says in problem.message


def test_ten_thousand_trials_of_fifty_measurements_load_in_a_moment() -> None:
    point: dict[str, Value] = {
        "lr": 0.1,
        "momentum": 0.5,
        "dropout": 0.1,
        "layers": 3,
        "width": 64,
        "optimizer": "sgd",
    }
    trials = [Trial(n, SUCCEEDED, point, value=n / 1e4, request_id=str(n)) for n in range(10_000)]
    curve = accuracy(*(k / 50 for k in range(50)))
    begin = time.process_time()
    engine = Engine(
        study(MIXED, pruning={}), trials, ((n, m) for n in range(10_000) for m in curve)
    )
    assert time.process_time() - begin < 2.5  # about 0.5 s on an idle core
    assert engine.value_of(9_999) == (0.98, 49)


def test_finished_trials_take_no_advice() -> None:
    engine = Engine(study(MIXED, pruning={"minTrials": 1}), (), ())
    for trial in play(engine, 2):
        engine.measure(trial.number, accuracy(1.0 - trial.number))
    finish(engine, [engine.trial(0)], value=1.0)
    assert engine.advise(1).should_stop
    finish(engine, [engine.trial(1)], TrialState.PRUNED)
    assert not engine.advise(1).should_stop
