"""Opening a database creates its tables, upgrades them or refuses them,
in SQLite and PostgreSQL alike.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    Table,
    Text,
    delete,
    insert,
    inspect,
    select,
    update,
)

from controller import experiment_tables
from suggest.errors import StoreBroken, UnknownSchema
from suggest.storage import study_tables
from suggest.storage.database import Database
from suggest.storage.postgres import PostgresDatabase
from suggest.storage.schema import Schema, prepare, version, version_table
from suggest.storage.sqlite import SqliteDatabase

Open: TypeAlias = Callable[[], Database]

REVISION = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = {revision!r}, {before!r}

def upgrade():
    {upgrade}
"""


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with closing(another(request, tmp_path)()) as database:
        yield database


def another(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        return lambda: PostgresDatabase(url)
    return lambda: SqliteDatabase(tmp_path / "books.db")


def books(
    folder: Path,
    *,
    newest: str,
    upgrade: str = 'op.add_column("books", sa.Column("pages", sa.Integer))',
) -> Schema:
    """The schema of a library: in version 0002 books have pages."""
    folder.mkdir(exist_ok=True)
    (folder / "one.py").write_text(REVISION.format(revision="0001", before=None, upgrade="pass"))
    (folder / "two.py").write_text(REVISION.format(revision="0002", before="0001", upgrade=upgrade))
    metadata = MetaData()
    pages = [Column("pages", Integer)] if newest == "0002" else []
    Table(
        "books",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("title", Text, nullable=False),
        *pages,
    )
    return Schema(
        metadata,
        version_table("library", metadata),
        newest,
        ("0001",) if newest == "0002" else (),
        str(folder),
        "--library",
    )


def columns(database: Database) -> list[tuple[str, str, bool]]:
    with database.reading() as connection:
        found = inspect(connection).get_columns("books")
        return [(column["name"], str(column["type"]), bool(column["nullable"])) for column in found]


def test_a_new_database_has_the_newest_version(opened: Database, tmp_path: Path) -> None:
    schema = books(tmp_path / "migrations", newest="0002")
    assert version(opened, schema) is None
    prepare(opened, schema)
    assert version(opened, schema) == "0002"


def test_an_older_database_is_upgraded_with_its_contents(opened: Database, tmp_path: Path) -> None:
    first, second = (books(tmp_path / "migrations", newest=newest) for newest in ("0001", "0002"))
    prepare(opened, first)
    with opened.writing() as connection:
        connection.execute(insert(first.metadata.tables["books"]).values(id=1, title="Middlemarch"))
    assert version(opened, second) == "0001"
    prepare(opened, second)
    assert version(opened, second) == "0002"
    with opened.reading() as connection:
        assert connection.execute(select(second.metadata.tables["books"])).all() == [
            (1, "Middlemarch", None)
        ]
    with closing(SqliteDatabase(tmp_path / "new.db")) as new:
        prepare(new, second)
        assert columns(opened) == columns(new)


def test_an_upgrade_that_fails_changes_nothing(opened: Database, tmp_path: Path) -> None:
    prepare(opened, books(tmp_path / "migrations", newest="0001"))
    before = columns(opened)
    failing = 'op.add_column("books", sa.Column("pages", sa.Integer)); raise OSError("killed")'
    schema = books(tmp_path / "migrations", newest="0002", upgrade=failing)
    with pytest.raises(OSError, match="killed"):
        prepare(opened, schema)
    assert version(opened, schema) == "0001"
    assert columns(opened) == before


@pytest.mark.parametrize("opened", ["postgres"], indirect=True)
def test_of_two_servers_that_upgrade_at_once_one_does(opened: Database, tmp_path: Path) -> None:
    prepare(opened, books(tmp_path / "migrations", newest="0001"))
    schema = books(tmp_path / "migrations", newest="0002")
    problems: list[Exception] = []

    def start() -> None:
        try:
            prepare(opened, schema)
        except Exception as error:  # of a thread: kept for the assertion
            problems.append(error)

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert problems == []
    assert version(opened, schema) == "0002"


def test_a_newer_database_is_refused_with_the_cure(opened: Database, tmp_path: Path) -> None:
    schema = books(tmp_path / "migrations", newest="0002")
    prepare(opened, schema)
    with opened.writing() as connection:
        connection.execute(update(schema.version).values(version_num="9999"))
    with pytest.raises(
        StoreBroken, match=r"has schema 9999, newer than 0002, .*; upgrade tuner, .* with --library"
    ):
        prepare(opened, schema)


def test_a_database_too_old_for_the_migrations_is_refused_with_the_cure(
    opened: Database, tmp_path: Path
) -> None:
    schema = books(tmp_path / "migrations", newest="0002")
    prepare(opened, schema)
    with opened.writing() as connection:
        connection.execute(update(schema.version).values(version_num="0000"))
    with pytest.raises(
        UnknownSchema,
        match=r"has schema 0000; this tuner uses 0002 and upgrades 0001; .* a release in between",
    ):
        prepare(opened, schema)
    assert len(columns(opened)) == 3


@pytest.mark.parametrize("versions", [[], [""], ["1"], ["junk"], ["0001", "0002"]])
def test_a_version_that_nobody_wrote_is_damage(
    opened: Database, tmp_path: Path, versions: list[str]
) -> None:
    schema = books(tmp_path / "migrations", newest="0002")
    prepare(opened, schema)
    with opened.writing() as connection:
        connection.execute(delete(schema.version))
        for version_num in versions:
            connection.execute(insert(schema.version).values(version_num=version_num))
    with pytest.raises(StoreBroken, match=r"the version of its schema is .*; restore a backup"):
        prepare(opened, schema)


def test_tables_of_another_version_than_the_database_says_are_damage(
    opened: Database, tmp_path: Path
) -> None:
    schema = books(tmp_path / "migrations", newest="0002")
    prepare(opened, schema)
    with opened.writing() as connection:
        connection.execute(update(schema.version).values(version_num="0001"))
    with pytest.raises(StoreBroken, match="restore a backup"):
        prepare(opened, schema)


def test_a_table_of_another_program_is_left_alone(opened: Database, tmp_path: Path) -> None:
    with opened.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE books (isbn INTEGER)")
    with pytest.raises(
        StoreBroken,
        match=r"a table 'books' that is not tuner's .*; name another place with --library",
    ):
        prepare(opened, books(tmp_path / "migrations", newest="0001"))
    assert [name for name, _, _ in columns(opened)] == ["isbn"]


@pytest.mark.parametrize(
    "schema", [study_tables.SCHEMA, experiment_tables.SCHEMA], ids=["studies", "controller"]
)
def test_the_versions_are_those_of_the_migrations(schema: Schema) -> None:
    config = Config()
    config.set_main_option("script_location", "suggest.storage:migrations")
    config.set_main_option("version_locations", schema.migrations)
    config.set_main_option("path_separator", "newline")
    scripts = ScriptDirectory.from_config(config)
    assert scripts.get_current_head() == schema.newest
    revisions = sorted(each.revision for each in scripts.walk_revisions())
    assert revisions == [*schema.older, schema.newest]


def test_opening_a_current_database_does_not_import_alembic(tmp_path: Path) -> None:
    program = (
        "import sys; from suggest.server.admin import open_store; url = sys.argv[1];"
        "open_store(url).close(); open_store(url).close(); print('alembic' in sys.modules)"
    )
    url = f"sqlite:///{tmp_path}/studies.db"
    found = subprocess.run(
        [sys.executable, "-c", program, url], capture_output=True, text=True, check=True
    )
    assert found.stdout == "False\n"
