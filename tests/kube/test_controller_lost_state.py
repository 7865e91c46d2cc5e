"""A controller starts with an empty store, and resources say that their experiments have run."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

from controller.operator.resource import RECOVER
from tests.kube.operated import (
    NAMESPACE,
    SCORED,
    Installation,
    created_jobs,
    experiment,
    on_a_cluster,
)
from tests.kube.test_controller_without_folders import FOREVER, uids


async def lose_the_volume(installed: Installation) -> None:
    await installed.stop()
    shutil.rmtree(installed.state.root)
    installed.start()


def annotations(installed: Installation) -> dict[str, str]:
    about = installed.api.get("experiments", NAMESPACE, "tiny")["metadata"]
    return dict(about.get("annotations") or {})


def ask_to_recover(installed: Installation) -> None:
    asked = {RECOVER: "true"}
    installed.api.change(
        "experiments", NAMESPACE, "tiny", lambda each: each["metadata"].update(annotations=asked)
    )


async def lost_while_running(installed: Installation) -> dict[str, str]:
    """Lose the volume while two trials run, and return the uids of their Jobs."""
    installed.apply(experiment(parallelism=2))
    await installed.until(lambda: installed.status().get("running") == 2)
    before = uids(installed)
    await lose_the_volume(installed)
    await installed.until_state("lost")
    return before


@on_a_cluster(FOREVER)
async def test_an_experiment_whose_state_is_lost_waits_and_its_jobs_run_on(
    installed: Installation,
) -> None:
    before = await lost_while_running(installed)
    accepted = installed.condition("Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "StateLost")
    assert RECOVER in accepted["message"]
    assert (uids(installed), created_jobs(installed)) == (before, 2)
    assert installed.status()["revision"] == 1


@on_a_cluster(FOREVER)
async def test_a_lost_experiment_goes_on_with_its_jobs_when_that_is_asked(
    installed: Installation,
) -> None:
    before = await lost_while_running(installed)
    ask_to_recover(installed)
    await installed.until_state("running")
    await installed.until(lambda: installed.status().get("running") == 2)
    assert (uids(installed), created_jobs(installed)) == (before, 2)
    await installed.until(lambda: installed.condition("Accepted")["status"] == "True")
    await installed.until(lambda: RECOVER not in annotations(installed))


@on_a_cluster(FOREVER)
async def test_a_lost_experiment_can_be_deleted(installed: Installation) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    await lose_the_volume(installed)
    await installed.until_state("lost")
    installed.delete()
    await installed.until(lambda: installed.api.find("experiments", NAMESPACE, "tiny") is None)


@on_a_cluster(SCORED)
async def test_a_lost_experiment_that_had_ended_keeps_its_result_and_is_not_run_again(
    installed: Installation,
) -> None:
    installed.apply(experiment())
    await installed.until_state("succeeded")
    best = installed.status()["best"]
    await lose_the_volume(installed)
    await installed.until(lambda: installed.condition("Accepted").get("reason") == "StateLost")
    assert (installed.status()["state"], installed.status()["best"]) == ("succeeded", best)
    assert created_jobs(installed) == 3


@on_a_cluster(SCORED)
async def test_an_experiment_is_not_lost_any_more_once_its_store_has_it_again(
    installed: Installation,
) -> None:
    installed.apply(experiment())
    await installed.until_state("succeeded")
    await installed.stop()
    backup = installed.state.root.with_name("backup")
    installed.state.root.rename(backup)
    installed.start()
    await installed.until(lambda: installed.condition("Accepted").get("reason") == "StateLost")
    restore_rows(backup / "controller.db", installed.state.root / "controller.db")
    note = {"annotations": {"example.org/seen": "yes"}}
    installed.api.change(
        "experiments", NAMESPACE, "tiny", lambda each: each["metadata"].update(note)
    )
    await installed.until(lambda: installed.condition("Accepted")["status"] == "True")
    assert created_jobs(installed) == 3


def restore_rows(backup: Path, store: Path) -> None:
    """Put the experiments of a backup into a database that is in use."""
    with contextlib.closing(sqlite3.connect(store)) as database, database:
        database.execute("ATTACH ? AS backup", [str(backup)])
        for table in ("experiments", "revisions", "attempts"):
            database.execute(f"INSERT INTO {table} SELECT * FROM backup.{table}")
