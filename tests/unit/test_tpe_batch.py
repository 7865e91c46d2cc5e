"""A batch of `tpe` is fitted once; each point of it avoids the earlier ones."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from suggest.proposal import generator
from suggest.samplers import PointRequest, parzen
from suggest.samplers.running import LIARS
from suggest.samplers.tpe import OwnSettings
from suggest.samplers.tpe_model import TOGETHER, TpeModel
from suggest.samplers.uniform import draw
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Scale, Space
from suggest.trial import Trial, TrialState
from tests.unit.searches import MINIMIZE, MIXED, RUNNING, SUCCEEDED, examples, study

TREE = Space(
    (
        Parameter("kind", Choice(("tree", "net"))),
        Parameter("depth", Int(1, 40), (Condition("kind", ("tree",)),)),
        Parameter("rate", Float(1e-4, 1, Scale.LOG), (Condition("kind", ("net",)),)),
        Parameter("share", Float(0.1, 1)),
        Parameter("seed", Int(0, 10**6)),
    )
)

WHOLE = Space(
    (
        Parameter("rate", Float(1e-4, 1, Scale.LOG)),
        Parameter("share", Float(0.1, 1)),
        Parameter("depth", Int(1, 300)),
        Parameter("width", Int(1, 5000, Scale.LOG)),
        Parameter("tokens", Int(0, 10**4)),
    )
)


def history(space: Space, finished: int, running: int) -> tuple[list[Trial], list[Trial]]:
    """Return a history with every other number free,
    in which running trials lie between ended ones.
    """
    rng = generator(1, finished, "history")
    trials = []
    for number in range(finished + running):
        point: dict[str, str | int | float | bool] = {}
        for parameter in space.ordered:
            if parameter.active(point):
                point[parameter.name] = draw(parameter.domain, rng)
        state = RUNNING if number % 3 == 2 and number // 3 < running else SUCCEEDED
        trials.append(
            Trial(2 * number, state, point, value=rng.random() if state is SUCCEEDED else None)
        )
    return [t for t in trials if t.finished], [t for t in trials if not t.finished]


def one_by_one(
    space: Space,
    finished: list[Trial],
    running: list[Trial],
    wanted: list[PointRequest],
    settings: OwnSettings,
) -> list[Assignment]:
    points: list[Assignment] = []
    for one in wanted:
        (point,) = model(space, settings).propose(finished, running[-LIARS:], [one])
        points.append(point)
        running = sorted(
            [*running, Trial(one.number, TrialState.RUNNING, point)], key=lambda t: t.number
        )
    return points


def model(space: Space, settings: OwnSettings) -> TpeModel:
    return TpeModel(study(space, "tpe", direction=MINIMIZE).spec, 7, settings)


@pytest.mark.parametrize(
    ("space", "finished", "running"),
    [(MIXED, 200, 60), (MIXED, 30, 0), (TREE, 200, 0), (TREE, 30, 10), (TREE, 3, 0)],
    ids=lambda given: (
        given if isinstance(given, int) else "conditional" if given is TREE else "flat"
    ),
)
def test_a_batch_begins_with_the_single_proposal_whatever_its_length(
    space: Space, finished: int, running: int
) -> None:
    done, open_ = history(space, finished, running)
    name = "seed" if space is TREE else "momentum"
    fixed = {name: 0 if name == "seed" else 0.5}
    old = [
        PointRequest(11, {}),
        PointRequest(31, fixed),
        PointRequest(51, {}),
    ]  # enqueued long ago, their numbers between the others
    new = [PointRequest(1000 + k, {}) for k in range(6)]
    for settings in (
        OwnSettings(),
        OwnSettings(multivariate=False),
        OwnSettings(constant_liar=False),
    ):
        for wanted in (old + new, new):
            batch = model(space, settings).propose(done, open_, wanted)
            alone = one_by_one(space, done, open_, wanted, settings)
            assert batch[0] == alone[0]
            assert batch == alone or settings.constant_liar
            assert model(space, settings).propose(done, open_, wanted[:4]) == batch[:4]


def test_after_sixty_four_points_a_batch_is_fitted_again() -> None:
    done, open_ = history(MIXED, 60, 3)
    wanted = [PointRequest(500 + k, {}) for k in range(TOGETHER + 2)]
    batch = model(MIXED, OwnSettings()).propose(done, open_, wanted)
    asked = [Trial(one.number, RUNNING, point) for one, point in zip(wanted, batch, strict=True)]
    (alone,) = model(MIXED, OwnSettings()).propose(
        done, [*open_, *asked[:TOGETHER]][-LIARS:], [wanted[TOGETHER]]
    )
    assert batch[TOGETHER] == alone


def test_a_point_of_a_batch_is_a_kernel_as_wide_as_a_fit_would_make_it() -> None:
    done, open_ = history(WHOLE, 40, 5)
    ours = model(WHOLE, OwnSettings())
    names = tuple(p.name for p in WHOLE.parameters)
    group = ours.group(ours.fit(done, open_), names)
    group.draw(
        [PointRequest(500, {}), PointRequest(501, {})],
        np.random.default_rng(1).random((len(names) + 1, 48)),
    )
    known, fitted = group.known().values, group.others()
    (before,) = parzen.log_densities(group.frame, [fitted], group.drawn)
    point = np.array([[0.03], [0.5], [33.0], [71.0], [999.0]])
    assert not (known == point).any(), "which of equals is the wide one is any order's affair"
    group.add_pending(point[:, 0])
    refitted = parzen.fit(group.frame, np.concatenate([known, point], axis=1))
    # Its kernel alone, and the mixture that was fitted before it came.
    alone = replace(
        refitted,
        log_weights=np.where(np.arange(known.shape[1] + 2) == known.shape[1], 0.0, -np.inf),
    )
    (kernel,) = parzen.log_densities(group.frame, [alone], group.drawn)
    here = slice(0, 48)
    after = group.others_near(here)
    np.testing.assert_allclose(
        after, np.logaddexp(before, kernel + fitted.log_weights[-1]), rtol=0, atol=1e-9
    )


def test_a_model_that_has_seen_other_windows_proposes_the_same() -> None:
    done, open_ = history(MIXED, 120, 12)
    lived, settings = model(MIXED, OwnSettings()), OwnSettings()
    for count in (20, 50, 90):
        ended = [Trial(t.number, SUCCEEDED, t.parameters, value=0.5) for t in open_[:4]]
        past = sorted([*done[:count], *ended], key=lambda t: t.number)
        lived.propose(done[:count], open_, [PointRequest(900, {})])
        lived.propose(past, open_[4:], [PointRequest(901, {})])
    wanted = [PointRequest(1000, {}), PointRequest(1001, {})]
    assert lived.propose(done[40:], open_[4:], wanted) == model(MIXED, settings).propose(
        done[40:], open_[4:], wanted
    )


def test_a_model_keeps_nothing_for_each_subset_of_fixed_values() -> None:
    done, _ = history(WHOLE, 60, 0)
    ours = model(WHOLE, OwnSettings())
    values = done[0].parameters
    subsets = [
        some for count in range(len(values)) for some in itertools.combinations(values, count)
    ]
    for number, names in enumerate(subsets, 500):
        ours.propose(done, [], [PointRequest(number, {name: values[name] for name in names})])
    single = {(name,) for name in values}
    assert len(subsets) == 31
    assert set(ours._good) == {tuple(values), *single}, (
        "all parameters together, and those that were the only free one"
    )


def test_running_trials_change_nothing_without_constant_liar_and_keep_points_apart_with_it() -> (
    None
):
    done, open_ = history(MIXED, 50, 9)
    proud = model(MIXED, OwnSettings(constant_liar=False))
    assert proud.propose(done, open_, [PointRequest(300, {})]) == proud.propose(
        done, [], [PointRequest(300, {})]
    )
    points = [
        p["lr"]
        for p in model(MIXED, OwnSettings()).propose(
            done, open_, [PointRequest(300 + k, {}) for k in range(8)]
        )
    ]
    assert all(a != b for a, b in itertools.combinations(points, 2))


@examples(25)
@given(
    runs=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, TOGETHER + 2)), min_size=1, max_size=4
    ),
    multivariate=st.booleans(),
    liar=st.booleans(),
)
@example(runs=[(1, TOGETHER), (2, 1), (0, 1)], multivariate=True, liar=True)
def test_a_batch_of_any_fixed_parts_gets_a_point_for_each(
    runs: list[tuple[int, int]], multivariate: bool, liar: bool
) -> None:
    """For example 64 enqueued trials that fix one parameter, and one that fixes another."""
    parts: list[Assignment] = [{}, {"share": 0.5}, {"kind": "net"}, {"kind": "tree", "depth": 3}]
    done, open_ = history(TREE, 12, 2)
    fixed = [parts[which] for which, count in runs for _ in range(count)]
    wanted = [PointRequest(500 + number, part) for number, part in enumerate(fixed)]
    points = model(TREE, OwnSettings(multivariate=multivariate, constant_liar=liar)).propose(
        done, open_, wanted
    )
    assert [TREE.point_problems(point, partial=False) for point in points] == [()] * len(wanted)
    assert [
        {name: point[name] for name in part} for point, part in zip(points, fixed, strict=True)
    ] == fixed
