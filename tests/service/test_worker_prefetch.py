"""A study continues while a worker process computes a point,
and a call gets a ready point or a cheaper one.
"""

from __future__ import annotations

import contextvars
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from suggest import deadline
from suggest.client import Client
from suggest.errors import LimitReached, NotFound, NotOwner, TimedOut
from suggest.server.admin import open_store
from suggest.server.limits_file import Limits, Quota
from suggest.server.quota import QuotaStore
from suggest.space import Choice, Float, Parameter, Space
from suggest.studies import StudyService, next_point
from suggest.study import Algorithm, Direction, Objective, StudySpec
from suggest.trial import PROPOSED_BY, Outcome, Trial, TrialState
from tests.conditions import eventually
from tests.service.running import NAME, a_server, score
from tests.service.test_trial_leases import Hours
from tests.unit.slow_models import LATCH

SPACE = Space((Parameter("x", Float(-10.0, 10.0)), Parameter("kind", Choice(("a", "b")))))
WIDER = Space((Parameter("x", Float(-10.0, 20.0)), Parameter("kind", Choice(("a", "b")))))
STARTUP = 1
DONE = Outcome(TrialState.SUCCEEDED, 0.5)


def spec(*, seed: int | None = 7) -> StudySpec:
    algorithm = Algorithm("gp", settings={"startupTrials": STARTUP}, seed=seed)
    return StudySpec(SPACE, (Objective("score", Direction.MAXIMIZE),), algorithm)


