"""The ledger of what namespaces have used: nothing is lost, and nothing is counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controller.core.model import Attempt, AttemptState, Uid
from controller.core.spending import Spent
from controller.experiment_store import Changes, Fence, SqlExperimentStore
from controller.usage_ledger import MonthUsage
from suggest.errors import NotOwner
from suggest.storage.database import Database
from tests.contract.test_controller_store import (  # noqa: F401  (fixtures)
    OTHER,
    connect,
    created,
    over,
    path,
    postgres_with_tables,
)

LEADER = Fence(1, "leader")
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
RUNS = Attempt(0, 1, AttemptState.RUNNING, start_time=NOON, gpus=2.0, price_per_hour=3.0)
HOUR = timedelta(hours=1)
Connect = Callable[[], Database]


@pytest.fixture
def store(connect: Connect) -> Iterator[SqlExperimentStore]:  # noqa: F811
    with closing(over(connect(), LEADER)) as store:
        yield store


def ended(after: timedelta = HOUR, attempt: Attempt = RUNS) -> Attempt:
    return replace(attempt, state=AttemptState.SUCCEEDED, end_time=NOON + after)


def save(store: SqlExperimentStore, uid: Uid, *attempts: Attempt) -> None:
    store.save(uid, Changes(attempts=attempts))


def used(store: SqlExperimentStore, after: timedelta = 5 * HOUR) -> dict[str, Spent]:
    return used_at(store, NOON + after)


def used_at(store: SqlExperimentStore, now: datetime) -> dict[str, Spent]:
    return {namespace: month.used for namespace, month in store.usage_in_month(now).items()}


def test_an_attempt_is_counted_while_it_runs_and_after_its_end(store: SqlExperimentStore) -> None:
    experiment = created(store)
    save(store, experiment.uid, RUNS)
    assert used(store, 2 * HOUR) == {experiment.namespace: Spent(4, 6)}
    save(store, experiment.uid, ended())
    assert used(store) == {experiment.namespace: Spent(2, 3)}


def test_an_end_that_is_stored_again_is_counted_once(store: SqlExperimentStore) -> None:
    experiment = created(store)
    for _ in range(2):
        save(store, experiment.uid, ended())
    save(store, experiment.uid, replace(ended(), set_aside=True))
    assert used(store) == {experiment.namespace: Spent(2, 3)}


def test_each_attempt_of_each_experiment_is_counted(store: SqlExperimentStore) -> None:
    one, two = created(store), created(store, name="cifar", uid=OTHER)
    save(store, one.uid, ended(), ended(attempt=replace(RUNS, number=2)))
    save(store, two.uid, ended(), replace(RUNS, trial=1))
    assert used(store, HOUR) == {one.namespace: Spent(8, 12)}


def test_a_deleted_experiment_has_used_what_it_has_used(store: SqlExperimentStore) -> None:
    experiment = created(store)
    save(store, experiment.uid, ended(), replace(RUNS, trial=1))
    # The clock of the attempts, whatever this machine's says.
    store.now = lambda: NOON + 3 * HOUR
    store.delete_experiment(experiment.uid)
    assert used(store) == {experiment.namespace: Spent(8, 12)}
    again = created(store, uid="yyyyyccccccccccc")
    save(store, again.uid, ended())
    assert used(store) == {experiment.namespace: Spent(10, 15)}


def test_a_month_begins_with_what_runs(store: SqlExperimentStore) -> None:
    experiment = created(store)
    eve = datetime(2026, 11, 30, 23, tzinfo=UTC)
    runs = replace(RUNS, start_time=eve)
    save(store, experiment.uid, runs)
    assert used_at(store, eve + HOUR) == {experiment.namespace: Spent(0, 0)}
    assert used_at(store, eve + 2 * HOUR) == {experiment.namespace: Spent(2, 3)}
    save(store, experiment.uid, replace(ended(attempt=runs), end_time=eve + 4 * HOUR))
    assert used_at(store, eve) == {experiment.namespace: Spent(2, 3)}
    assert used_at(store, eve + 4 * HOUR) == {experiment.namespace: Spent(6, 9)}


def test_what_an_attempt_used_before_it_waits_again_stays_in_its_month(
    store: SqlExperimentStore,
) -> None:
    experiment = created(store)
    eve = datetime(2026, 11, 30, 22, tzinfo=UTC)
    runs = replace(RUNS, start_time=eve)
    waits = replace(runs, state=AttemptState.CREATED, start_time=None, earlier_s=3600.0)
    again = replace(runs, start_time=eve + 4 * HOUR, earlier_s=3600.0)
    end = replace(ended(attempt=again), end_time=eve + 5 * HOUR)
    save(store, experiment.uid, runs)
    found = []
    for attempt in (waits, waits, again, end):
        save(store, experiment.uid, attempt)
        months = [used_at(store, eve + HOUR), used_at(store, eve + 5 * HOUR)]
        found.append([month.get(experiment.namespace, Spent()).gpu_hours for month in months])
    assert found == [[2, 0], [2, 0], [2, 2], [2, 2]]


def test_what_a_write_that_fails_has_counted_is_not_counted(
    store: SqlExperimentStore,
    connect: Connect,  # noqa: F811
) -> None:
    experiment = created(store)
    save(store, experiment.uid, RUNS)
    with closing(over(connect(), Fence(2, "next"))) as later:
        with pytest.raises(NotOwner):
            save(store, experiment.uid, ended())
        save(later, experiment.uid, ended(2 * HOUR))
        assert used(later) == {experiment.namespace: Spent(4, 6)}


def test_the_highest_limits_that_stopped_attempts_are_kept_for_their_month(
    store: SqlExperimentStore,
    connect: Connect,  # noqa: F811
) -> None:
    experiment = created(store)
    save(store, experiment.uid, ended())
    for limits in (Spent(2, 0), Spent(1, 3)):
        store.note_limits_that_stop(experiment.namespace, limits, NOON)
    store.note_limits_that_stop("other", Spent(1, 0), NOON)
    with closing(over(connect(), Fence(2, "next"))) as later:
        assert later.usage_in_month(NOON + HOUR) == {
            experiment.namespace: MonthUsage(Spent(2, 3), stopped=Spent(2, 3)),
            "other": MonthUsage(Spent(), stopped=Spent(1, 0)),
        }
        assert later.usage_in_month(NOON + 30 * 24 * HOUR) == {}
        with pytest.raises(NotOwner):
            store.note_limits_that_stop(experiment.namespace, Spent(9, 9), NOON)


def test_attempts_that_request_nothing_counted_are_left_out(store: SqlExperimentStore) -> None:
    experiment = created(store)
    save(store, experiment.uid, ended(attempt=replace(RUNS, gpus=0.0, price_per_hour=0.0)))
    assert used(store) == {}


def test_searches_of_a_persons_machine_pay_nothing_for_it(connect: Connect) -> None:  # noqa: F811
    with closing(over(connect())) as store:
        experiment = created(store)
        save(store, experiment.uid, ended())
        assert used(store) == {}
