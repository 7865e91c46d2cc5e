"""Leases of trials when a client is silent, late, or waiting."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from suggest.client import Client, Float, Search, maximize
from suggest.errors import FailedPrecondition, InvalidArgument, LeaseExpired
from suggest.server.admin import open_store
from suggest.storage.sql_store import StudyStore
from suggest.studies import StudyService
from suggest.studies.trial_leases import LONGEST_GAP_S, MAX_TRIES, AwakeClock
from suggest.study import Algorithm, StudyName
from suggest.trial import Measurement, Outcome, Trial, TrialState
from tests import forked
from tests.conditions import eventually
from tests.service.running import NAME, SPEC, a_process, a_server, score

LEASE_S = 60.0
WIRE_LEASE_S = 4.0  # of processes: on a busy machine, one may not run for a second or two
SUCCEEDED = Outcome(TrialState.SUCCEEDED, 0.5)


class Hours:
    """A server's clock that the test controls."""

    def __init__(self) -> None:
        self._time_s = 0.0
        self.clock = AwakeClock(lambda: self._time_s)

    def pass_by(self, seconds: float) -> None:
        """Let time pass while the server is awake."""
        while seconds > 0:
            self.clock.now_s()
            self._time_s += min(seconds, LONGEST_GAP_S)
            seconds -= LONGEST_GAP_S
        self.clock.now_s()

    def freeze(self, seconds: float) -> None:
        self.clock.now_s()
        self._time_s += seconds


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StudyStore]:
    with closing(open_store(f"sqlite:///{tmp_path}/s.db")) as store:
        yield store


@pytest.fixture
def hours() -> Hours:
    return Hours()


@pytest.fixture
def studies(store: StudyStore, hours: Hours) -> Iterator[StudyService]:
    studies = StudyService(store, address="", clock=hours.clock)
    studies.create_study(NAME, SPEC, request_id="create")
    yield studies
    studies.close()


class Asker:
    """A client that requests trials, with a new request id for each call by default."""

    def __init__(self, studies: StudyService, client_id: str) -> None:
        self._studies = studies
        self._client_id = client_id
        self._ids = itertools.count()

    def __call__(
        self,
        count: int = 1,
        *,
        request_id: str = "",
        lease_s: float | None = LEASE_S,
        expired_only: bool = False,
    ) -> list[Trial]:
        found = self._studies.suggest(
            NAME,
            count,
            client_id=self._client_id,
            request_id=request_id or f"{self._client_id}-{next(self._ids)}",
            lease_s=lease_s,
            expired_only=expired_only,
        )
        return list(found.trials)


@pytest.fixture
def alice(studies: StudyService) -> Asker:
    return Asker(studies, "alice")


@pytest.fixture
def bob(studies: StudyService) -> Asker:
    return Asker(studies, "bob")


def numbers(trials: list[Trial]) -> list[int]:
    return [trial.number for trial in trials]


def test_an_expired_trial_is_handed_out_unchanged_before_new_points(
    alice: Asker, bob: Asker, hours: Hours
) -> None:
    first, second = alice(2)
    hours.pass_by(LEASE_S + 1)
    again, other = bob(2)
    assert (again.number, again.parameters, again.tries, again.client_id) == (
        0,
        first.parameters,
        2,
        "bob",
    )
    assert other == replace(other, number=1, parameters=second.parameters, tries=2)
    assert numbers(bob()) == [2]


def test_a_trial_without_a_lease_runs_until_a_client_completes_it(
    alice: Asker, bob: Asker, hours: Hours
) -> None:
    [trial] = alice(lease_s=None)
    hours.pass_by(1_000_000)
    assert (trial.lease_s, trial.lease_expire_time, trial.tries) == (None, None, 1)
    assert numbers(bob()) == [1]
    assert bob(expired_only=True) == []


@pytest.mark.parametrize("tries", [2, -1])
def test_a_try_that_was_never_given_is_named(
    studies: StudyService, alice: Asker, tries: int
) -> None:
    alice()
    with pytest.raises(LeaseExpired, match=rf"no try {tries} of trial 0, whose last one is 1: "):
        studies.complete(NAME, 0, SUCCEEDED, tries=tries)
    assert studies.trial(NAME, 0).state is TrialState.RUNNING