class Latch:
    """Controls the model `slow_models.Latched`, and shows what it does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def shut(self) -> None:
        (self._folder / "closed").touch()

    def open(self) -> None:
        (self._folder / "closed").unlink(missing_ok=True)

    def answer(self, *wanted: int) -> None:
        """Answer one request, and keep all others waiting."""
        (self._folder / "answer {}".format(",".join(map(str, wanted)))).touch()

    def spoil(self, broken: bool = True) -> None:
        (self._folder / "broken").touch() if broken else (self._folder / "broken").unlink()

    def exhaust_memory(self) -> None:
        (self._folder / "memory").touch()

    def asked(self) -> list[dict[str, object]]:
        file = self._folder / "asked"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def is_asked_for(self, *wanted: int, times: int = 1) -> Callable[[], bool]:
        return lambda: len(self.asked_for(*wanted)) >= times

    def asked_for(self, *wanted: int) -> list[dict[str, object]]:
        return [line for line in self.asked() if line["wanted"] == list(wanted)]


@pytest.fixture
def latch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Latch:
    folder = tmp_path / "latch"
    folder.mkdir()
    monkeypatch.setenv(LATCH, str(folder))
    monkeypatch.setattr("suggest.samplers.gp.MODEL", "tests.unit.slow_models:Latched")
    return Latch(folder)


@contextmanager
def serving(path: Path) -> Iterator[StudyService]:
    with (
        closing(open_store(f"sqlite:///{path}")) as store,
        closing(StudyService(store, address="")) as studies,
    ):
        yield studies


@pytest.fixture
def studies(tmp_path: Path, latch: Latch) -> Iterator[StudyService]:
    with serving(tmp_path / "s.db") as studies:
        yield studies
        latch.open()


@pytest.fixture
def threads(studies: StudyService, latch: Latch) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads
        latch.open()


def suggested(studies: StudyService, request_id: str, count: int = 1) -> list[Trial]:
    return list(studies.suggest(NAME, count, client_id="c", request_id=request_id).trials)


def begun(studies: StudyService, *, running: int = 0, seed: int | None = 7) -> list[Trial]:
    """Create a study with one result and some running trials,
    whose next points come from the model.
    """
    studies.create_study(NAME, spec(seed=seed), request_id="create")
    trials = suggested(studies, "first", STARTUP + running)
    studies.complete(NAME, trials[0].number, DONE)
    return trials[STARTUP:]


def numbers(studies: StudyService) -> list[int]:
    return [t.number for t in studies.list_trials(NAME, limit=1000)]


def points(trials: list[Trial]) -> list[object]:
    return [t.parameters for t in trials]


def several(
    threads: ThreadPoolExecutor, studies: StudyService, request_id: str = "several"
) -> Future[list[Trial]]:
    return threads.submit(suggested, studies, request_id, 2)


def held_up(
    threads: ThreadPoolExecutor, studies: StudyService, latch: Latch
) -> Future[list[Trial]]:
    """Request trials 2 and 3, and return once a worker computes them,
    which ends when the latch is opened.
    """
    latch.shut()
    asking = several(threads, studies)
    eventually(latch.is_asked_for(2, 3))
    return asking


# Other calls while a worker computes


def test_reports_completions_and_reads_continue_while_a_worker_computes(
    studies: StudyService, threads: ThreadPoolExecutor, latch: Latch
) -> None:
    one, other = begun(studies, running=2)
    latch.shut()
    asking = several(threads, studies)
    eventually(latch.is_asked_for(3, 4))
    assert not studies.report(NAME, one.number, [score(1, 0.5)]).should_stop
    assert studies.complete(NAME, one.number, DONE).state is TrialState.SUCCEEDED
    assert studies.renew_leases(NAME, {other.number: 1}) == frozenset()
    assert studies.relabel_trial(NAME, other.number, {"a": "b"}).labels == {"a": "b"}
    assert numbers(studies) == [0, 1, 2]
    assert studies.study(NAME).spec.algorithm.name == "gp"
    assert not asking.done()
    latch.open()
    assert [t.number for t in asking.result(60)] == [3, 4]


def test_a_call_of_a_server_is_answered_while_another_one_computes(
    tmp_path: Path, latch: Latch
) -> None:
    with (
        a_server(tmp_path / "s.db") as server,
        Client(server.address) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        client.create_study(NAME, spec(), request_id="create")
        first, second = client.suggest(NAME, 2, client_id="c", request_id="first").trials
        client.complete(NAME, first.number, DONE)
        latch.shut()
        asking = threads.submit(client.suggest, NAME, 2, client_id="c", request_id="next")
        try:
            eventually(latch.is_asked_for(2, 3))
            client.report(NAME, second.number, [score(1, 0.5)])
            client.complete(NAME, second.number, DONE)
            assert not asking.done()
        finally:
            latch.open()
        assert [t.number for t in asking.result(60).trials] == [2, 3]


def test_a_proposal_is_computed_again_if_the_space_grew_meanwhile(
    studies: StudyService, threads: ThreadPoolExecutor, latch: Latch
) -> None:
    begun(studies, running=1)
    asking = held_up(threads, studies, latch)
    studies.update_study(NAME, space=WIDER)
    latch.open()
    asking.result(60)
    assert [line["max"] for line in latch.asked_for(2, 3)] == [10.0, 20.0]


def test_trial_numbers_taken_by_others_meanwhile_are_not_used_twice(
    studies: StudyService, threads: ThreadPoolExecutor, latch: Latch
) -> None:
    begun(studies, running=1)
    asking = held_up(threads, studies, latch)
    added = studies.add_trial(NAME, {"x": 1.0, "kind": "a"}, request_id="added")
    latch.open()
    given = asking.result(60)
    assert (added.number, [t.number for t in given], given[0].parameters) == (
        2,
        [2, 3],
        added.parameters,
    )
    assert latch.asked_for(3)


def test_a_study_that_changes_constantly_still_gets_a_proposal(
    studies: StudyService, threads: ThreadPoolExecutor, latch: Latch
) -> None:
    begun(studies, running=1)
    latch.shut()
    asking = several(threads, studies)
    for number in (2, 3, 4):
        eventually(latch.is_asked_for(number, number + 1))
        studies.add_trial(NAME, {"x": 1.0, "kind": "a"}, request_id=f"added {number}", outcome=DONE)
        latch.answer(number, number + 1)
    latch.open()
    assert [t.number for t in asking.result(60)] == [5, 6]
    assert len(latch.asked_for(5, 6)) == 1


def test_a_study_deleted_meanwhile_is_not_found(
    studies: StudyService, threads: ThreadPoolExecutor, latch: Latch
) -> None:
    begun(studies, running=1)
    batch = held_up(threads, studies, latch)
    studies.delete_study(NAME)
    latch.open()
    with pytest.raises(NotFound):
        batch.result(60)


def test_a_repeated_request_during_a_computation_gets_the_same_trials(
    studies: StudyService, threads: ThreadPoolExecutor, latch: Latch
) -> None:
    begun(studies, running=1)
    latch.shut()
    asking = [several(threads, studies, "same") for _ in range(2)]
    eventually(latch.is_asked_for(2, 3))
    latch.open()
    first, again = (each.result(60) for each in asking)
    assert [t.number for t in first] == [t.number for t in again] == [2, 3]
    assert numbers(studies) == [0, 1, 2, 3]
    assert points(suggested(studies, "same", 2)) == points(first)


def test_a_proposal_does_not_use_a_trial_deleted_meanwhile(
    studies: StudyService, threads: ThreadPoolExecutor, latch: Latch
) -> None:
    begun(studies, running=1)
    studies.complete(NAME, 1, DONE)
    asking = held_up(threads, studies, latch)
    studies.delete_trial(NAME, 1)
    latch.open()
    asking.result(60)
    assert [line["finished"] for line in latch.asked_for(2, 3)] == [[0, 1], [0]]


def test_a_study_that_another_server_takes_meanwhile_gets_no_trial_from_this_one(
    postgres_url: str, latch: Latch
) -> None:
    with (
        closing(open_store(postgres_url)) as store,
        closing(StudyService(store, address="here:1")) as studies,
        ThreadPoolExecutor(1) as threads,
    ):
        begun(studies, running=1)
        latch.shut()
        asking = several(threads, studies)
        try:
            eventually(latch.is_asked_for(2, 3))
            with psycopg.connect(
                postgres_url.replace("+psycopg", ""), autocommit=True
            ) as connection:
                connection.execute(
                    "UPDATE studies SET owner_epoch = owner_epoch + 1, owner_address = 'there:1'"
                )
        finally:
            latch.open()
        with pytest.raises(NotOwner, match="taken over by there:1"):
            asking.result(60)
        assert numbers(studies) == [0, 1]


# One trial at a time, with a seed: exact


def test_a_seeded_study_without_running_trials_waits_for_its_own_point(
    studies: StudyService, threads: ThreadPoolExecutor, latch: Latch
) -> None:
    latch.shut()
    begun(studies)
    asking = threads.submit(suggested, studies, "next")
    eventually(latch.is_asked_for(1))
    assert numbers(studies) == [0], "a read is answered, and nothing was handed out"
    latch.open()
    (trial,) = asking.result(60)
    assert PROPOSED_BY not in trial.labels
    assert latch.asked()[-1] == {"wanted": [1], "finished": [0], "running": [], "max": 10.0}


def test_a_seeded_search_of_one_trial_at_a_time_repeats_itself(
    tmp_path: Path, latch: Latch
) -> None:
    def searched(name: str, restart_at: int) -> list[object]:
        found: list[object] = []
        for first, last in ((0, restart_at), (restart_at, 8)):
            with serving(tmp_path / name) as studies:
                studies.create_study(NAME, spec(), request_id="create")
                for number in range(first, last):
                    (trial,) = suggested(studies, f"{number}")
                    found.append(trial.parameters)
                    studies.complete(NAME, number, Outcome(TrialState.SUCCEEDED, float(number)))
        return found

    assert searched("a.db", 4) == searched("b.db", 6)


def test_the_point_of_a_cancelled_call_goes_to_the_next_call(
    studies: StudyService, threads: ThreadPoolExecutor, latch: Latch
) -> None:
    latch.shut()
    begun(studies)

    def impatient() -> None:
        deadline.begin(0.1)
        suggested(studies, "given up")

    with pytest.raises(TimedOut):
        threads.submit(contextvars.Context().run, impatient).result(60)
    assert numbers(studies) == [0]
    latch.open()
    assert [t.number for t in suggested(studies, "given up")] == [1]
    assert [line["wanted"] for line in latch.asked()] == [[1]], "it was not computed twice"


# Prefetching, and the fallback when no point is ready


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long for a fresh point, because the machine may be busy."""
    monkeypatch.setattr(next_point, "FRESH_S", 60.0)


