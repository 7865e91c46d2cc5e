"""Several servers on one PostgreSQL: ownership of studies when the owner
or the database dies or freezes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from suggest.client import Client
from suggest.errors import NotFound, NotOwner, Unavailable
from suggest.storage.postgres_store import SILENCE_S, OwnedByHeartbeat, PostgresStore
from suggest.storage.store import Addition, Lease
from suggest.trial import Outcome, TrialState
from tests import forked
from tests.conditions import eventually
from tests.contract.store_contract import NAME as DIGITS
from tests.contract.store_contract import a_study, measured, queued, running
from tests.e2e.cli import experiment
from tests.postgres import Postgres, a_postgres
from tests.service.load import PATIENCE_S, a_client, started, under_load
from tests.service.running import NAME, SPEC, ServerProcess, a_process, score

# The shorter outage is twice the silence after which another server may take a study.
OUTAGES_S = [3.0, pytest.param(10.0, marks=pytest.mark.soak)]


@pytest.fixture
def two(postgres_url: str, folder: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    with (
        a_process(postgres_url, f"unix:{folder}/a.sock") as first,
        a_process(postgres_url, f"unix:{folder}/b.sock") as second,
    ):
        yield first, second


def test_a_client_at_the_wrong_server_is_redirected_to_the_owner(
    two: tuple[ServerProcess, ServerProcess],
) -> None:
    first, second = two
    with a_client(first) as a, a_client(second) as b:
        a.create_study(NAME, SPEC, request_id="create")
        assert started(a, "r0").number == 0
        assert b.list_trials(NAME) == a.list_trials(NAME), "reading needs no owner"
        assert started(b, "r1").number == 1
        study = b.get_study(NAME)
        assert (study.owner_address, study.owner_epoch) == (first.address, 1)


def test_when_the_owner_dies_the_other_takes_over(two: tuple[ServerProcess, ServerProcess]) -> None:
    first, second = two
    with a_client(first) as a, a_client(second) as b:
        a.create_study(NAME, SPEC, request_id="create")
        with under_load([second, second, second]) as load:
            first.kill()
            eventually(load.progress())
        load.hold_against(b)
        assert b.get_study(NAME).owner_address == second.address


def test_a_client_with_several_addresses_survives_the_loss_of_any_server(
    two: tuple[ServerProcess, ServerProcess],
) -> None:
    first, second = two
    with Client(f"{first.address},{second.address}", timeout_s=PATIENCE_S) as client:
        client.create_study(NAME, SPEC, request_id="create")
        assert started(client, "r0").number == 0
        first.kill()
        assert started(client, "r1").number == 1
        assert client.get_study(NAME).owner_address == second.address


def test_a_search_continues_when_its_first_server_dies(
    two: tuple[ServerProcess, ServerProcess], tmp_path: Path
) -> None:
    first, second = two
    (tmp_path / "tiny.yaml").write_text(
        experiment(["sh", "-c", "sleep 0.3; echo score=${x}"], trials=12)
    )
    words = [
        "run",
        "tiny.yaml",
        "--server",
        f"{first.address},{second.address}",
        "--state-dir",
        "state",
    ]
    with (
        forked.tuner(words, folder=tmp_path, env=os.environ) as search,
        Client(second.address) as client,
    ):
        eventually(
            lambda: any(
                t.finished for s in client.list_studies() for t in client.list_trials(s.name)
            )
        )
        first.kill()
        error = search.communicate(timeout=PATIENCE_S)[1]
        assert search.returncode == 0, error
        [study] = client.list_studies()
        assert study.owner_address == second.address
        assert [t.state for t in client.list_trials(study.name)] == [TrialState.SUCCEEDED] * 12


def test_a_stopped_server_leaves_its_studies_to_the_other(
    two: tuple[ServerProcess, ServerProcess],
) -> None:
    first, second = two
    with a_client(first) as a, a_client(second) as b:
        a.create_study(NAME, SPEC, request_id="create")
        started(a, "r0")
        assert first.stop() == 143
        assert b.get_study(NAME).owner_address == ""
        assert started(b, "r1").number == 1


def test_an_owner_that_was_frozen_writes_nothing_after_it_wakes(
    two: tuple[ServerProcess, ServerProcess],
) -> None:
    first, second = two
    with a_client(first) as a, a_client(second) as b, ThreadPoolExecutor(3) as pool:
        a.create_study(NAME, SPEC, request_id="create")
        assert started(a, "r0").number == 0
        first.freeze()
        waiting = [pool.submit(started, a, f"frozen{i}") for i in range(2)]
        ended = pool.submit(
            a.complete, NAME, 0, Outcome(TrialState.FAILED, reason="old", failure_class="mine")
        )
        assert started(b, "r1").number == 1
        won = b.complete(NAME, 0, Outcome(TrialState.SUCCEEDED), measurements=[score(0, 0.75)])
        first.wake()
        assert sorted(w.result().number for w in waiting) == [2, 3], "led to the new owner"
        with pytest.raises(Exception, match="has ended as succeeded"):
            ended.result()
        assert b.get_trial(NAME, 0) == won
        study = a.get_study(NAME)
        assert (study.owner_address, study.owner_epoch) == (second.address, 2)


@pytest.mark.parametrize(
    "point",
    [f"store.{write}:9" for write in ("hand_out.before", "hand_out.after", "finish_trial.after")],
)
def test_a_killed_server_continues_after_a_restart(
    point: str, postgres_url: str, folder: Path
) -> None:
    with (
        a_process(postgres_url, f"unix:{folder}/s.sock", failpoint=point, revive=True) as server,
        a_client(server) as client,
    ):
        client.create_study(NAME, SPEC, request_id="create")
        with under_load([server] * 3) as load:
            eventually(lambda: server.deaths == [-9])
            eventually(load.progress())
        load.hold_against(client)


@pytest.mark.parametrize("outage_s", OUTAGES_S)
def test_an_outage_of_the_database_loses_and_duplicates_nothing(
    folder: Path, outage_s: float
) -> None:
    with a_postgres() as postgres:
        url = postgres.new_database()
        with a_process(url, f"unix:{folder}/s.sock") as server, a_client(server) as client:
            client.create_study(NAME, SPEC, request_id="create")
            with under_load([server] * 4) as load:
                postgres.stop()
                time.sleep(outage_s)  # the outage itself
                postgres.start()
                eventually(load.progress())
            load.hold_against(client)


def test_a_broken_connection_is_replaced(
    postgres: Postgres, postgres_url: str, folder: Path
) -> None:
    with a_process(postgres_url, f"unix:{folder}/s.sock") as server, a_client(server) as client:
        client.create_study(NAME, SPEC, request_id="create")
        with under_load([server] * 4) as load:
            for _ in range(3):
                cut_all(postgres_url)
                eventually(load.progress())
        load.hold_against(client)


def cut_all(url: str) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_a_process_frozen_within_a_transaction_does_not_block_others(postgres_url: str) -> None:
    store, other = PostgresStore(postgres_url), PostgresStore(postgres_url)
    try:
        store.insert_study(a_study())
        lease = store.take(DIGITS, uid="default-digits", address="here")
        store.add_trials(lease, [Addition(queued(0), "add")])
        with pytest.raises(
            Unavailable, match=r"was idle in a transaction|connection broke|gives no connection"
        ):
            write_frozen(store, lease, until=lambda: taken(other))
        assert other.measurements(DIGITS, None, after=0, limit=9) == []
        with pytest.raises(NotOwner):
            store.hand_out(lease, [running(0)])
    finally:
        store.close()
        other.close()


def write_frozen(store: PostgresStore, lease: Lease, *, until: Callable[[], bool]) -> None:
    with store._database.writing() as connection:
        store._insert_measurements(connection, lease, (0, [measured(0, 0.5)]))
        eventually(until)
        store._insert_measurements(connection, lease, (0, [measured(1, 0.5)]))


def taken(other: PostgresStore) -> bool:
    """Take the study as if the owner's heartbeat had stopped,
    so that only its open transaction can block this.
    """
    with other._database.writing(single=True) as connection:
        connection.exec_driver_sql("DELETE FROM owners")
    try:
        other.take(DIGITS, uid="default-digits", address="there")
    except Unavailable:
        return False
    return True


def test_after_a_restored_dump_exactly_one_of_two_owners_may_write(
    postgres: Postgres, postgres_url: str
) -> None:
    with closing(PostgresStore(postgres_url)) as store:
        store.insert_study(a_study())
        first = store.take(DIGITS, uid="default-digits", address="first")
        store.hand_out(first, [running(0)])
        store.release(first)
    dump = postgres.dump(postgres_url)
    with (
        closing(PostgresStore(postgres_url)) as second,
        closing(PostgresStore(postgres_url)) as third,
    ):
        before = second.take(DIGITS, uid="default-digits", address="second")
        second.hand_out(before, [running(1)])
        postgres.restore(postgres_url, dump)
        after = third.take(DIGITS, uid="default-digits", address="third")
        assert after.epoch == before.epoch
        third.hand_out(after, [running(1, request_id="after")])
        for write in (
            lambda: second.hand_out(before, [running(2)]),
            lambda: second.add_measurements(before, 1, [measured(0, 1.0)]),
            lambda: second.finish_trial(before, running(1), []),
        ):
            with pytest.raises(NotOwner):
                write()
        third.hand_out(after, [running(2, request_id="after")])
        found = third.trials(DIGITS, states=[], client_id="", after=0, limit=9)
        assert [trial.request_id for trial in found] == ["after", "after"]


HOUR_US = 3600 * 10**6


@pytest.mark.parametrize("hours", [1, -1])
def test_a_dead_owners_study_is_taken_over_with_any_clock_of_the_database(
    postgres_url: str, hours: int
) -> None:
    """The clock was set back an hour, so the last heartbeat is in the future."""
    dead = PostgresStore(postgres_url)
    dead.insert_study(a_study())
    dead.take(DIGITS, uid="default-digits", address="dead")
    die(dead)
    with closing(PostgresStore(postgres_url)) as store:
        with store._database.writing(single=True) as connection:
            connection.exec_driver_sql(
                f"UPDATE servers SET heartbeat_us = heartbeat_us + {hours * HOUR_US}"
            )
        with pytest.raises(Unavailable, match="may have died"):
            store.take(DIGITS, uid="default-digits", address="here")
        eventually(lambda: takes(store))
    dead.close()


def test_a_living_owner_keeps_its_study_with_any_clock_of_the_database(postgres_url: str) -> None:
    """The clock jumps ahead between any two heartbeats, so that each looks an hour old."""
    with (
        closing(PostgresStore(postgres_url)) as store,
        closing(PostgresStore(postgres_url)) as other,
    ):
        with store._database.writing() as connection:
            connection.exec_driver_sql(
                "CREATE FUNCTION jump() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN NEW.heartbeat_us := NEW.heartbeat_us - {HOUR_US}; RETURN NEW; END $$"
            )
            connection.exec_driver_sql(
                "CREATE TRIGGER jump BEFORE INSERT OR UPDATE ON servers FOR EACH ROW EXECUTE "
                "FUNCTION jump()"
            )
        store.insert_study(a_study())
        lease = store.take(DIGITS, uid="default-digits", address="here")
        deadline = time.monotonic() + 3 * SILENCE_S
        while time.monotonic() < deadline:
            with pytest.raises((NotOwner, Unavailable)):
                other.take(DIGITS, uid="default-digits", address="there")
            time.sleep(0.02)  # leaves the processor to the heartbeats
        with pytest.raises(NotOwner, match="is being written by another process at here"):
            other.take(DIGITS, uid="default-digits", address="there")
        store.hand_out(lease, [running(0)])


def die(store: PostgresStore) -> None:
    """Stop the heartbeat without releasing anything."""
    ownership = store._ownership
    assert isinstance(ownership, OwnedByHeartbeat)
    ownership._closing.set()
    assert ownership._thread is not None
    ownership._thread.join()


def takes(store: PostgresStore) -> bool:
    try:
        store.take(DIGITS, uid="default-digits", address="here")
    except Unavailable:
        return False
    return True


def test_a_server_reloads_its_studies_after_the_database_went_back_in_time(folder: Path) -> None:
    """As after a failover to a lagging standby, which has the owner's lease
    but not the last trials.
    """
    with a_postgres() as postgres:
        url = postgres.new_database()
        with (
            a_process(url, f"unix:{folder}/s.sock") as server,
            Client(server.address, timeout_s=PATIENCE_S) as client,
        ):
            client.create_study(NAME, SPEC, request_id="create")
            assert [started(client, f"r{n}").number for n in range(3)] == [0, 1, 2]
            postgres.stop()
            postgres.save()
            postgres.start()
            assert [started(client, f"r{n}").number for n in range(3, 6)] == [3, 4, 5]
            client.report(NAME, 3, [score(0, 0.5)])
            postgres.stop()
            postgres.put_back()
            postgres.start()
            assert started(client, "after").number == 3, "not beyond the trials that are lost"
            assert client.list_measurements(NAME, 3) == [], "nor with what another one reported"
            client.report(NAME, 3, [score(0, 0.25)])
            with pytest.raises(NotFound):
                client.report(NAME, 5, [score(0, 0.5)])
            assert [trial.number for trial in client.list_trials(NAME)] == [0, 1, 2, 3]
