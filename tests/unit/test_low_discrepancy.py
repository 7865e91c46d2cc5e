"""`sobol` and `halton`: the published sequences, their scrambling, and their points in a space."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import scipy  # it imports scipy.stats when a test uses that, not in each process of the tests
from hypothesis import given
from hypothesis import strategies as st

from suggest.engine import Engine, check_spec
from suggest.proposal import PointRequest, generator
from suggest.samplers.low_discrepancy import (
    MOST_DIMENSIONS,
    ScrambledHalton,
    ScrambledSobol,
    prime,
    spread,
    toward_middle,
)
from suggest.samplers.uniform import BITS, at_fraction
from suggest.space import Assignment, Choice, Condition, Domain, Float, Int, Parameter, Scale, Space
from suggest.trial import Trial, TrialState
from tests.unit.searches import MIXED, RUNNING, examples, finish, play, spaces, study

SEQUENCES = ("sobol", "halton")
DIMENSIONS = {"sobol": ScrambledSobol, "halton": ScrambledHalton}
CUBE = Space(tuple(Parameter(f"x{k}", Float(0, 1)) for k in range(6)))


def points(space: Space, algorithm: str, count: int, *, seed: int = 7) -> list[Assignment]:
    engine = Engine(study(space, algorithm, seed=seed), (), ())
    return [p.parameters for p in engine.propose(count).trials]


def coordinates(name: str, dimensions: int, count: int, *, seed: int | None = None) -> np.ndarray:
    made = [
        DIMENSIONS[name](k, None if seed is None else generator(seed, k, "test"))
        for k in range(dimensions)
    ]
    return np.array([[dimension(n) / 2.0**BITS for dimension in made] for n in range(count)])


def test_numbers_are_drawn_toward_the_middle_by_the_quantiles_of_a_beta_distribution() -> None:
    fractions = np.array([0.0, 1e-9, 0.1, 0.25, 0.5, 0.8, 1 - 1e-9, 1 - 2**-53])
    found = [toward_middle(int(fraction * 2**BITS)) / 2.0**BITS for fraction in fractions]
    assert found == pytest.approx(scipy.stats.beta.ppf(fractions, 2, 2), abs=1e-8)
    assert 0 <= toward_middle(0) < toward_middle((1 << BITS) - 1) < 1 << BITS


@given(spaces(), st.integers(0, 3))
def test_spread_points_are_points_of_any_space_and_keep_fixed_values(
    space: Space, again: int
) -> None:
    made = spread(study(space).spec, 7)
    for point in made.propose([PointRequest(number, {}, again) for number in range(4)]):
        assert space.canonical(point) == point
        name = space.ordered[0].name  # it has no conditions
        (other,) = made.propose([PointRequest(9, {name: point[name]}, again)])
        assert other[name] == point[name]


def test_spread_points_have_more_parameters_than_the_sobol_sequence_has_dimensions() -> None:
    space = Space(tuple(Parameter(f"x{k}", Float(0, 1)) for k in range(MOST_DIMENSIONS + 3)))
    first, second = spread(study(space).spec, 7).propose([PointRequest(0, {}), PointRequest(1, {})])
    assert len({*first.values(), *second.values()}) == 2 * len(space.parameters)


def test_the_unscrambled_sequences_are_those_of_scipy() -> None:
    theirs = scipy.stats.qmc.Sobol(MOST_DIMENSIONS, scramble=False).random(1024)
    assert np.array_equal(coordinates("sobol", MOST_DIMENSIONS, 1024), theirs)
    theirs = scipy.stats.qmc.Halton(40, scramble=False).random(500)
    assert np.abs(coordinates("halton", 40, 500) - theirs).max() < 1e-12


def test_prime_returns_the_primes_in_order() -> None:
    assert [prime(k) for k in range(10)] == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]


@pytest.mark.parametrize("seed", range(3))
def test_scrambled_sobol_points_are_a_net(seed: int) -> None:
    drawn = coordinates("sobol", MOST_DIMENSIONS, 256, seed=seed)
    cells = np.floor(drawn * 256).astype(int)
    assert all(sorted(cells[:, k]) == list(range(256)) for k in range(MOST_DIMENSIONS))
    # The first two dimensions are a (0, m, 2)-net: one point
    # in each elementary interval, whatever its shape.
    for bits in range(9):
        boxes = Counter(zip(cells[:, 0] >> bits, cells[:, 1] >> (8 - bits), strict=True))
        assert set(boxes.values()) == {1}


@pytest.mark.parametrize("name", SEQUENCES)
def test_scrambled_points_are_as_even_as_scipys_and_more_even_than_random_ones(name: str) -> None:
    engines = {"sobol": scipy.stats.qmc.Sobol, "halton": scipy.stats.qmc.Halton}
    ours, theirs, independent = [], [], []
    for seed in range(5):
        ours.append(scipy.stats.qmc.discrepancy(coordinates(name, 6, 256, seed=seed)))
        theirs.append(
            scipy.stats.qmc.discrepancy(engines[name](6, scramble=True, rng=seed).random(256))
        )
        independent.append(
            scipy.stats.qmc.discrepancy(np.random.default_rng(seed).random((256, 6)))
        )
    assert np.mean(ours) < 1.3 * np.mean(theirs)
    assert max(ours) < min(independent) / 2


@pytest.mark.parametrize("name", SEQUENCES)
def test_every_coordinate_is_uniform_over_the_seeds(name: str) -> None:
    drawn = np.array([coordinates(name, 5, 3, seed=seed) for seed in range(400)])
    assert np.abs(drawn.mean(axis=0) - 0.5).max() < 5 * math.sqrt(1 / 12 / 400)
    assert np.abs(drawn.std(axis=0) - math.sqrt(1 / 12)).max() < 0.04


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_point_of_a_trial_follows_from_seed_and_number(name: str) -> None:
    together = points(MIXED, name, 60)
    engine = Engine(study(MIXED, name), (), ())
    apart: list[Assignment] = []
    for k in range(60):
        (trial,) = play(engine, 1)
        apart.append(trial.parameters)
        state = (
            TrialState.SUCCEEDED,
            TrialState.FAILED,
            TrialState.PRUNED,
            TrialState.INFEASIBLE,
            RUNNING,
        )[k % 5]
        if state is not RUNNING:
            finish(engine, [trial], state, 0.5 if state is TrialState.SUCCEEDED else None)
        if k == 30:
            engine = Engine(study(MIXED, name), list(engine.trials()), ())
    assert apart == together
    assert points(MIXED, name, 60, seed=8) != together


@pytest.mark.parametrize("name", SEQUENCES)
@given(space=spaces(), seed=st.integers(0, 2**62))
@examples(40)
def test_every_point_of_a_sequence_is_a_point_of_the_space(
    name: str, space: Space, seed: int
) -> None:
    for point in points(space, name, 12, seed=seed):
        assert space.point_problems(point, partial=False) == ()
        assert repr(space.canonical(point)) == repr(dict(point))


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_fixed_part_is_kept_and_a_queued_trial_has_the_point_of_its_number(name: str) -> None:
    expected = points(MIXED, name, 3)
    engine = Engine(study(MIXED, name), (), ())
    engine.put(Trial(0, TrialState.QUEUED, {"layers": 3}))
    first, second = engine.propose(2).trials
    assert dict(first.parameters) == {**expected[0], "layers": 3}
    assert second.parameters == expected[1]


def test_inactive_parameters_are_dropped_and_leave_the_others_as_they_are() -> None:
    child = Parameter("momentum", Float(0, 1), (Condition("optimizer", ("sgd",)),))
    space = Space(
        (Parameter("optimizer", Choice(("sgd", "adam"))), child, Parameter("lr", Float(0, 1)))
    )
    free = Space((space.parameters[0], Parameter("momentum", Float(0, 1)), space.parameters[2]))
    for name in SEQUENCES:
        for point, whole in zip(points(space, name, 32), points(free, name, 32), strict=True):
            assert point == {
                k: v for k, v in whole.items() if k != "momentum" or whole["optimizer"] == "sgd"
            }


@pytest.mark.parametrize(
    ("domain", "word", "value"),
    [
        (Int(0, 9), 0, 0),
        (Int(0, 9), 2**64 - 1, 9),
        (Int(-(2**53), 2**53), 2**64 - 1, 2**53),
        (Int(-(2**53), 2**53), 2**63, 0),
        (Int(1, 2**53, Scale.LOG), 0, 1),
        (Int(1, 2**20, Scale.LOG), 2**64 - 1, 2**20),
        (Float(0, 1, step=0.1), 2**63, 0.5),
        (Float(1e-4, 1, Scale.LOG), 2**63, 0.01),
        (Float(2, 2), 2**63, 2.0),
        (Choice(("a", "b", "c")), 2**63, "b"),
        (Choice(("only",)), 2**64 - 1, "only"),
    ],
)
def test_quantiles_of_domains_are_members(domain: Domain, word: int, value: object) -> None:
    found = at_fraction(domain, word)
    assert found == pytest.approx(value) if isinstance(value, float) else found == value
    assert domain.contains(found)


def test_the_quantiles_of_even_words_are_distributed_as_random_draws_are() -> None:
    domain = Int(1, 4, Scale.LOG)
    found = Counter(at_fraction(domain, (2 * k + 1) << 51) for k in range(4096))
    width = math.log(4.5 / 0.5)
    for value in range(1, 5):
        assert found[value] / 4096 == pytest.approx(
            math.log((value + 0.5) / (value - 0.5)) / width, abs=1e-3
        )


def test_a_space_with_more_parameters_than_sobol_has_dimensions_is_refused() -> None:
    wide = Space(tuple(Parameter(f"x{k}", Float(0, 1)) for k in range(MOST_DIMENSIONS + 1)))
    (problem,) = check_spec(study(wide, "sobol").spec)
    assert (problem.path, problem.message) == (
        "space",
        "65 parameters; sobol has 64 dimensions, use halton or random for more parameters",
    )
    assert check_spec(study(Space(wide.parameters[:-1]), "sobol").spec) == ()
    assert check_spec(study(wide, "halton").spec) == ()


@pytest.mark.parametrize("name", SEQUENCES)
def test_with_resample_a_finite_space_is_exhausted_without_a_repetition(name: str) -> None:
    space = Space((Parameter("x", Int(1, 3)), Parameter("y", Choice(("a", "b")))))
    engine = Engine(study(space, name, config={"duplicates": "resample"}), (), ())
    proposal = engine.propose(8)
    assert proposal.exhausted
    assert len({tuple(p.parameters.items()) for p in proposal.trials}) == len(proposal.trials) == 6