def is_ready(studies: StudyService) -> bool:
    with studies.sessions.writing(NAME) as writer:
        return writer.next_point.ready(writer.engine) is not None


def test_with_two_running_trials_the_next_point_is_computed_before_a_request(
    studies: StudyService, latch: Latch, patient: None
) -> None:
    begun(studies, running=1)
    suggested(studies, "one more")
    eventually(latch.is_asked_for(3))
    assert latch.asked_for(3) == [{"wanted": [3], "finished": [0], "running": [1, 2], "max": 10.0}]


def test_with_one_running_trial_nothing_is_computed_before_it_has_ended(
    studies: StudyService, latch: Latch, patient: None
) -> None:
    begun(studies)
    (given,) = suggested(studies, "next")
    studies.complete(NAME, given.number, DONE)
    eventually(latch.is_asked_for(2))
    assert [line["finished"] for line in latch.asked_for(2)] == [[0, 1]]


def test_a_ready_point_may_miss_one_result(
    studies: StudyService, latch: Latch, patient: None
) -> None:
    begun(studies, running=2)
    suggested(studies, "one more")
    eventually(lambda: is_ready(studies))
    studies.complete(NAME, 1, DONE)
    latch.shut()
    (given,) = suggested(studies, "next")
    assert (
        given.number,
        PROPOSED_BY in given.labels,
        studies.sessions.points_given()["ready"],
    ) == (4, False, 1)
    assert [line["finished"] for line in latch.asked_for(4)] == [[0]]


