"""The controller's store: its guarantees for the loop,
and its messages when its file has a problem.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from controller.core.attempt import ObjectRecord
from controller.core.model import (
    FINAL,
    Attempt,
    AttemptState,
    Event,
    Experiment,
    ExperimentSpec,
    ExperimentState,
    FailureClass,
    ReasonCode,
    Revision,
    StopCause,
)
from controller.experiment_store import (
    NO_FENCE,
    Changes,
    ControllerRequests,
    Fence,
    NewerRevision,
    SqlExperimentStore,
    StaleEpoch,
    sqlite_database,
)
from controller.operator.postgres import BoundedPostgres
from suggest.errors import (
    AlreadyExists,
    FailedPrecondition,
    NotOwner,
    StoreBroken,
    Unavailable,
)
from suggest.storage import sqlite
from suggest.storage.database import Database
from suggest.storage.postgres import PostgresDatabase
from tests.postgres import Postgres
from tests.unit.builders import RUNNING, SUCCEEDED, a_spec, an_experiment, at, attempt

OTHER = "zzzzzbbbbbbbbbbb"
TOO_MANY_FAILURES = ReasonCode.TOO_MANY_FAILURES


def over(database: Database, fence: Fence = NO_FENCE) -> SqlExperimentStore:
    return SqlExperimentStore(
        database, lambda document: a_spec(name=str(document["name"])), fence=fence
    )


def opened(path: Path) -> SqlExperimentStore:
    return over(sqlite_database(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "controller.db"


@pytest.fixture(scope="module")
def postgres_with_tables(postgres: Postgres) -> str:
    url = postgres.new_database()
    over(PostgresDatabase(url)).close()
    return url


Connect = Callable[[], Database]


@pytest.fixture(params=["sqlite", "postgres"])
def connect(request: pytest.FixtureRequest, path: Path) -> Connect:
    """Return what connects to a store's database, which is empty."""
    if request.param == "sqlite":
        return lambda: sqlite_database(path)
    url: str = request.getfixturevalue("postgres_with_tables")
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "DELETE FROM experiments; DELETE FROM controller_leader; DELETE FROM usage"
        )
    return lambda: PostgresDatabase(url)


@pytest.fixture
def store(connect: Connect) -> Iterator[SqlExperimentStore]:
    with closing(over(connect())) as store:
        yield store


def created(
    store: SqlExperimentStore, *, name: str = "digits", uid: str = "x7k2qaaaaaaaaaaa"
) -> Experiment:
    experiment = an_experiment(a_spec(name=name), uid=uid)
    store.create_experiment(experiment, Revision(1, experiment.spec, "kind: Experiment\n", at(0)))
    return experiment


def test_an_experiment_reads_back_as_it_was_written(store: SqlExperimentStore) -> None:
    experiment = replace(
        created(store),
        state=ExperimentState.PAUSED,
        reason="trial 0 cannot run: no such file: trian.py",
        reason_code=ReasonCode.CANNOT_RUN,
        running_s=1.5,
        directory="/elsewhere",
        server="unix:/run/x",
        end_time=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    )
    store.save(experiment.uid, Changes(experiment=experiment))
    assert store.experiment("default", "digits") == experiment
    assert store.experiments() == [experiment]
    assert store.revisions(experiment.uid) == [
        Revision(1, experiment.spec, "kind: Experiment\n", at(0))
    ]
    assert store.experiment("default", "nobody") is None


def test_records_of_objects_are_found_until_their_attempts_have_ended(
    store: SqlExperimentStore,
) -> None:
    uid = created(store).uid
    stopped = attempt(1, AttemptState.STOPPING, trial=1, cause=StopCause.PRUNED)
    ended = replace(attempt(1, trial=2), end_time=at(1))
    store.save(uid, Changes(attempts=[attempt(1), stopped, ended]))
    records = store.object_records(uid)
    for trial in (0, 1, 2):
        records.save((trial, 1), ObjectRecord(f"u{trial}"))
    records.save((0, 1), ObjectRecord("u0", timed_out=True))
    assert records.load() == {
        (0, 1): ObjectRecord("u0", timed_out=True),
        (1, 1): ObjectRecord("u1", stopped=True),
    }
    records.delete((0, 1))
    assert store.object_records(uid).load().keys() == {(1, 1)}


def test_records_of_objects_go_with_their_experiment(store: SqlExperimentStore) -> None:
    experiment = created(store)
    store.save(experiment.uid, Changes(attempts=[attempt(1)]))
    store.object_records(experiment.uid).save((0, 1), ObjectRecord("u0"))
    store.delete_experiment(experiment.uid)
    created(store)
    store.save(experiment.uid, Changes(attempts=[attempt(1)]))
    assert store.object_records(experiment.uid).load() == {}