@pytest.mark.parametrize("by", ["report", "renewal", "the same request again"])
def test_a_lease_is_renewed(by: str, studies: StudyService, bob: Asker, hours: Hours) -> None:
    def ask() -> None:
        studies.suggest(NAME, 1, client_id="a", request_id="a", lease_s=LEASE_S)

    steps = itertools.count()
    renew: dict[str, Callable[[], object]] = {
        "report": lambda: studies.report(NAME, 0, [score(next(steps), 0.5)], tries=1),
        "renewal": lambda: studies.renew_leases(NAME, {0: 1}),
        "the same request again": ask,
    }
    ask()
    for _ in range(4):
        hours.pass_by(LEASE_S - 1)
        renew[by]()
        assert bob(expired_only=True) == []
    hours.pass_by(LEASE_S + 1)
    assert numbers(bob(expired_only=True)) == [0]


def test_a_late_client_changes_nothing_once_another_client_has_the_trial(
    studies: StudyService, alice: Asker, bob: Asker, hours: Hours
) -> None:
    alice()
    studies.report(NAME, 0, [score(0, 0.1)], tries=1)
    hours.pass_by(LEASE_S + 1)
    [mine] = bob()
    for late in (
        lambda: studies.report(NAME, 0, [score(1, 0.9)], tries=1),
        lambda: studies.complete(NAME, 0, SUCCEEDED, tries=1),
        lambda: studies.complete(NAME, 0, Outcome(TrialState.CANCELLED), tries=1),
    ):
        with pytest.raises(
            LeaseExpired,
            match=r"trial 0 expired, and it was handed out again \(try 2; this is try 1\)",
        ):
            late()
    assert studies.renew_leases(NAME, {0: 1}) == {0}
    assert replace(studies.trial(NAME, 0), lease_expire_time=mine.lease_expire_time) == mine
    assert [m for _, _, m in studies.list_measurements(NAME, 0, limit=9)] == [score(0, 0.1)]

    studies.report(NAME, 0, [Measurement(2, "score", 0, 0.5)], tries=2)
    studies.complete(NAME, 0, SUCCEEDED, tries=2)
    with pytest.raises(LeaseExpired):
        studies.complete(NAME, 0, SUCCEEDED, tries=1)


@pytest.mark.parametrize("by", ["report", "renewal", "the same request again"])
def test_a_late_client_may_continue_while_no_other_client_has_the_trial(
    by: str, studies: StudyService, alice: Asker, bob: Asker, hours: Hours
) -> None:
    alice(2, request_id="a")
    hours.pass_by(LEASE_S + 1)
    assert numbers(bob()) == [0]
    assert studies.trial(NAME, 1).state is TrialState.QUEUED
    come_late: dict[str, Callable[[], object]] = {
        "report": lambda: studies.report(NAME, 1, [score(0, 0.5)], tries=1),
        "renewal": lambda: studies.renew_leases(NAME, {1: 1}),
        "the same request again": lambda: alice(2, request_id="a"),
    }
    come_late[by]()
    found = studies.trial(NAME, 1)
    assert (found.state, found.client_id, found.tries) == (TrialState.RUNNING, "alice", 1)
    assert bob(expired_only=True) == []
    hours.pass_by(LEASE_S + 1)
    assert numbers(alice(2, expired_only=True)) == [0, 1], "and its lease lives again"


def test_a_late_completion_is_accepted_while_no_other_client_has_the_trial(
    studies: StudyService, alice: Asker, bob: Asker, hours: Hours
) -> None:
    alice(2)
    hours.pass_by(LEASE_S + 1)
    bob()
    assert studies.complete(NAME, 1, SUCCEEDED, tries=1).state is TrialState.SUCCEEDED
    assert bob(expired_only=True) == []


def test_a_repeated_request_omits_trials_taken_by_others(
    alice: Asker, bob: Asker, hours: Hours
) -> None:
    alice(3, request_id="a")
    hours.pass_by(LEASE_S + 1)
    assert numbers(bob(2)) == [0, 1]
    assert numbers(alice(3, request_id="a")) == [2]


def test_a_trial_whose_lease_expires_too_often_fails_as_infrastructure(
    studies: StudyService, alice: Asker, hours: Hours
) -> None:
    for tries in range(1, MAX_TRIES + 1):
        assert [(t.number, t.tries) for t in alice()] == [(0, tries)]
        hours.pass_by(LEASE_S + 1)
    assert numbers(alice()) == [1]
    failed = studies.trial(NAME, 0)
    assert (failed.state, failed.failure_class) == (TrialState.FAILED, "infrastructure")
    assert (
        failed.reason == "its lease expired 3 times: every client that ran it stopped renewing it"
    )
    with pytest.raises(FailedPrecondition, match="trial 0 has ended as failed"):
        studies.complete(NAME, 0, SUCCEEDED, tries=MAX_TRIES)