def test_a_point_that_misses_two_results_is_computed_again(
    studies: StudyService, latch: Latch, patient: None
) -> None:
    begun(studies, running=3)
    suggested(studies, "one more")
    eventually(lambda: is_ready(studies))
    studies.complete(NAME, 1, DONE)
    studies.complete(NAME, 2, DONE)
    (given,) = suggested(studies, "next")
    assert [line["finished"] for line in latch.asked_for(given.number)] == [[0], [0, 1, 2]]


def test_a_call_whose_point_is_late_gets_a_cheaper_one(studies: StudyService, latch: Latch) -> None:
    latch.shut()
    begun(studies, running=1, seed=None)
    (cheaper,) = suggested(studies, "now")
    assert (
        cheaper.number,
        cheaper.labels[PROPOSED_BY],
        studies.sessions.points_given()["cheaper"],
    ) == (2, "tpe", 1)
    assert points(suggested(studies, "now")) == [cheaper.parameters], "a replay is exact"
    latch.open()
    eventually(lambda: is_ready(studies))
    (own,) = suggested(studies, "later")
    assert (own.number, PROPOSED_BY in own.labels) == (3, False)
    assert latch.asked()[0]["wanted"] == [2], "what was computed is used under the next number"
    assert not latch.asked_for(3)
    assert own.parameters != cheaper.parameters


def test_a_sequential_study_without_a_seed_does_not_wait_either(
    studies: StudyService, latch: Latch
) -> None:
    latch.shut()
    begun(studies, seed=None)
    (given,) = suggested(studies, "now")
    assert given.labels[PROPOSED_BY] == "tpe"


def test_the_waiting_call_gets_the_models_error_and_the_next_call_retries(
    studies: StudyService, latch: Latch
) -> None:
    latch.spoil()
    begun(studies)
    with pytest.raises(RuntimeError, match="ZeroDivisionError: in the model"):
        suggested(studies, "next")
    latch.spoil(False)
    for again in range(2):  # the first call may get the error of the computation ahead of it
        try:
            assert [t.number for t in suggested(studies, "next")] == [1]
            return
        except RuntimeError:
            assert not again