@pytest.mark.parametrize(
    "written",
    [
        Attempt(0, 1),
        attempt(
            2, AttemptState.STOPPING, trial=7, cause=StopCause.INTERRUPTED, reason="interrupted"
        ),
        Attempt(
            7,
            3,
            AttemptState.FAILED,
            StopCause.PRUNED,
            at(0.25),
            at(9),
            exit_code=137,
            signal=9,
            value=-1e-300,
            step=2**53,
            failure_class=FailureClass.OUT_OF_MEMORY,
            reason="killed by the system: out of memory · 内存",
            node="gpu-3",
        ),
    ],
)
def test_an_attempt_reads_back_as_it_was_written(
    store: SqlExperimentStore, written: Attempt
) -> None:
    uid = created(store).uid
    store.save(uid, Changes(attempts=[written]))
    assert store.attempts(uid) == [written]


def test_saving_an_attempt_again_replaces_it(store: SqlExperimentStore) -> None:
    uid = created(store).uid
    store.save(uid, Changes(attempts=[attempt(1), attempt(1, trial=1)]))
    store.save(uid, Changes(attempts=[attempt(1, SUCCEEDED, value=0.5)]))
    assert store.attempts(uid) == [attempt(1, SUCCEEDED, value=0.5), attempt(1, trial=1)]
    assert store.attempts(uid, trial=1) == [attempt(1, trial=1)]


def test_events_are_kept_in_order(store: SqlExperimentStore) -> None:
    uid = created(store).uid
    events = [
        Event(at(5), "created", "a", 3, 1),
        Event(at(1), "paused", "b"),
        Event(at(9), "running", "c", 3, 2),
    ]
    store.save(uid, Changes(events=events[:2]))
    store.save(uid, Changes(events=events[2:]))
    assert store.events(uid) == events
    assert store.events(uid, trial=3) == [events[0], events[2]]
    assert store.latest_events(uid, 2) == events[1:]


def test_attempts_are_found_by_their_trials_and_by_what_may_change(
    store: SqlExperimentStore,
) -> None:
    uid = created(store).uid
    named, again, over, final = (
        Attempt(trial, 1, SUCCEEDED, end_time=at(9)) for trial in (0, 1, 2, FINAL)
    )
    again, running = replace(again, set_aside=True), Attempt(3, 1, RUNNING)
    store.save(uid, Changes(attempts=[named, again, over, running, final]))
    assert repr(store.attempts_between(uid, 1, 2)) == repr([again, over]), (
        "true and false are no numbers"
    )
    assert store.attempts_that_change(uid, [0]) == [final, named, again, running]


def test_the_changes_of_a_turn_are_stored_together_or_not_at_all(store: SqlExperimentStore) -> None:
    experiment = created(store)
    # refused by the database, last of all
    broken = Event(at(1), "ended", None)  # type: ignore[arg-type]
    changes = Changes(replace(experiment, reason="new"), [attempt(1, RUNNING)], [broken])
    with pytest.raises(sa.exc.IntegrityError):
        store.save(experiment.uid, changes)
    assert store.experiments() == [experiment]
    assert (store.attempts(experiment.uid), store.events(experiment.uid)) == ([], [])


def test_saved_changes_survive_their_process(store: SqlExperimentStore, connect: Connect) -> None:
    uid = created(store).uid
    store.save(uid, Changes(attempts=[attempt(1, RUNNING)]))
    with closing(over(connect())) as other:
        assert other.attempts(uid) == [attempt(1, RUNNING)]


def test_rows_of_several_experiments_are_read_at_once(store: SqlExperimentStore) -> None:
    one, two = created(store), created(store, name="cifar", uid=OTHER)
    keys = [("default", "digits"), ("default", "cifar"), ("other", "cifar"), ("default", "no")]
    rows = store.rows_of(keys)
    assert {key: row["uid"] for key, row in rows.items()} == {keys[0]: one.uid, keys[1]: two.uid}
    assert [json.loads(row["document"])["name"] for row in rows.values()] == ["digits", "cifar"]


