"""Our estimator beside Optuna's own: the same window gives the same
densities, and so the same choice.

Optuna's private names that this leans on are asked for here only;
a version that moves them fails here.
"""

import inspect
import math

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.samplers import TPESampler
from optuna.samplers._tpe import sampler as theirs
from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator

from suggest.domain import decode, encode
from suggest.optuna_storage import STUDY_ID, STUDY_NAME, WindowStorage
from suggest.proposal import generator
from suggest.samplers import PointRequest, optuna_model, parzen, tpe_model
from suggest.samplers.frame import points
from suggest.samplers.normal import Floats
from suggest.samplers.tpe import OwnSettings, groups
from suggest.samplers.uniform import draw
from suggest.space import Domain, Float, Int, Parameter, Space, Value
from suggest.trial import Trial, TrialState
from tests.unit.searches import (
    MAXIMIZE,
    MINIMIZE,
    MIXED,
    RUNNING,
    SUCCEEDED,
    examples,
    spaces,
    study,
)

# of settings, in Optuna 4
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
PRUNED = TrialState.PRUNED
# Optuna 4 asks whether there are constraints.
UNCONSTRAINED = (
    (False,) if "constraints_enabled" in inspect.signature(theirs._split_trials).parameters else ()
)
VALUES = st.one_of(st.sampled_from([0.0, 1.0, -2.5]), st.floats(-1e6, 1e6))  # ties are frequent


@st.composite
def values(draw_: st.DrawFn, domain: Domain) -> Value:
    """Draw a value from the domain, often at or near its ends or at earlier values."""
    if isinstance(domain, Float) and domain.count is None:
        ends = [
            domain.min,
            math.nextafter(domain.min, math.inf),
            math.nextafter(domain.max, -math.inf),
            domain.max,
        ]
        share = draw_(st.integers(0, 2**20))
        return draw_(st.sampled_from([*ends, draw(domain, generator(share, 0, "value"))]))
    if isinstance(domain, Int):
        near = [
            domain.at(min(k, domain.count - 1)) for k in (0, 1, domain.count // 2, domain.count - 1)
        ]
        return draw_(
            st.sampled_from(
                [*near, draw(domain, generator(draw_(st.integers(0, 2**20)), 0, "value"))]
            )
        )
    assert domain.count is not None
    return domain.at(draw_(st.integers(0, domain.count - 1)))


@st.composite
def histories(draw_: st.DrawFn, space: Space, *, most: int = 60) -> list[Trial]:
    """Draw finished and running trials, at least one of them finished,
    with gaps in their numbers.
    """
    number, trials = 0, []
    for k in range(draw_(st.integers(1, most))):
        point: dict[str, Value] = {}
        for parameter in space.ordered:
            if parameter.active(point):
                point[parameter.name] = draw_(values(parameter.domain))
        state = (
            SUCCEEDED
            if k == 0
            else draw_(st.sampled_from([SUCCEEDED, SUCCEEDED, SUCCEEDED, PRUNED, RUNNING]))
        )
        value = (
            draw_(VALUES)
            if state is SUCCEEDED or (state is PRUNED and draw_(st.booleans()))
            else None
        )
        step = draw_(st.integers(0, 4)) if value is not None and state is PRUNED else None
        trials.append(Trial(number, state, point, value=value, step=step))
        number += draw_(st.integers(1, 3))
    return trials


class Both:
    """The same study for both: ours as `batch`, Optuna's as the trials that it would fit to."""

    def __init__(
        self, space: Space, trials: list[Trial], *, maximize: bool = False, liar: bool = True
    ) -> None:
        spec = study(space, "tpe", direction=MAXIMIZE if maximize else MINIMIZE).spec
        settings = OwnSettings(constant_liar=liar)
        self.space = space
        self.ours = tpe_model.TpeModel(spec, 7, settings)
        finished = [t for t in trials if t.finished]
        self.batch = self.ours.fit(finished, [t for t in trials if not t.finished])
        wrapped = optuna_model.OptunaTpeModel(spec, 7, settings)
        self.distributions = wrapped._distributions
        frozen = [wrapped._freeze(t) for t in trials if t.finished or liar]
        self.sampler = TPESampler(constant_liar=liar)
        self.study = optuna.Study(
            STUDY_NAME, WindowStorage(wrapped._directions, frozen), sampler=self.sampler
        )
        n = len(finished)
        self.split = theirs._split_trials(
            self.study,
            self.study.get_trials(deepcopy=False),
            theirs.default_gamma(n),
            *UNCONSTRAINED,
        )

    def estimator(self, names: tuple[str, ...], *, good: bool) -> _ParzenEstimator:
        space = {name: self.distributions[name] for name in names}
        return self.sampler._build_parzen_estimator(
            self.study, space, self.split[0 if good else 1], handle_below=good
        )


def grouped(space: Space, *, multivariate: bool) -> list[tuple[str, ...]]:
    together = [tuple(p.name for p in group if p.domain.count != 1) for group in groups(space)]
    return (
        [names for names in together if names]
        if multivariate
        else [(name,) for names in together for name in names]
    )


def anywhere(both: Both, names: tuple[str, ...], seed: int) -> Floats:
    """Points to compare at, (names, points): drawn from the good trials,
    uniformly, and the trials' own.
    """
    rng = np.random.default_rng(seed)
    group = both.ours.group(both.batch, names)
    near = group.good.draw(rng.random((len(names) + 1, 12)))
    source = generator(seed, 1, "points")
    domains = [both.space.by_name[name].domain for name in names]
    far = np.array([[encode(d, draw(d, source)) for _ in range(8)] for d in domains], dtype=float)
    return np.concatenate([near, far, group.known().values[:, :8]], axis=1)


@given(st.data(), spaces(most=5), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 999))
@examples(150)
def test_densities_are_optunas(
    data: st.DataObject, space: Space, multivariate: bool, maximize: bool, liar: bool, seed: int
) -> None:
    both = Both(space, data.draw(histories(space)), maximize=maximize, liar=liar)
    for names in grouped(space, multivariate=multivariate):
        hold_equal(both, names, seed)