def test_closing_ends_a_call_that_waits_for_its_point(tmp_path: Path, latch: Latch) -> None:
    latch.shut()
    with (
        closing(open_store(f"sqlite:///{tmp_path}/s.db")) as store,
        ThreadPoolExecutor(1) as threads,
    ):
        studies = StudyService(store, address="")
        begun(studies)
        asking: Future[list[Trial]] = threads.submit(suggested, studies, "next")
        eventually(latch.is_asked_for(1))
        studies.close()
        with pytest.raises(
            Exception, match=r"worker process has ended|server is stopping|no more points"
        ):
            asking.result(60)


# Many trials at once


def test_many_trials_are_computed_in_portions_and_handed_out_together(
    studies: StudyService, latch: Latch
) -> None:
    begun(studies)
    trials = suggested(studies, "many", 30)
    assert [trial.number for trial in trials] == list(range(1, 31))
    wanted = [line["wanted"] for line in latch.asked()]
    assert [len(each) for each in wanted if isinstance(each, list) and len(each) > 1] == [8, 16, 6]
    assert suggested(studies, "many", 30) == trials


def test_a_call_whose_time_is_up_has_the_trials_that_were_computed(
    studies: StudyService, latch: Latch, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(studies)
    with monkeypatch.context() as soon:
        soon.setattr(
            "suggest.studies.proposing.deadline", SimpleNamespace(left_s=lambda at_most: 0.0)
        )
        first = studies.suggest(NAME, 200, client_id="c", request_id="many")
    assert ([trial.number for trial in first.trials], first.exhausted) == (list(range(1, 9)), False)
    assert suggested(studies, "many", 200) == list(first.trials), "the request has its answer"
    assert [trial.number for trial in suggested(studies, "more", 3)] == [9, 10, 11]


def test_a_call_that_reaches_the_quota_has_the_trials_that_were_handed_out(
    tmp_path: Path, latch: Latch
) -> None:
    store = QuotaStore(
        open_store(f"sqlite:///{tmp_path}/s.db"), lambda: Limits(quota=Quota(trials=9))
    )
    with closing(store), closing(StudyService(store, address="")) as studies:
        begun(studies)
        first = studies.suggest(NAME, 30, client_id="c", request_id="many")
        assert ([trial.number for trial in first.trials], first.exhausted) == (
            list(range(1, 9)),
            False,
        )
        assert suggested(studies, "many", 30) == list(first.trials), "the request has its answer"
        with pytest.raises(LimitReached, match="has 9 of the 9 trials"):
            suggested(studies, "more", 30)
        assert numbers(studies) == list(range(9))


def test_a_call_whose_model_needs_too_much_memory_later_has_the_trials_that_were_handed_out(
    studies: StudyService, latch: Latch, threads: ThreadPoolExecutor
) -> None:
    begun(studies)
    latch.shut()
    asking = threads.submit(suggested, studies, "many", 30)
    eventually(latch.is_asked_for(*range(1, 9)))
    latch.answer(*range(1, 9))
    eventually(latch.is_asked_for(*range(9, 25)))
    latch.exhaust_memory()
    latch.open()
    trials = asking.result(60)
    assert [trial.number for trial in trials] == list(range(1, 9))
    with pytest.raises(LimitReached, match="needs more memory"):
        suggested(studies, "more", 30)


def test_a_lease_lasts_while_the_other_trials_of_its_call_are_computed(
    tmp_path: Path, latch: Latch, threads: ThreadPoolExecutor
) -> None:
    hours = Hours()
    store = open_store(f"sqlite:///{tmp_path}/leased.db")
    with closing(store), closing(StudyService(store, address="", clock=hours.clock)) as studies:
        begun(studies)
        latch.shut()
        asking = threads.submit(
            studies.suggest, NAME, 20, client_id="c", request_id="many", lease_s=60.0
        )
        eventually(latch.is_asked_for(*range(1, 9)))
        latch.answer(*range(1, 9))
        eventually(latch.is_asked_for(*range(9, 21)))
        hours.pass_by(100)
        latch.open()
        trials = asking.result(60).trials
        assert [(trial.number, trial.tries) for trial in trials] == [
            (number, 1) for number in range(1, 21)
        ]
        assert (
            studies.suggest(NAME, 20, client_id="d", request_id="other", expired_only=True).trials
            == ()
        )