def test_two_experiments_are_independent(store: SqlExperimentStore) -> None:
    one, two = created(store), created(store, name="cifar", uid=OTHER)
    store.save(
        one.uid,
        Changes(attempts=[attempt(1, RUNNING)], events=[Event(at(1), "created", "one", 0, 1)]),
    )
    store.save(
        two.uid, Changes(attempts=[attempt(1)], events=[Event(at(2), "created", "two", 0, 1)])
    )
    store.request_stop(two.uid)
    assert (store.attempts(one.uid), store.attempts(two.uid)) == (
        [attempt(1, RUNNING)],
        [attempt(1)],
    )
    assert [e.message for e in store.events(one.uid)] == ["one"]
    assert (store.requests(one.uid).stop, store.requests(two.uid).stop) == (False, True)


def test_a_name_is_taken_once_in_its_namespace(store: SqlExperimentStore) -> None:
    first = created(store)
    with pytest.raises(AlreadyExists, match="there is an experiment digits in default"):
        created(store, uid=OTHER)
    assert store.experiments() == [first]
    assert store.revisions(OTHER) == []


def test_experiments_of_a_name_are_found_without_reading_the_others(path: Path) -> None:
    read: list[str] = []

    def load(document: Mapping[str, object]) -> ExperimentSpec:
        read.append(str(document["name"]))
        return a_spec(name=read[-1])

    with closing(SqlExperimentStore(sqlite_database(path), load)) as store:
        experiment = created(store)
        created(store, name="cifar", uid=OTHER)
        assert (store.named("digits"), store.named("absent")) == ([experiment], [])
    assert read == ["digits"]


def test_deleting_takes_all_that_belongs_to_it_and_nothing_else(connect: Connect) -> None:
    with closing(over(connect())) as store, closing(connect()) as database:
        one, two = created(store), created(store, name="cifar", uid=OTHER)
        for experiment in (one, two):
            store.save(
                experiment.uid,
                Changes(attempts=[attempt(1)], events=[Event(at(1), "created", "x", 0, 1)]),
            )
        store.delete_experiment(one.uid)
        assert store.experiments() == [two]
        with database.reading() as raw:
            for table in ("revisions", "attempts", "events"):
                found = raw.exec_driver_sql(f"SELECT DISTINCT uid FROM {table}").all()
                assert found == [(two.uid,)]
        created(store, uid="yyyyyccccccccccc")  # the name is free again


def test_a_revision_and_the_experiment_under_it_are_one_write(store: SqlExperimentStore) -> None:
    experiment = created(store)
    revision = Revision(2, a_spec(), "parallelism: 2\n", at(5))
    revised = store.add_revision(
        experiment, revision, Event(at(5), "revised", "parallelism: 1 -> 2")
    )
    assert store.experiments() == [revised]
    assert [r.number for r in store.revisions(experiment.uid)] == [1, 2]
    with pytest.raises(
        FailedPrecondition, match="has just been changed by another command; try again"
    ):
        store.add_revision(experiment, revision, Event(at(6), "revised", "again"))
    assert [e.message for e in store.events(experiment.uid)] == ["parallelism: 1 -> 2"]


def test_a_stop_that_another_process_asks_for_is_not_overwritten(
    store: SqlExperimentStore, connect: Connect
) -> None:
    experiment = created(store)
    with closing(over(connect())) as other:
        other.request_stop(experiment.uid)
    store.save(experiment.uid, Changes(experiment=replace(experiment, reason="busy")))
    assert store.requests(experiment.uid).stop
    store.request_stop(experiment.uid, wanted=False)
    assert not store.requests(experiment.uid).stop


def test_a_revision_that_another_process_stores_is_not_overwritten(
    store: SqlExperimentStore, connect: Connect
) -> None:
    experiment = created(store)
    with closing(over(connect())) as other:
        other.add_revision(
            experiment, Revision(2, a_spec(), "", at(5)), Event(at(5), "revised", "again")
        )
    store.save(experiment.uid, Changes(experiment=replace(experiment, running_s=7.0)))
    assert store.requests(experiment.uid) == ControllerRequests(stop=False, revision=2)
    stored = store.experiment(experiment.namespace, experiment.name)
    assert stored is not None
    assert (stored.revision, stored.running_s) == (2, 7.0)


def test_an_experiment_ends_under_its_newest_revision_only(
    store: SqlExperimentStore, connect: Connect
) -> None:
    experiment = created(store)
    with closing(over(connect())) as other:
        revised = other.add_revision(
            experiment, Revision(2, a_spec(), "", at(5)), Event(at(5), "revised", "again")
        )
    ended = replace(experiment, state=ExperimentState.SUCCEEDED)
    with pytest.raises(NewerRevision, match="revision 2 of digits is not in effect yet"):
        store.save(
            experiment.uid, Changes(experiment=ended, events=[Event(at(6), "succeeded", "")])
        )
    assert store.experiments() == [revised]
    assert [event.kind for event in store.events(experiment.uid)] == ["revised"]
    store.save(
        experiment.uid, Changes(experiment=replace(revised, state=ExperimentState.SUCCEEDED))
    )


