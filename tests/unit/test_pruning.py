"""The median rule, compared with Optuna's pruner where steps are aligned."""

import math
import time

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suggest.curves import Curve, TrialCurve
from suggest.engine import Engine
from suggest.pruners.percentile import (
    KEPT_COLUMNS,
    MedianSettings,
    PercentilePruner,
    median_pruner,
)
from suggest.study import Direction, Objective
from suggest.trial import StopAdvice, Trial
from tests.unit.searches import (
    MAXIMIZE,
    MINIMIZE,
    MIXED,
    RUNNING,
    SUCCEEDED,
    accuracy,
    examples,
    study,
)

optuna.logging.set_verbosity(optuna.logging.WARNING)

GO_ON = StopAdvice(False)


def curve(points: dict[int, float]) -> Curve:
    made = Curve()
    for step, value in points.items():
        made.add(step, value)
    return made


def running(curve: Curve) -> TrialCurve:
    return TrialCurve(10**6, RUNNING, curve)


def line(*values: float) -> Curve:
    return curve(dict(enumerate(values)))


def pruner(
    peers: list[Curve],
    *,
    direction: Direction = MAXIMIZE,
    warmup: int = 0,
    interval: int = 1,
    least: int = 1,
) -> PercentilePruner:
    made = median_pruner(Objective("accuracy", direction), MedianSettings(warmup, interval, least))
    for number, peer in enumerate(peers):
        made.put(TrialCurve(number, SUCCEEDED, peer))
    return made


def judge_each(judge: PercentilePruner, points: dict[int, float]) -> list[int]:
    """The steps at which a trial that reports one step at a time would be stopped."""
    so_far, stops, before = Curve(), [], None
    for step, value in points.items():
        so_far.add(step, value)
        if judge.judge(running(so_far), before=before).should_stop:
            stops.append(step)
        before = step
    return stops


THREE = [line(0.1, 0.2, 0.3), line(0.5, 0.6, 0.7), line(0.8, 0.9, 1.0)]


@pytest.mark.parametrize(
    ("says", "judge", "points", "stops"),
    [
        ("below the median stops", pruner(THREE), {0: 0.4, 1: 0.5, 2: 0.6}, [0, 1, 2]),
        ("equal to the median continues", pruner(THREE), {0: 0.5, 1: 0.6}, []),
        ("one good early value protects", pruner(THREE), {0: 0.9, 1: 0.0}, []),
        ("minimizing, above the median stops", pruner(THREE, direction=MINIMIZE), {0: 0.6}, [0]),
        ("too few peers", pruner(THREE, least=4), {0: 0.0}, []),
        ("no peers", pruner([]), {0: 0.0}, []),
        ("warm-up", pruner(THREE, warmup=2), {0: 0.0, 1: 0.0, 2: 0.0}, [2]),
        ("interval", pruner(THREE, interval=2, warmup=1), dict.fromkeys(range(6), 0.0), [1, 3, 5]),
        (
            "a late judgment is made up for",
            pruner(THREE, interval=5),
            {1: 0.1, 4: 0.1, 7: 0.1, 9: 0.1},
            [1, 7],
        ),
        (
            "misaligned, the last value before",
            pruner([curve({0: 0.5, 10: 0.9})]),
            {5: 0.4, 15: 0.8},
            [5, 15],
        ),
        ("a peer that starts later is none", pruner([curve({10: 0.9})]), {5: 0.4}, []),
        ("nan so far", pruner(THREE), {0: math.nan, 1: math.nan, 2: 0.9}, [0, 1]),
        ("nan so far, too few peers", pruner(THREE, least=4), {0: math.nan}, []),
        (
            "peers that say nan are counted but are no median",
            pruner([line(math.nan)]),
            {0: 0.1},
            [],
        ),
        ("infinity is worse than any", pruner(THREE), {0: -math.inf}, [0]),
        ("equal infinities", pruner([line(math.inf), line(math.inf)]), {0: 0.1}, [0]),
    ],
)
def test_the_median_rule(
    says: str, judge: PercentilePruner, points: dict[int, float], stops: list[int]
) -> None:
    assert judge_each(judge, points) == stops, says


def test_the_reason_has_the_figures() -> None:
    judge = pruner(THREE)
    assert (
        judge.judge(running(line(0.1, 0.412)), before=0).reason
        == "accuracy 0.412 at step 1 is below the median 0.6 of 3 trials"
    )
    best = judge.judge(running(line(0.412, 0.1)), before=0).reason
    assert best == "accuracy (best so far) 0.412 at step 1 is below the median 0.6 of 3 trials"
    assert (
        judge.judge(running(line(math.nan)), before=None).reason
        == "accuracy has been nan in every report up to step 0"
    )


