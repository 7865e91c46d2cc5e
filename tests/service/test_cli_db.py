"""`tuner db` with SQLite and PostgreSQL stores."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from controller.cli.main import main
from suggest.server.admin import open_store
from suggest.storage import postgres, sqlite, upgrades
from suggest.storage.database import Database


@pytest.fixture(params=["sqlite", "postgres"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"sqlite:///{tmp_path}/studies.db"


def of_the_first_schema(storage: str) -> None:
    path = storage.removeprefix("sqlite:///")
    database: Database = postgres.PostgresDatabase(storage) if path == storage else sqlite.SqliteDatabase(Path(path))
    with closing(database), database.writing() as connection:
        upgrades.upgrade(connection, "0001")


def test_a_missing_store_is_not_created(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "check", "--storage", storage]) == 5
    assert main(["db", "upgrade", "--storage", storage]) == 5
    assert "there is no store yet" in capsys.readouterr().err


def test_a_new_store_has_the_newest_schema(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    open_store(storage).close()
    assert main(["db", "check", "--storage", storage]) == 0
    assert main(["db", "upgrade", "--storage", storage]) == 0
    newest = f"schema {upgrades.HEAD}, the newest"
    assert capsys.readouterr().out.splitlines() == [
        newest, "no rows; every row can be read", f"{newest}: nothing to do"
    ]  # fmt: skip


def test_an_older_store_is_upgraded_when_told(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    of_the_first_schema(storage)
    assert main(["db", "check", "--storage", storage]) == 7
    assert main(["db", "upgrade", "--storage", storage]) == 0
    assert main(["db", "check", "--storage", storage]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == [f"schema 0001; the newest is {upgrades.HEAD}", f"schema 0001 -> {upgrades.HEAD}"]
