"""An engine that forgets finished trials and reads them from the store gives the same replies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random

import pytest

from suggest.curves import Report, TrialCurve
from suggest.engine import Engine
from suggest.engine.trial_index import TrialIndex
from suggest.samplers.tpe import Window
from suggest.study import Pruning
from suggest.trial import IMPORTED_FROM, Measurement, Trial, TrialBatch, TrialState
from tests.unit.searches import (
    MINIMIZE,
    MIXED,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    a_column,
    accuracy,
    study,
)


@dataclass
class Book:
    """Returns finished trials, and counts how often it was asked."""

    known: dict[int, Trial] = field(default_factory=dict)
    measured: dict[int, list[Measurement]] = field(default_factory=dict)
    asked: int = 0

    def trial(self, number: int) -> Trial | None:
        self.asked += 1
        return self.known.get(number)

    def trials(self) -> list[Trial]:
        return [self.known[number] for number in sorted(self.known)]

    def report(self, number: int) -> Report:
        report = Report()
        for measurement in self.measured.get(number, ()):
            report.add(measurement)
        return report

    def curves(self) -> Iterator[TrialCurve]:
        for trial in self.trials():
            if trial.state in (SUCCEEDED, TrialState.PRUNED):
                curve = self.report(trial.number).newest("accuracy")
                if curve is not None:
                    yield TrialCurve(trial.number, trial.state, curve, trial.value)


class Pair:
    """The same history for an engine that keeps all trials and for one that forgets them."""

    def __init__(self, algorithm: str, pruning: Pruning | None = None) -> None:
        self.study = study(MIXED, algorithm, direction=MINIMIZE, pruning={"minTrials": 2})
        if pruning is not None:
            self.study = replace(self.study, spec=replace(self.study.spec, pruning=pruning))
        self.book = Book()
        self.whole = Engine(self.study, (), ())
        self.brief = Engine(self.study, (), (), source=self.book)

    def put(self, trial: Trial) -> None:
        self.book.known[trial.number] = trial  # stored first
        self.whole.put(trial)
        self.brief.put(trial)

    def measure(self, number: int, measurements: list[Measurement]) -> None:
        self.book.measured.setdefault(number, []).extend(measurements)
        self.whole.measure(number, measurements)
        self.brief.measure(number, measurements)


def test_an_index_that_evicts_trials_prunes_and_values_like_one_that_keeps_all() -> None:
    pair = Pair("random")
    for number in range(12):
        pair.put(Trial(number, RUNNING, {"layers": 1}))
        pair.measure(number, accuracy(*(0.1 * number + 0.01 * k for k in range(5))))
        if number >= 6:
            assert pair.brief.advise(number) == pair.whole.advise(number)
        if number % 4 != 3:
            pair.put(Trial(number, SUCCEEDED, {"layers": 1}, value=0.5))
        again = accuracy(*(0.1 * number + 0.01 * k for k in range(5)), 7.0)
        assert (
            pair.brief.fresh(number, again) == pair.whole.fresh(number, again) == tuple(again[5:])
        )
        assert pair.brief.value_of(number) == pair.whole.value_of(number)
    assert any(pair.whole.advise(number).should_stop for number in (3, 7, 11))
    for number in (3, 7, 11):  # advice about the same curve is not given anew
        pair.measure(number, accuracy(0.1 * number, first=5))
    later = Engine(pair.study, pair.book.trials(), (), source=pair.book)
    for number in (3, 7, 11):
        later.measure(number, pair.book.measured[number])
        assert later.advise(number) == pair.whole.advise(number)


def test_an_index_that_evicts_trials_compares_with_pruned_and_running_ones_too() -> None:
    pair, draw = Pair("random", Pruning("asha", {"eta": 2})), Random(6)
    stopped = 0
    for number in range(40):
        pair.put(Trial(number, RUNNING, {"layers": 1}))
        for step in range(1, 9):
            pair.measure(number, accuracy(draw.random(), first=step))
            if number < 9:  # its pruner is asked late, and finds all that was before
                advice = pair.whole.advise(number)
            else:
                advice = pair.brief.advise(number)
                assert advice == pair.whole.advise(number)
            if advice.should_stop:
                break
        stopped += advice.should_stop
        if number % 5:
            state = TrialState.PRUNED if advice.should_stop else SUCCEEDED
            pair.put(Trial(number, state, {"layers": 1}, value=0.5))
    assert 20 < stopped < 40


def test_an_engine_that_evicts_trials_behaves_like_one_that_keeps_all() -> None:
    pair = Pair("tpe")
    for number in range(60):
        [new] = pair.whole.propose(1).trials
        assert pair.brief.propose(1).trials == (new,)
        trial = Trial(number, RUNNING, new.parameters, request_id=f"request-{number // 2}")
        pair.put(trial)
        if number % 5:
            pair.put(replace(trial, state=SUCCEEDED, value=float(number % 7)))
    for k in (0, 7, 29, 30):
        assert pair.brief.trials_of_request(f"request-{k}") == pair.whole.trials_of_request(
            f"request-{k}"
        )
    assert [pair.brief.trial(n) for n in range(60)] == [pair.whole.trial(n) for n in range(60)]
    assert (pair.brief.next_number, pair.brief.size) == (60, 60)


def test_the_store_is_not_read_while_trials_start_and_end() -> None:
    pair = Pair("tpe")
    for number in range(40):
        [new] = pair.brief.propose(1).trials
        assert pair.brief.trials_of_request(f"request-{number}") == ()
        trial = Trial(number, RUNNING, new.parameters, request_id=f"request-{number}")
        pair.put(trial)
        pair.put(replace(trial, state=SUCCEEDED, value=float(number)))
    assert pair.book.asked == 0


def test_a_cancelled_trial_is_kept_for_it_may_be_a_deleted_one() -> None:
    index = TrialIndex(Book())
    cancelled = Trial(3, TrialState.CANCELLED, {"lr": 0.1}, request_id="asked")
    index.put(cancelled)
    assert (index.get(3), index.of_request("asked")) == (cancelled, (cancelled,))
    assert (index.get(2), index.state(2), index.state(3), len(index)) == (
        None,
        None,
        cancelled.state,
        1,
    )


def test_labeling_a_finished_trial_does_not_count_it_twice() -> None:
    pair = Pair("tpe")
    for number in range(12):
        pair.put(
            Trial(
                number, SUCCEEDED, pair.whole.propose(1).trials[0].parameters, value=float(number)
            )
        )
    before = pair.brief.propose(2)
    for _ in range(3):
        pair.put(replace(pair.whole.trial(4), labels={"team": "vision"}))
    assert pair.brief.propose(2) == pair.whole.propose(2) == before
    assert pair.brief.trial(4).labels == {"team": "vision"}


def test_a_trial_changes_its_request_until_it_ends() -> None:
    book = Book()
    index = TrialIndex(book)
    index.put(Trial(0, QUEUED, {}, request_id="added"))
    running = Trial(0, RUNNING, {}, request_id="asked")
    index.put(running)
    assert (index.of_request("added"), index.of_request("asked")) == ((), (running,))
    book.known[0] = replace(running, state=SUCCEEDED, value=1.0)
    index.put(book.known[0])
    assert (index.of_request("added"), index.of_request("asked")) == ((), (book.known[0],))


def test_an_index_filled_at_once_equals_one_filled_incrementally() -> None:
    trials = [Trial(n, SUCCEEDED, {}, request_id=f"r{n % 4}") for n in range(9)]
    slow, fast = TrialIndex(None), TrialIndex(None)
    for trial in trials:
        slow.put(trial)
    assert list(fast.fill(trials)) == trials
    for k in range(5):
        assert fast.of_request(f"r{k}") == slow.of_request(f"r{k}")
    assert list(fast.all()) == list(slow.all()) == trials


def test_a_window_keeps_what_it_shows_and_little_more() -> None:
    small, all_ = (Window(study(MIXED, direction=MINIMIZE).spec, 50) for _ in range(2))
    all_._forget = lambda: None  # type: ignore[method-assign]  # what it would be without
    for number in range(1000):
        # The best ones are old, and some end long after later ones.
        trial = Trial(number ^ 1, SUCCEEDED, {}, value=float(number % 100))
        small.put(trial)
        all_.put(trial)
        assert list(small.learned()) == list(all_.learned())
    assert (small.finished, len(list(small.learned()))) == (1000, 50)
    assert len(small._finished) < 200


def a_history(count: int, seed: int, *, first: int) -> TrialBatch:
    """Return a history in which one trial in four has failed,
    and one point lies outside of MIXED.
    """
    rng = Random(seed)
    states = [
        rng.choice([SUCCEEDED, SUCCEEDED, SUCCEEDED, TrialState.FAILED]) for _ in range(count)
    ]
    found = [
        dict(each.parameters)
        for each in Engine(study(MIXED, seed=seed), [], []).propose(count).trials
    ]
    outside = seed % 2 and rng.randrange(count)
    if outside:
        found[outside]["lr"] = 1e9
    return TrialBatch(
        first,
        states,
        {name: a_column(*(point[name] for point in found)) for name in found[0]},
        [float(rng.randrange(50)) if state is SUCCEEDED else None for state in states],
        ["" if state is SUCCEEDED else "broken" for state in states],
        ["" if state is SUCCEEDED else "katib" for state in states],
        {IMPORTED_FROM: ["katib" if k == outside else None for k in range(count)]}
        if outside
        else {},
        datetime(2026, 1, 2, tzinfo=UTC),
    )


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
@pytest.mark.parametrize("keeps", [True, False])
def test_a_batch_teaches_what_its_trials_teach_one_by_one(algorithm: str, keeps: bool) -> None:
    config = {"window": 50} if algorithm == "tpe" else {}
    for seed in range(4):
        books = Book(), Book()
        one_by_one, at_once = (
            Engine(study(MIXED, algorithm, config=config), [], [], source=None if keeps else book)
            for book in books
        )
        for count in (30, 170):
            batch = a_history(count, seed, first=at_once.next_number)
            for book in books:
                book.known |= {trial.number: trial for trial in batch.trials()}
            for trial in batch.trials():
                one_by_one.put(trial)
            at_once.take_batch(batch)
            assert at_once.propose(1) == one_by_one.propose(1)
        assert list(at_once.trials()) == list(one_by_one.trials())
        assert (at_once.results, at_once.size, at_once.next_number) == (200, 200, 200)