def test_expired_only_returns_no_enqueued_or_new_points(
    studies: StudyService, alice: Asker, hours: Hours
) -> None:
    studies.add_trial(NAME, {"x": 1.0}, request_id="first")
    assert alice(expired_only=True) == []
    assert numbers(alice()) == [0]
    hours.pass_by(LEASE_S + 1)
    assert numbers(alice(5, expired_only=True)) == [0]


def test_a_lease_of_zero_or_of_weeks_is_refused(tmp_path: Path) -> None:
    with a_server(tmp_path / "studies.db") as server, Client(server.address) as client:
        for lease_s in (-1.0, 0.01, 8 * 86400.0):
            with pytest.raises(InvalidArgument, match=r"lease_duration: .*use 0\.1 s to 7 days"):
                client.suggest(NAME, 1, client_id="alice", request_id="one", lease_s=lease_s)


def test_a_restart_neither_loses_a_lease_nor_expires_one(
    store: StudyStore, studies: StudyService, alice: Asker
) -> None:
    alice()
    studies.close()
    hours = Hours()
    with closing(StudyService(store, address="", clock=hours.clock)) as after:
        bob = Asker(after, "bob")
        # no call has opened the study yet, so no client could renew a lease
        hours.pass_by(LEASE_S * 10)
        assert bob(expired_only=True) == []
        hours.pass_by(LEASE_S - 1)
        assert bob(expired_only=True) == []
        hours.pass_by(2)
        assert numbers(bob(expired_only=True)) == [0]


def test_a_reloaded_engine_prolongs_no_lease(
    studies: StudyService, alice: Asker, bob: Asker, hours: Hours
) -> None:
    alice(2)
    studies.complete(NAME, 1, Outcome(TrialState.FAILED), tries=1)
    hours.pass_by(LEASE_S - 1)
    studies.delete_trial(NAME, 1)  # drops the engine from memory
    assert bob(expired_only=True) == []
    hours.pass_by(2)
    assert numbers(bob(expired_only=True)) == [0]


def test_leases_do_not_expire_while_the_server_is_frozen(
    alice: Asker, bob: Asker, hours: Hours
) -> None:
    alice()
    hours.freeze(10 * LEASE_S)
    assert bob(expired_only=True) == []
    hours.pass_by(LEASE_S)
    assert numbers(bob(expired_only=True)) == [0]


def test_the_time_of_expiry_is_shown(studies: StudyService, alice: Asker, hours: Hours) -> None:
    [trial] = alice()
    assert trial.lease_expire_time is not None
    assert trial.create_time is not None
    assert (trial.lease_expire_time - trial.create_time).total_seconds() == pytest.approx(
        LEASE_S, abs=5
    )
    hours.pass_by(LEASE_S / 2)
    [listed] = studies.list_trials(NAME, limit=9)
    assert listed.lease_expire_time is not None
    assert listed.lease_expire_time < trial.lease_expire_time
    studies.complete(NAME, 0, SUCCEEDED)
    assert studies.trial(NAME, 0).lease_expire_time is None


def test_a_search_with_expired_trials_proposes_the_same_points(tmp_path: Path) -> None:
    """A grid hands out each point once, however often a client dies."""
    hours = Hours()
    spec = replace(
        SPEC, space=SPEC.space.__class__(SPEC.space.parameters[1:]), algorithm=Algorithm("grid")
    )
    with closing(open_store(f"sqlite:///{tmp_path}/g.db")) as store:
        studies = StudyService(store, address="", clock=hours.clock)
        studies.create_study(NAME, spec, request_id="create")
        ask = Asker(studies, "c")
        assert numbers(ask(5)) == [0, 1]
        hours.pass_by(LEASE_S + 1)
        assert [(t.number, t.parameters["kind"]) for t in ask(5)] == [(0, "a"), (1, "b")]
        assert ask() == []
        studies.close()


# Over the wire, with real clients


