"""`tuner db` with SQLite and PostgreSQL stores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controller.cli.main import main
from suggest.server import admin
from suggest.storage import sql_store, study_tables
from suggest.storage.study_tables import SCHEMA


@pytest.fixture(params=["sqlite", "postgres"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"sqlite:///{tmp_path}/studies.db"


def test_a_missing_store_is_not_created(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "check", "--storage", storage]) == 5
    assert main(["db", "upgrade", "--storage", storage]) == 5
    assert "there is no store yet" in capsys.readouterr().err


def test_a_new_store_has_the_newest_schema(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.open_store(storage).close()
    assert main(["db", "check", "--storage", storage]) == 0
    assert main(["db", "upgrade", "--storage", storage]) == 0
    newest = f"schema {SCHEMA.newest}, the newest"
    assert capsys.readouterr().out.splitlines() == [
        newest,
        "no rows; every row can be read",
        f"{newest}: nothing to do",
    ]


def test_an_older_store_is_upgraded_when_told(
    storage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin.open_store(storage).close()
    (tmp_path / "9998.py").write_text(
        "revision, down_revision = '9998', '0001'\ndef upgrade(): pass\n"
    )
    newer = replace(
        SCHEMA, newest="9998", older=("0001",), migrations=f"{SCHEMA.migrations}\n{tmp_path}"
    )
    for module in (study_tables, sql_store):
        monkeypatch.setattr(module, "SCHEMA", newer)
    assert main(["db", "check", "--storage", storage]) == 7
    assert main(["db", "upgrade", "--storage", storage]) == 0
    assert main(["db", "check", "--storage", storage]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["schema 0001; the newest is 9998", "schema 0001 -> 9998"]