@given(st.data(), st.integers(0, 999))
@examples(25)
def test_densities_are_optunas_in_a_space_of_every_kind(data: st.DataObject, seed: int) -> None:
    hold_equal(
        Both(MIXED, data.draw(histories(MIXED))), tuple(p.name for p in MIXED.parameters), seed
    )


def hold_equal(both: Both, names: tuple[str, ...], seed: int) -> None:
    group = both.ours.group(both.batch, names)
    numbers = anywhere(both, names, seed)
    where = dict(zip(names, numbers, strict=True))
    at = points(group.frame, numbers)
    # Optuna takes the mass of one of n whole numbers as 1 minus the rest,
    # which has an error of some 1e-16 * n.
    slack = 1e-6 + 1e-15 * max(both.space.by_name[name].domain.count or 0 for name in names)
    sums = []
    for mixture, good in ((group.good.mixture, True), (group.others(), False)):
        with np.errstate(all="ignore"):
            theirs_ = both.estimator(names, good=good).log_pdf(where)
            (ours,) = parzen.log_densities(group.frame, [mixture], at)
        np.testing.assert_allclose(ours, theirs_, rtol=0, atol=slack)
        sums.append((ours, theirs_))
    ours, theirs_ = (good - other for good, other in zip(*sums, strict=True))
    # The same point is chosen; of two as good as each other in all digits
    # that are compared, either.
    assert theirs_[np.argmax(ours)] >= theirs_.max() - 2 * slack


def long_history(space: Space, count: int, seed: int) -> list[Trial]:
    rng = generator(seed, 0, "history")
    trials = []
    for number in range(count):
        point = {p.name: draw(p.domain, rng) for p in space.parameters}
        state = RUNNING if number % 9 == 8 else SUCCEEDED
        trials.append(
            Trial(number, state, point, value=rng.random() if state is SUCCEEDED else None)
        )
    return trials


def test_densities_are_optunas_with_windows_of_hundreds() -> None:
    wide = Space(
        (
            *MIXED.parameters,
            Parameter("tokens", Int(1, 10**6)),
            Parameter("hidden", Int(1, 10**6)),
            Parameter("seed", Int(0, 10**9)),
        )
    )
    for count in (200, 300, 800):
        both = Both(wide, long_history(wide, count, count))
        hold_equal(both, tuple(p.name for p in wide.parameters), count)


def test_a_drawn_point_has_the_computed_density() -> None:
    both = Both(MIXED, long_history(MIXED, 60, 1))
    for name in both.distributions:
        group = both.ours.group(both.batch, (name,))
        rng = np.random.default_rng(3)
        ours = group.good.draw(rng.random((2, 20_000)))[0]
        theirs_ = both.estimator((name,), good=True).sample(np.random.RandomState(4), 20_000)[name]
        edges = np.sort(np.concatenate([ours, theirs_]))
        apart = np.searchsorted(np.sort(ours), edges, "right") - np.searchsorted(
            np.sort(theirs_), edges, "right"
        )
        # Kolmogorov-Smirnov: beyond this once in 2,000 times
        assert np.abs(apart).max() / 20_000 < 0.02


def test_the_chosen_candidate_is_the_best_one_by_optunas_density() -> None:
    names = tuple(p.name for p in MIXED.parameters)
    for seed in range(5):
        trials = long_history(MIXED, 120, seed)
        both = Both(MIXED, trials)
        finished, running = [t for t in trials if t.finished], [t for t in trials if not t.finished]
        (point,) = both.ours.propose(finished, running, [PointRequest(500, {})])
        group = both.ours.group(both.batch, names)
        group.draw([PointRequest(500, {})], both.ours._quantiles(PointRequest(500, {}), names))
        numbers = group.drawn.numbers
        candidates = dict(zip(names, numbers, strict=True))
        estimators = both.estimator(names, good=True), both.estimator(names, good=False)
        worth = both.sampler._compute_acquisition_func(candidates, *estimators)
        best = TPESampler._compare(candidates, worth)
        assert {n: decode(MIXED.by_name[n].domain, float(x)) for n, x in best.items()} == point


def test_the_split_weights_and_settings_are_those_of_optunas_sampler() -> None:
    parameters = TPESampler()._parzen_estimator_parameters
    assert (
        parameters.prior_weight,
        parameters.consider_magic_clip,
        parameters.consider_endpoints,
    ) == (
        1.0,
        True,
        False,
    )
    assert parameters.weights is theirs.default_weights
    assert WindowStorage([optuna.study.StudyDirection.MINIMIZE], []).get_all_trials(STUDY_ID) == []
