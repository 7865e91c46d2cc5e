"""Databases that the code of 0.1.0 wrote are upgraded with everything in them.

tests/fixtures/stores-of-0.1.0 has the dumps of both databases after a search of three trials.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from controller.experiment_tables import SCHEMA
from suggest.storage import study_tables
from tests.e2e.cli import Cli, cli_in

DUMPS = Path(__file__).parents[1] / "fixtures" / "stores-of-0.1.0"
STUDIES = f"studies.db: schema {study_tables.SCHEMA.newest}, the newest"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with cli_in(tmp_path) as cli:
        state = cli.folder / "state"
        state.mkdir()
        for dump in DUMPS.iterdir():
            with closing(sqlite3.connect(state / f"{dump.stem}.db")) as connection:
                connection.executescript(dump.read_text())
        yield cli


def test_an_upgrade_names_each_database(cli: Cli) -> None:
    older = ["controller.db: schema 0001; the newest is " + SCHEMA.newest]
    for _ in range(2):  # the check changes nothing
        code, out, err = cli.tuner("db", "check")
        assert (code, out.splitlines()) == (7, [STUDIES, *older])
        assert err == (
            "tuner: controller.db has an older schema; upgrade it with: tuner db upgrade\n"
        )
    code, out, err = cli.tuner("db", "upgrade")
    upgraded = f"controller.db: schema 0001 -> {SCHEMA.newest}"
    assert (code, out.splitlines(), err) == (0, [f"{STUDIES}: nothing to do", upgraded], "")
    code, out, err = cli.tuner("db", "check")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        STUDIES,
        "1 study, 3 trials, 3 measurements; every row can be read",
        f"controller.db: schema {SCHEMA.newest}, the newest",
        "1 experiment, 3 attempts, 10 events; every row can be read",
    ]


def test_a_command_upgrades_them_and_finds_the_trials(cli: Cli) -> None:
    trials = cli.json("get", "trials", "old", "-o", "json")
    found = [(each["state"], each["value"], each["parameters"]["n"]) for each in trials]
    assert found == [("succeeded", 0.25, 2), ("succeeded", 0.65, 6), ("succeeded", 0.85, 8)]
    assert "all 3 trials are done" in cli.tuner("describe", "old")[1]
    assert cli.tuner("db", "check")[0] == 0
