"""Long work gives way to short calls, for a while; never to other long work, and never where nobody else is. Between
any two of its pieces it stops for a moment."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from suggest import courtesy
from suggest.engine import Engine
from suggest.samplers import optuna_model
from suggest.samplers.sampler import PointRequest
from suggest.samplers.tpe import TpeSettings
from suggest.space import Float, Parameter, Space
from suggest.study import Algorithm, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Trial, TrialState

SPACE = Space((Parameter("x", Float(0.0, 1.0)), Parameter("y", Float(0.0, 1.0))))
SPEC = StudySpec(SPACE, (Objective("loss", Direction.MINIMIZE),), Algorithm("optuna:tpe", seed=1))


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits = self.breaths = 0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if seconds < courtesy._PAUSE_S:
            self.breaths += 1
        else:
            self.waits += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(courtesy, "time", made)
    yield made
    assert not courtesy._long | courtesy._unasked


def in_a_call(at_work: Callable[[], int], work: Callable[[], object]) -> None:
    def run() -> None:
        courtesy.begin(at_work)
        work()

    contextvars.Context().run(run)


def long_work() -> None:
    with courtesy.long_work():
        courtesy.give_way()


def test_short_calls_go_first(clock: Clock) -> None:
    at_work = iter([3, 3, 2, 1])
    in_a_call(lambda: next(at_work), long_work)
    assert clock.waits == 3


def test_for_no_longer_than_one_takes(clock: Clock) -> None:
    in_a_call(lambda: 2, long_work)
    assert courtesy.PATIENCE_S <= clock.now_s < 2 * courtesy.PATIENCE_S


def test_who_is_alone_goes_on(clock: Clock) -> None:
    in_a_call(lambda: 1, long_work)
    assert clock.waits == 0


def test_long_ones_do_not_wait_for_each_other(clock: Clock) -> None:
    begun, over = threading.Event(), threading.Event()

    def other() -> None:
        with courtesy.long_work():
            begun.set()
            over.wait(30)

    thread = threading.Thread(target=in_a_call, args=(lambda: 2, other))
    thread.start()
    assert begun.wait(30)
    in_a_call(lambda: 2, long_work)
    over.set()
    thread.join()
    assert clock.waits == 0


def test_outside_of_calls_nobody_is_waited_for(clock: Clock) -> None:
    long_work()
    assert clock.waits == 0


def test_long_work_that_no_call_waits_for_is_not_taken_for_a_call(clock: Clock) -> None:
    begun, over = threading.Event(), threading.Event()

    def ahead() -> None:
        with courtesy.long_work():
            with courtesy.long_work():  # Optuna's model says so itself
                pass
            begun.set()
            over.wait(30)

    thread = threading.Thread(target=ahead)
    thread.start()
    assert begun.wait(30)
    at_work = iter([2, 2, 1])  # the long one and a short one
    in_a_call(lambda: next(at_work), long_work)
    over.set()
    thread.join()
    assert clock.waits == 2


def test_a_short_call_waits_for_nobody(clock: Clock) -> None:
    in_a_call(lambda: 9, courtesy.give_way)
    assert (clock.waits, clock.breaths) == (0, 0)


def test_each_piece_of_long_work_ends_with_a_moment_for_whoever_wants_the_interpreter(clock: Clock) -> None:
    def pieces() -> None:
        with courtesy.long_work():
            courtesy.give_way()
            courtesy.breathe()

    in_a_call(lambda: 1, pieces)
    pieces()
    courtesy.breathe()
    assert (clock.waits, clock.breaths) == (0, 4)


def test_a_proposal_that_nobody_waits_for_yet_breathes_before_each_fit_and_density(clock: Clock) -> None:
    def proposed() -> None:
        spec = replace(SPEC, algorithm=Algorithm("tpe", seed=1))
        engine = Engine(Study(StudyName("user1", "a"), "uid", spec, seed=1), (), ())
        for number in range(30):
            engine.put(Trial(number, TrialState.SUCCEEDED, {"x": number / 30, "y": 0.5}, value=number / 30))
        engine.prepare()
        assert engine.is_prepared

    proposed()
    assert clock.breaths == 0, "asked for it is made at once"
    with courtesy.long_work():
        proposed()
    assert clock.breaths == 3


@pytest.mark.parametrize("multivariate", [False, True])
def test_optunas_sampler_gives_way_before_each_call(monkeypatch: pytest.MonkeyPatch, multivariate: bool) -> None:
    gave_way: list[bool] = []
    monkeypatch.setattr(courtesy, "give_way", lambda: gave_way.append(threading.get_ident() in courtesy._long))
    model = optuna_model.OptunaTpeModel(SPEC, 1, TpeSettings(multivariate=multivariate))
    learnt = [
        Trial(n, TrialState.SUCCEEDED, {"x": n / 20, "y": 0.5}, value=abs(n / 20 - 0.3), step=1) for n in range(20)
    ]
    in_a_call(lambda: 1, lambda: model.propose(learnt, [], [PointRequest(20, {}), PointRequest(21, {})]))
    assert gave_way == [True] * 2 * (1 if multivariate else len(SPACE.parameters))