def test_a_report_of_several_steps_does_not_jump_over_a_judgment() -> None:
    engine = Engine(study(MIXED, pruning={"minTrials": 1, "interval": 5}), (), ())
    engine.put(Trial(0, RUNNING, {}))
    engine.measure(0, accuracy(*[0.9] * 10))
    engine.put(Trial(0, SUCCEEDED, {}, value=0.9))
    engine.put(Trial(1, RUNNING, {}))
    engine.measure(1, accuracy(0.95, first=0))
    assert engine.advise(1) == GO_ON
    engine.put(Trial(2, RUNNING, {}))
    engine.measure(2, accuracy(0.1, first=1))
    assert engine.advise(2).should_stop  # the judgment due at 0 comes with the first report
    engine.measure(2, accuracy(0.1, 0.1, 0.1, first=4))
    assert engine.advise(2).should_stop
    engine.measure(2, accuracy(0.1, first=7))
    assert engine.advise(2) == GO_ON


def test_only_the_newest_attempts_are_compared() -> None:
    engine = Engine(study(MIXED, pruning={"minTrials": 1}), (), ())
    engine.put(Trial(0, RUNNING, {}))
    engine.measure(0, accuracy(0.9, 0.9) + accuracy(0.5, 0.5, attempt=2))
    engine.put(Trial(0, SUCCEEDED, {}, value=0.5))
    engine.put(Trial(1, RUNNING, {}))
    engine.measure(1, accuracy(0.95, 0.95))
    engine.measure(1, accuracy(0.4, attempt=2))
    assert engine.advise(1).reason == "accuracy 0.4 at step 0 is below the median 0.5 of 1 trial"


def test_new_pruning_settings_hold_from_the_next_report_on() -> None:
    engine = Engine(
        study(MIXED),
        [Trial(0, SUCCEEDED, {}, value=0.9), Trial(1, RUNNING, {})],
        [(0, accuracy(0.9)[0])],
    )
    engine.measure(1, accuracy(0.1))
    assert engine.advise(1) == GO_ON
    engine.update_study(study(MIXED, pruning={"minTrials": 1}))
    assert engine.advise(1).should_stop


def test_columns_are_bounded_and_rebuilt_alike() -> None:
    peers = [curve({s: p + s for s in range(0, 3 * KEPT_COLUMNS, 3)}) for p in range(9)]
    judge = pruner(peers)
    first = [
        judge.judge(running(curve({s: s + 3.5})), before=None) for s in range(3 * KEPT_COLUMNS)
    ]
    assert [
        judge.judge(running(curve({s: s + 3.5})), before=None) for s in range(3 * KEPT_COLUMNS)
    ] == first
    assert len(judge._columns) == KEPT_COLUMNS


VALUES = st.one_of(st.floats(-10, 10), st.sampled_from([math.nan, math.inf, -math.inf, 0.5, 0.25]))
CURVES = st.integers(1, 6).flatmap(lambda n: st.lists(VALUES, min_size=n, max_size=n))


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.lists(st.lists(VALUES, min_size=n, max_size=n), min_size=1, max_size=12)
    ),
    st.sampled_from([MAXIMIZE, MINIMIZE]),
    st.integers(0, 4),
    st.integers(1, 4),
    st.integers(1, 6),
)
@examples(200)
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_the_median_rule_decides_as_optuna_does_where_steps_line_up(
    curves: list[list[float]], direction: Direction, warmup: int, interval: int, least: int
) -> None:
    *peers, mine = curves
    ours = pruner(
        [line(*p) for p in peers],
        direction=direction,
        warmup=warmup,
        interval=interval,
        least=least,
    )
    theirs = optuna.pruners.MedianPruner(least, warmup, interval, n_min_trials=least)
    reference = optuna.create_study(direction=direction.value, pruner=theirs)
    for peer in peers:
        reference.add_trial(
            optuna.trial.create_trial(
                value=0.0, intermediate_values=dict(enumerate(peer)), params={}, distributions={}
            )
        )
    trial = reference.ask()
    so_far, before = Curve(), None
    for step, value in enumerate(mine):
        trial.report(value, step)
        so_far.add(step, value)
        # Except for infinite peers, for which numpy.percentile returns NaN
        # where the median is a number.
        if not any(math.isinf(v) for v in ours._column(step).values):
            assert ours.judge(running(so_far), before=before).should_stop == trial.should_prune()
        before = step


def test_ten_thousand_peers_of_fifty_steps_are_judged_in_a_moment() -> None:
    judge = pruner([line(*(p / 10_000 for _ in range(50))) for p in range(10_000)])
    for step in range(50):
        judge.judge(running(curve({step: 0.4})), before=None)
    begin = time.process_time()
    for number in range(20):
        judge.put(TrialCurve(10_000 + number, SUCCEEDED, line(*[0.5] * 50)))
        for step in range(50):
            assert judge.judge(running(curve({step: 0.4})), before=None).should_stop, number
    # 1,000 judgments and 20 new peers; about 0.02 s on an idle core
    assert time.process_time() - begin < 1.0