def test_what_was_read_before_the_end_is_not_revised_after_it(store: SqlExperimentStore) -> None:
    experiment = created(store)
    ended = replace(experiment, state=ExperimentState.SUCCEEDED)
    store.save(experiment.uid, Changes(experiment=ended))
    again = Revision(2, a_spec(), "", at(5)), Event(at(5), "revised", "again")
    with pytest.raises(FailedPrecondition, match="try again"):
        store.add_revision(experiment, *again)
    assert [revision.number for revision in store.revisions(experiment.uid)] == [1]
    assert store.add_revision(ended, *again).revision == 2  # as `tuner extend` does


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "what? #1 100%" / "controller.db"
    with closing(opened(path)) as store:
        created(store)
    assert path.is_file()


def test_two_first_starts_at_once_both_succeed(tmp_path: Path) -> None:
    problems: list[Exception] = []
    here = threading.Barrier(6)

    def start(path: Path) -> None:
        here.wait()
        try:
            opened(path).close()
        except Exception as error:  # of a thread: kept for the assertion
            problems.append(error)

    for number in range(25):  # one round shows a lost race about one time in twelve
        threads = [
            threading.Thread(target=start, args=(tmp_path / str(number) / "controller.db",))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert problems == []


# Trouble


def lock(path: Path) -> Callable[[], None]:
    holder = sqlite3.connect(path)
    holder.execute("BEGIN EXCLUSIVE")
    return holder.close


def test_a_locked_database_is_unavailable_with_the_cure(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    with closing(opened(path)) as store:
        experiment = created(store)
        release = lock(path)
        with pytest.raises(
            Unavailable, match=r"controller\.db: another process has kept it locked"
        ):
            store.save(experiment.uid, Changes(attempts=[attempt(1)]))
        release()
        store.save(experiment.uid, Changes(attempts=[attempt(1)]))
        assert store.attempts(experiment.uid) == [attempt(1)]


def test_a_copy_that_cannot_be_written_does_not_make_the_controllers_database_away(
    postgres_url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    database = BoundedPostgres(postgres_url)
    with closing(over(database)) as store, closing(opened(path)) as copy:
        experiment = created(store)
        release = lock(path)
        with pytest.raises(Unavailable, match=r"controller\.db: another process"):
            store.copy_experiment(experiment.uid, copy)
        assert database.trouble == ""
        release()
        store.copy_experiment(experiment.uid, copy)
        assert copy.experiments() == [experiment]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_folder_is_reported(path: Path) -> None:
    with closing(opened(path)) as store:
        created(store)
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        with pytest.raises(Unavailable, match=r"give this user write permission|folder exists"):
            opened(path)
    finally:
        path.parent.chmod(0o700)


def test_a_file_in_place_of_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(Unavailable, match=r"state/controller\.db: "):
        opened(tmp_path / "state" / "controller.db")


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (
            "CREATE TABLE experiments (uid TEXT)",
            "'experiments' that is not tuner's.* with --state-dir",
        ),
        (
            "CREATE TABLE controller_schema_version (version_num TEXT)",
            "the version of its schema is missing; restore",
        ),
    ],
)
def test_a_database_whose_tables_are_not_those_of_a_store_is_left_alone(
    path: Path, statements: str, message: str
) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(statements)
    with pytest.raises(StoreBroken, match=message):
        opened(path)
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT sql FROM sqlite_master").fetchall() == [(statements,)]


def test_the_database_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with closing(opened(tmp_path / "controller.db")) as store:
        created(store)
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}, modes


def test_the_final_stage_keeps_its_number_in_the_database(connect: Connect) -> None:
    with closing(over(connect())) as store, closing(connect()) as database:
        experiment = created(store)
        event = Event(at(1), "created", "its final stage begins", FINAL, 1)
        begun = attempt(1, RUNNING, trial=FINAL)
        store.save(experiment.uid, Changes(attempts=[begun], events=[event]))
        with database.writing() as raw:
            for table in ("attempts", "events"):
                assert raw.exec_driver_sql(f"SELECT trial FROM {table}").all() == [(-1,)]
            # a row as a tuner of before has written it
            raw.exec_driver_sql("UPDATE attempts SET number = 2")
        uid = experiment.uid
        assert [(each.trial, each.number) for each in store.attempts(uid)] == [(FINAL, 2)]
        assert store.events(uid, FINAL) == store.events(uid) == [event]


