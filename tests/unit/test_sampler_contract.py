"""The contract of every algorithm in the registry, for drawn spaces, histories and values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.app.extend import UNGUIDED
from controller.search import CHOOSES
from controller.spec.document import END_BY_THEMSELVES
from controller.spec.rules import POPULATION_BASED
from suggest.engine import Engine
from suggest.engine.promotion import BRACKETED
from suggest.samplers import PointRequest, registry
from suggest.samplers.family import DEFAULT, missing
from suggest.samplers.sampler import Sampler
from suggest.samplers.uniform import draw_point
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Scale, Space, Value
from suggest.study import Fidelity, Study
from suggest.trial import IMPORTED_FROM, Trial, TrialState
from tests.unit.searches import (
    EDGES,
    MIXED,
    RUNNING,
    SUCCEEDED,
    THOROUGH,
    assert_points,
    examples,
    play,
    spaces,
    study,
)

PRUNED, FAILED, INFEASIBLE = TrialState.PRUNED, TrialState.FAILED, TrialState.INFEASIBLE
STATES = (SUCCEEDED, PRUNED, SUCCEEDED, FAILED, SUCCEEDED, INFEASIBLE, RUNNING)

TREE = Space(
    (
        Parameter("kind", Choice(("a", "b"))),
        Parameter("x", Float(0, 1), (Condition("kind", ("a",)),)),
        Parameter("deep", Choice((True, False)), (Condition("kind", ("a",)),)),
        Parameter("y", Int(1, 3), (Condition("deep", (True,)),)),
        Parameter("lr", Float(1e-4, 1, Scale.LOG)),
    )
)
FINITE = Space((Parameter("x", Int(1, 20)), Parameter("kind", Choice(("a", "b", "c")))))
VALUES = (
    [1.0],
    [0.0],
    [1e300, -1e300, 1.7e308, -1.7e308],
    [1e-300, 2e-300, 3e-300],
    [5e-324, 0.0, 1e-323],
    [1.0, 1.0 + 2**-52],
    [0.0, 0.0, 0.0, 0.0, 1e9],
    [1e-300, 1e300, 0.5],
)


def study_of(algorithm: str, space: Space, seed: int = 7) -> Study:
    """A study whose algorithm learns as early as possible and has no budget."""
    family = next(f for f in registry.algorithms() if f.name == algorithm)
    least = {"startupTrials": 3, "populationSize": 4} | (
        {"window": 20} if algorithm == SLOW else {}
    )
    config: dict[str, Value] = {s.name: least[s.name] for s in family.settings if s.name in least}
    made = study(space, algorithm, config=config, seed=seed)
    steps = Fidelity("steps", 1, 9) if algorithm in BRACKETED else None
    return replace(made, spec=registry.resolve(replace(made.spec, fidelity=steps)))


def suited(algorithm: str, space: Space) -> Study:
    """Skip the test if the algorithm refuses the space."""
    made = study_of(algorithm, space)
    if list(registry.space_problems(made.spec)):
        pytest.skip("not a space for it")
    return made


def worth(point: Assignment) -> float:
    return sum(
        math.tanh(float(v)) if isinstance(v, int | float) else 0.1 * len(str(v))
        for v in point.values()
    )


def ended(
    number: int,
    point: Assignment,
    state: TrialState,
    value: float | None,
    *,
    parent: int | None = None,
) -> Trial:
    has = state is SUCCEEDED or state is PRUNED
    step = number if has else None
    return Trial(number, state, point, value=value if has else None, step=step, parent=parent)


def history(
    space: Space, count: int, *, states: Sequence[TrialState] = (SUCCEEDED,), first: int = 0
) -> list[Trial]:
    """Return trials at random points, like imported ones."""
    points = [draw_point(space, 3, PointRequest(k, {})) for k in range(first, first + count)]
    return [ended(first + k, p, states[k % len(states)], worth(p)) for k, p in enumerate(points)]


def proposed(engine: Engine, count: int) -> list[Assignment]:
    return [one.parameters for one in engine.propose(count).trials]


# Its proposals take from tenths of seconds to seconds. tests/unit/test_optuna_samplers.py has the
# promises that every change is tested for.
SLOW = "optuna:gp"
ALGORITHMS = [
    pytest.param(family.name, marks=[pytest.mark.soak] if family.name == SLOW else [])
    for family in registry.algorithms()
    if not missing(family.requires)
]


def drawn_for(algorithm: str, count: int) -> settings:
    return examples(min(count, 4) if algorithm == SLOW else count)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestSamplerContract:
    def test_every_point_is_a_point_of_the_space(self, algorithm: str) -> None:
        @given(spaces(), st.integers(0, 2**62))
        @drawn_for(algorithm, 100)
        def check(space: Space, seed: int) -> None:
            made = study_of(algorithm, space, seed)
            if list(registry.space_problems(made.spec)):
                return
            engine = Engine(
                made, history(space, 4, states=(SUCCEEDED, SUCCEEDED, SUCCEEDED, FAILED)), ()
            )
            assert_points(space, proposed(engine, 2))

        check()

    def test_a_study_that_is_rebuilt_in_any_order_continues_as_it_would_have(
        self, algorithm: str
    ) -> None:
        @given(spaces(), st.integers(0, 99))
        @drawn_for(algorithm, 15)
        def check(space: Space, seed: int) -> None:
            made = study_of(algorithm, space, seed)
            if list(registry.space_problems(made.spec)):
                return
            engine = Engine(made, (), ())
            for k in range(14):
                for trial in play(engine, 1 + k % 2):
                    state = STATES[trial.number % 7]
                    value = worth(trial.parameters)
                    engine.put(
                        ended(trial.number, trial.parameters, state, value, parent=trial.parent)
                    )
                if k % 5 == 3:
                    again = Engine(made, reversed(list(engine.trials())), ())
                    assert again.propose(2) == engine.propose(2)

        check()

    @pytest.mark.parametrize("space", [MIXED, TREE, FINITE], ids=["mixed", "tree", "finite"])
    def test_late_results_change_nothing_that_a_restart_would_not_know(
        self, algorithm: str, space: Space
    ) -> None:
        made = suited(algorithm, space)
        engine = Engine(made, (), ())
        running: list[Trial] = []
        for k in range(18):
            running += play(engine, 1)
            if len(running) == 4:
                trial = running.pop(k * 7 % 4)
                value = worth(trial.parameters)
                engine.put(
                    ended(trial.number, trial.parameters, SUCCEEDED, value, parent=trial.parent)
                )
        again = Engine(made, list(engine.trials()), ())
        assert again.propose(3) == engine.propose(3)
        assert_points(space, proposed(engine, 3))

    def test_domains_at_the_limits_work(self, algorithm: str) -> None:
        for domain in (*EDGES, Choice(tuple(range(10_000 if THOROUGH else 1000)))):
            space = Space((Parameter("x", domain), Parameter("y", Choice((1, 2)))))
            made = study_of(algorithm, space)
            if not list(registry.space_problems(made.spec)):
                assert_points(space, proposed(Engine(made, history(space, 12), ()), 3))

    def test_values_may_be_huge_tiny_or_equal(self, algorithm: str) -> None:
        made = suited(algorithm, FINITE)
        for values in VALUES:
            trials = [replace(t, value=values[t.number % len(values)]) for t in history(FINITE, 15)]
            assert_points(FINITE, proposed(Engine(made, trials, ()), 3))

    def test_pruned_trials_may_have_any_last_value(self, algorithm: str) -> None:
        made = suited(algorithm, FINITE)
        for value, every in itertools.product((math.nan, math.inf, -math.inf, None), (1, 3)):
            trials = history(FINITE, 15)
            trials = [
                replace(t, state=PRUNED, value=value) if t.number % every == 0 else t
                for t in trials
            ]
            assert_points(FINITE, proposed(Engine(made, trials, ()), 3))

    def test_a_search_survives_failures_of_almost_all_trials(self, algorithm: str) -> None:
        made = suited(algorithm, FINITE)
        for state, succeeded in itertools.product(
            (FAILED, INFEASIBLE, PRUNED, TrialState.CANCELLED), (0, 1)
        ):
            trials = [
                *history(FINITE, succeeded),
                *history(FINITE, 20, states=(state,), first=succeeded),
            ]
            assert_points(FINITE, proposed(Engine(made, trials, ()), 3))

    def test_all_trials_may_have_the_same_point(self, algorithm: str) -> None:
        point: Assignment = {"x": 4, "kind": "b"}
        trials = [ended(k, point, SUCCEEDED, 0.1 * k) for k in range(20)]
        assert_points(FINITE, proposed(Engine(suited(algorithm, FINITE), trials, ()), 3))

    def test_a_space_may_have_fifty_parameters(self, algorithm: str) -> None:
        space = Space(
            tuple(Parameter(f"x{k}", Choice((1, 2, 3)) if k % 3 else Int(0, 9)) for k in range(50))
        )
        made = suited(algorithm, space)
        assert_points(space, proposed(Engine(made, history(space, 30), ()), 2))

    def test_single_value_parameters_and_spaces_of_one_point_work(self, algorithm: str) -> None:
        space = Space((Parameter("x", Float(2, 2)), Parameter("y", Choice(("a",)))))
        made = suited(algorithm, space)
        assert_points(space, proposed(Engine(made, history(space, 5), ()), 3))

    def test_a_long_history_with_many_running_trials_works(self, algorithm: str) -> None:
        space = Space((Parameter("x", Int(1, 1000)), Parameter("kind", Choice(("a", "b", "c")))))
        ended, running = (1000, 100) if THOROUGH else (300, 100)
        trials = [
            *history(space, ended, states=STATES[:-1]),
            *history(space, running, states=(RUNNING,), first=ended),
        ]
        made = suited(algorithm, space)
        engine = Engine(made, trials, ())
        assert_points(space, proposed(engine, 2))
        assert Engine(made, reversed(trials), ()).propose(2) == engine.propose(2)

    def test_proposals_follow_a_space_that_has_grown(self, algorithm: str) -> None:
        large = Space(
            (Parameter("x", Int(-5, 40)), Parameter("kind", Choice(("z", "a", "b", "c", "d"))))
        )
        made = suited(algorithm, FINITE)
        trials = history(FINITE, 20)
        grown = replace(made, spec=replace(made.spec, space=large))
        assert_points(large, proposed(Engine(grown, trials, ()), 4))

    def test_imported_trials_from_outside_the_space_lead_to_no_point_outside(
        self, algorithm: str
    ) -> None:
        wide = Space((Parameter("x", Int(-50, 90)), Parameter("kind", Choice(("a", "q")))))
        imported = [replace(trial, labels={IMPORTED_FROM: "a.csv"}) for trial in history(wide, 20)]
        made = suited(algorithm, FINITE)
        trials = [*imported, *history(FINITE, 6, first=20)]
        engine = Engine(made, trials, ())
        assert_points(FINITE, proposed(engine, 4))
        assert Engine(made, reversed(trials), ()).propose(4) == engine.propose(4)

    def test_a_fixed_part_is_kept(self, algorithm: str) -> None:
        made = suited(algorithm, FINITE)
        parts: tuple[Assignment, ...] = ({"x": 3}, {"kind": "c"}, {"x": 3, "kind": "c"})
        for fixed in parts:
            (point,) = proposed(
                Engine(made, [*history(FINITE, 12), Trial(12, TrialState.QUEUED, fixed)], ()), 1
            )
            assert fixed.items() <= point.items()
            assert_points(FINITE, [point])


def test_the_controller_knows_of_each_algorithm_what_the_registry_says() -> None:
    families = registry.algorithms()
    assert {f.name for f in families if not f.learns} == set(UNGUIDED)
    assert {f.name for f in families if f.enumerates} == set(END_BY_THEMSELVES)
    assert {f.name for f in families if f.waits} == {POPULATION_BASED}
    assert CHOOSES == DEFAULT


def test_a_sampler_that_takes_no_trials_cannot_be_made() -> None:
    class Forgetful(Sampler):
        def propose(self, wanted: Sequence[PointRequest]) -> list[Assignment]:
            return []

        def update(self, trial: Trial) -> None:
            """What the author took for the name of `put`."""

    with pytest.raises(TypeError, match=r"abstract method '?put"):
        Forgetful()  # type: ignore[abstract]  # that is the point
