"""The journal: when the running time of an experiment is stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from controller.core.model import Experiment, Revision
from controller.experiment_store import SqlExperimentStore, sqlite_database
from controller.journal import Journal
from tests.unit.builders import a_spec, an_experiment, at, attempt

EVERY_S = 5.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlExperimentStore]:
    database = sqlite_database(tmp_path / "controller.db")
    with closing(SqlExperimentStore(database, lambda _: a_spec())) as store:
        yield store


@pytest.fixture
def journal(store: SqlExperimentStore) -> Journal:
    """Return the journal of an experiment that has run for 100 s."""
    experiment = an_experiment(a_spec())
    store.create_experiment(experiment, Revision(1, experiment.spec, "", at(0)))
    journal = Journal(experiment, store, lambda _event: None)
    journal.spend(100, save_every_s=EVERY_S)
    return journal


def running_s(store: SqlExperimentStore, experiment: Experiment) -> float:
    stored = store.experiment(experiment.namespace, experiment.name)
    assert stored is not None
    return stored.running_s


def test_running_time_is_stored_with_the_next_change(
    store: SqlExperimentStore, journal: Journal
) -> None:
    journal.spend(3, save_every_s=EVERY_S)
    assert running_s(store, journal.experiment) == 100
    journal.attempt_created(attempt(1), now=at(3))
    assert running_s(store, journal.experiment) == 103
    journal.spend(3, save_every_s=EVERY_S)
    assert running_s(store, journal.experiment) == 103


def test_a_change_soon_after_does_not_store_it_again(
    store: SqlExperimentStore, journal: Journal
) -> None:
    journal.spend(1, save_every_s=EVERY_S)
    journal.attempt_created(attempt(1), now=at(1))
    assert running_s(store, journal.experiment) == 100


def test_running_time_without_changes_is_stored_at_intervals(
    store: SqlExperimentStore, journal: Journal
) -> None:
    for _ in range(3):
        journal.spend(2, save_every_s=EVERY_S)
    assert running_s(store, journal.experiment) == 106