PROGRAM = """
import os, signal, sys, time
from suggest.client import Client, Float, maximize

address, lease_s, last, end = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("ready", flush=True)
signal.sigwait([signal.SIGUSR1])
study = Client(address).study("s", {"x": Float(-10, 10)}, maximize("score"), algorithm="random")
for done, trial in enumerate(study.trials(30, lease_s=lease_s)):
    trial.report(score=trial.parameters["x"])
    time.sleep(0.05)
    if done == last:
        os.kill(os.getpid(), end)
    trial.complete()
"""


def a_search(client: Client) -> Search:
    return client.study("s", {"x": Float(-10, 10)}, maximize("score"), algorithm="random")


def start(
    address: str, last: int = -1, end: signal.Signals = signal.SIGKILL
) -> subprocess.Popen[str]:
    """Start a worker that sends itself a signal in its trial `last`."""
    return forked.python(
        PROGRAM, address, str(WIRE_LEASE_S), str(last), str(int(end)), env=os.environ
    )


def release(*workers: subprocess.Popen[str]) -> None:
    """Let the workers begin together once all of them are ready."""
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.send_signal(signal.SIGUSR1)


def ended(worker: subprocess.Popen[str]) -> int:
    worker.communicate(timeout=120)
    return worker.returncode


def test_trials_of_killed_clients_are_run_by_the_others(tmp_path: Path) -> None:
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        workers = [start(server.address, last) for last in (0, 1, 2, -1)]
        release(*workers)
        *killed, survivor = (ended(worker) for worker in workers)
        assert survivor == 0
        assert -9 in killed
        trials = client.list_trials(a_search(client).name)
        ends = [t for t in trials if t.state is not TrialState.CANCELLED]
        assert [t.state for t in ends] == [TrialState.SUCCEEDED] * 30
        assert sum(t.tries - 1 for t in ends) == killed.count(-9)
        for t in ends:
            attempts = {
                m.attempt for _, m in client.list_measurements(StudyName("default", "s"), t.number)
            }
            assert attempts == set(range(1, t.tries + 1))
            assert t.value == t.parameters["x"]


def test_a_trial_without_reports_is_kept_by_lease_renewal(tmp_path: Path) -> None:
    with (
        a_server(tmp_path / "s.db") as server,
        Client(server.address) as client,
        Client(server.address) as other,
    ):
        search = a_search(client)
        loop = search.trials(1, lease_s=WIRE_LEASE_S)
        trial = next(loop)
        first = client.get_trial(search.name, 0).lease_expire_time
        assert first is not None

        def renewed() -> bool:
            expire = other.get_trial(search.name, 0).lease_expire_time
            assert expire is not None
            assert not other.suggest(
                search.name, 1, client_id="o", request_id=str(expire), lease_s=9, expired_only=True
            ).trials
            return (expire - first).total_seconds() > WIRE_LEASE_S

        eventually(renewed)
        trial.complete(1.0)
        assert list(loop) == []


def test_a_client_that_was_suspended_loses_its_trial_to_another(tmp_path: Path) -> None:
    """For example on a laptop whose lid was closed."""
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        search = a_search(client)
        asleep = start(server.address, 0, signal.SIGSTOP)
        release(asleep)
        eventually(lambda: client.list_measurements(search.name))
        other = start(server.address)
        release(other)
        assert ended(other) == 0
        before = client.list_trials(search.name), client.list_measurements(search.name)
        assert [(t.number, t.state) for t in before[0] if t.tries == 2] == [
            (0, TrialState.SUCCEEDED)
        ]
        asleep.send_signal(signal.SIGCONT)
        _, said = asleep.communicate(timeout=120)
        assert asleep.returncode == 0
        assert "trial 0" in said
        assert (client.list_trials(search.name), client.list_measurements(search.name)) == before


def test_a_killed_server_and_its_clients_lose_no_trial(folder: Path) -> None:
    address = f"unix:{folder}/s.sock"
    with a_process(folder / "s.db", address, revive=True) as server, Client(address) as client:
        killed, survivor = start(address, 0), start(address)
        search = a_search(client)
        release(killed)
        assert ended(killed) == -9
        release(survivor)
        for finished in (5, 15):
            eventually(
                lambda n=finished: (
                    len(client.list_trials(search.name, states=[TrialState.SUCCEEDED])) >= n
                )
            )
            server.kill()
        assert ended(survivor) == 0
        ends = [
            t.state for t in client.list_trials(search.name) if t.state is not TrialState.CANCELLED
        ]
        assert ends == [TrialState.SUCCEEDED] * 30