# Two controllers


def test_a_controller_with_an_older_epoch_can_write_nothing(connect: Connect) -> None:
    with closing(over(connect(), Fence(1, "first"))) as frozen:
        experiment = created(frozen)
        with closing(over(connect(), Fence(2, "second"))) as leader:
            writes: list[Callable[[], object]] = [
                lambda: created(frozen, name="cifar", uid=OTHER),
                lambda: frozen.save(experiment.uid, Changes(attempts=[attempt(1)])),
                lambda: frozen.request_stop(experiment.uid),
                lambda: frozen.delete_experiment(experiment.uid),
                lambda: frozen.add_revision(
                    experiment, Revision(2, a_spec(), "", at(5)), Event(at(5), "revised", "")
                ),
            ]
            for write in writes:
                with pytest.raises(StaleEpoch, match="second with epoch 2 has taken over"):
                    write()
            leader.save(experiment.uid, Changes(attempts=[attempt(2)]))
            assert leader.attempts(experiment.uid) == [attempt(2)]
            assert leader.experiments() == [experiment]
            assert len(leader.revisions(experiment.uid)) == 1


@pytest.mark.parametrize("late", [Fence(1, "first"), Fence(2, "another with the same epoch")])
def test_an_older_controller_cannot_open_the_store_of_its_successor(
    connect: Connect, late: Fence
) -> None:
    with closing(over(connect(), Fence(2, "second"))):
        with pytest.raises(StaleEpoch) as refused:
            over(connect(), late)
        assert refused.value.epoch == 2


def test_a_command_does_not_write_to_the_store_of_a_controller_in_the_cluster(
    connect: Connect,
) -> None:
    with closing(over(connect(), Fence(1, "first"))) as leader, closing(over(connect())) as command:
        experiment = created(leader)
        with pytest.raises(NotOwner, match="change their resources with kubectl"):
            command.request_stop(experiment.uid)
        assert command.experiments() == [experiment]


def test_a_leader_goes_on_after_the_database_was_set_back(connect: Connect) -> None:
    with closing(over(connect(), Fence(2, "second"))) as leader, closing(connect()) as database:
        experiment = created(leader)
        with database.writing() as raw:
            raw.exec_driver_sql("UPDATE controller_leader SET epoch = 1, holder = 'first'")
        leader.save(experiment.uid, Changes(attempts=[attempt(1)]))
        with database.reading() as raw:
            stored = raw.exec_driver_sql("SELECT epoch, holder FROM controller_leader").all()
        assert stored == [(2, "second")]


def test_a_text_may_have_a_zero_byte(store: SqlExperimentStore) -> None:
    uid = created(store).uid
    store.save(uid, Changes(events=[Event(at(1), "failed", "\0 segmentation fault")]))
    assert [event.message for event in store.events(uid)] == ["\ufffd segmentation fault"]


def test_the_index_of_attempts_that_run_has_no_others(connect: Connect) -> None:
    over(connect()).close()
    database = connect()
    with closing(database), database.reading() as connection:
        (index,) = sa.inspect(connection).get_indexes("attempts")
        limits = index["dialect_options"]
    assert "end_time IS NULL" in str(limits[f"{connection.dialect.name}_where"])


# What a database of before budgets of GPU-hours and money lacks.
ADDED = {
    "attempts": ("gpus", "price_per_hour", "earlier_s"),
    "experiments": ("gpu_hours", "cost", "ended_by"),
}


def test_a_database_of_before_gets_the_row_of_its_controller(path: Path) -> None:
    opened(path).close()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("DROP TABLE controller_leader")
        raw.execute("DROP TABLE attempt_objects")
        raw.execute("DROP TABLE usage")
        raw.execute("DROP INDEX attempts_unended")
        for table, columns in ADDED.items():
            for column in columns:
                raw.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        raw.execute("UPDATE controller_schema_version SET version_num = '0001'")
        raw.commit()
    with closing(over(sqlite_database(path), Fence(1, "first"))) as store:
        created(store)


def test_a_search_of_the_first_release_goes_on_after_another_process_has_upgraded_its_store(
    path: Path,
) -> None:
    with closing(opened(path)) as store, closing(sqlite3.connect(path)) as raw:
        uid = created(store).uid
        raw.execute(
            "INSERT INTO attempts (uid, trial, number, state, reason, node, image, rerun, "
            "reviewed, log_gap, value_doubt) VALUES (?, 0, 1, 'failed', '', '', '', 1, 0, '', '')",
            (uid,),
        )
        raw.commit()
        assert [each.set_aside for each in store.attempts(uid)] == [True]
