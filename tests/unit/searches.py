"""Builders for tests of searches: studies, trials, and drawn spaces with nested conditions."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from suggest.axis import axis_of
from suggest.engine import Engine
from suggest.space import (
    Assignment,
    Choice,
    Condition,
    Domain,
    Float,
    Int,
    Parameter,
    Scale,
    Space,
    Value,
)
from suggest.study import (
    Algorithm,
    Direction,
    Objective,
    Pruning,
    Study,
    StudyName,
    StudySpec,
    ValueRule,
)
from suggest.trial import Measurement, Trial, TrialState, ValueColumn

QUEUED, RUNNING, SUCCEEDED = TrialState.QUEUED, TrialState.RUNNING, TrialState.SUCCEEDED
MAXIMIZE, MINIMIZE = Direction.MAXIMIZE, Direction.MINIMIZE


THOROUGH = "TUNER_TEST_THOROUGH" in os.environ


def drawn(count: int) -> int:
    """Return the number of cases to draw: `count` in `make soak`, and a tenth of them elsewhere."""
    return count if THOROUGH else max(3, count // 10)


def seeds(count: int) -> range:
    """Return the seeds of a search that is repeated: `count` in `make soak`, and one elsewhere."""
    return range(count if THOROUGH else 1)


def examples(count: int) -> settings:
    """Hypothesis settings for as many examples as `drawn` says, and no deadline."""
    return settings(
        max_examples=drawn(count), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


def a_column(*values: Value) -> ValueColumn:
    return ValueColumn(values, list(map(json.dumps, values)))


def study(
    space: Space,
    algorithm: str = "random",
    *,
    config: Mapping[str, Value] | None = None,
    seed: int = 7,
    pruning: Mapping[str, Value] | None = None,
    direction: Direction = MAXIMIZE,
    value: ValueRule = ValueRule.LAST,
) -> Study:
    rule = None if pruning is None else Pruning("median", pruning)
    spec = StudySpec(
        space,
        (Objective("accuracy", direction, value),),
        Algorithm(algorithm, None, config or {}),
        rule,
    )
    return Study(StudyName("default", "digits"), "uid", spec, seed)


def accuracy(*values: float, attempt: int = 1, first: int = 0) -> list[Measurement]:
    return [Measurement(attempt, "accuracy", first + k, v) for k, v in enumerate(values)]


def play(engine: Engine, count: int) -> list[Trial]:
    """Propose `count` trials and put them as running."""
    trials = [
        Trial(p.number, RUNNING, p.parameters, parent=p.parent)
        for p in engine.propose(count).trials
    ]
    for trial in trials:
        engine.put(trial)
    return trials


def assert_points(space: Space, points: Iterable[Assignment]) -> None:
    """Assert that each is a point of the space, in canonical form."""
    for point in points:
        assert space.point_problems(point, partial=False) == ()
        assert repr(space.canonical(point)) == repr(dict(point))


def finish(
    engine: Engine,
    trials: Iterable[Trial],
    state: TrialState = SUCCEEDED,
    value: float | None = None,
) -> None:
    for trial in trials:
        engine.put(Trial(trial.number, state, trial.parameters, value=value, parent=trial.parent))


MIXED = Space(
    (
        Parameter("lr", Float(1e-5, 1.0, Scale.LOG)),
        Parameter("momentum", Float(0.0, 0.99)),
        Parameter("dropout", Float(0.0, 0.7)),
        Parameter("layers", Int(1, 12)),
        Parameter("width", Int(16, 1024, Scale.LOG)),
        Parameter("optimizer", Choice(("sgd", "adam", "lamb"))),
    )
)

TREE = Space(
    (
        Parameter("optimizer", Choice(("sgd", "adam"))),
        Parameter("momentum", Float(0, 0.9), (Condition("optimizer", ("sgd",)),)),
        Parameter("nesterov", Choice((True, False)), (Condition("optimizer", ("sgd",)),)),
        Parameter("damping", Int(1, 3), (Condition("nesterov", (True,)),)),
        Parameter("lr", Float(1e-4, 1, Scale.LOG)),
    )
)
# The widest, narrowest and most distant ranges of a domain.
EDGES: tuple[Domain, ...] = (
    Float(1e300, math.nextafter(1e300, math.inf), Scale.LOG),
    Float(0, 5e-324),
    Float(-8e307, 8e307),
    Float(5e-324, 1.7e308, Scale.LOG),
    Int(-(2**53), 2**53),
    Int(1, 2**53, Scale.LOG),
)

CHOICES = Choice((True, 1, "1", 2.5, False, 0, "relu"))

_FINITE = st.one_of(
    st.builds(
        lambda low, n, step: Int(low, low + n * step, step=step),
        st.integers(-5, 5),
        st.integers(0, 5),
        st.integers(1, 3),
    ),
    st.builds(lambda n: Int(1, n, Scale.LOG), st.integers(1, 6)),
    st.builds(
        lambda n: Float(0.1, Float(0.1, 9, step=0.1)._stepped(n), step=0.1), st.integers(1, 5)
    ),
    st.builds(lambda n: Float(1e-4, 1.0, Scale.LOG, points=n), st.integers(2, 5)),
    st.builds(lambda n: Choice(CHOICES.values[:n]), st.integers(1, 7)),
)
_CONTINUOUS = st.sampled_from(
    [
        Float(-1, 3),
        Float(1e-6, 10, Scale.LOG),
        Float(2, 2),
        Int(1, 10**6, Scale.LOG),
        Int(-(10**9), 10**9),
    ]
)


def values_of(domain: Domain) -> list[Value]:
    """Return the values that a grid tries; none for a continuous domain
    or one with too many values.
    """
    axis = axis_of(domain)
    return (
        []
        if axis is None or axis.count is None or axis.count > 1000
        else [axis.at(k) for k in range(axis.count)]
    )


@st.composite
def spaces(draw: st.DrawFn, *, finite: bool = False, most: int = 6) -> Space:
    domains: list[Domain] = draw(
        st.lists(_FINITE if finite else st.one_of(_FINITE, _CONTINUOUS), min_size=1, max_size=most)
    )
    parameters: list[Parameter] = []
    for place, domain in enumerate(domains):
        when: list[Condition] = []
        possible = [p for p in parameters if 0 < len(values_of(p.domain)) < 100]
        for parent in (
            draw(st.lists(st.sampled_from(possible), max_size=2, unique_by=id)) if possible else []
        ):
            values = draw(
                st.lists(st.sampled_from(values_of(parent.domain)), min_size=1, max_size=3)
            )
            when.append(Condition(parent.name, tuple(values)))
        parameters.append(Parameter(f"p{place}", domain, tuple(when)))
    space = Space(tuple(draw(st.permutations(parameters))))
    assert space.problems() == ()
    return space
