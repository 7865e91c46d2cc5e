"""The schema of a database: opening a database creates its tables, upgrades them, or refuses it.

A new database gets its tables from the metadata and is stamped with the newest version, without
Alembic, whose import would double the start-up time. Only an older database needs Alembic.

To add a version: change the tables, copy the newest file in the folder
of the migrations, and raise `Schema.newest`; the version before becomes one of `Schema.older`. Only
add, and with defaults: processes of older versions may have the database open, and go on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    insert,
    inspect,
)

from suggest import failpoints
from suggest.errors import StoreBroken, UnknownSchema
from suggest.storage.database import Database, Readable

_MAKE_SCHEMA = failpoints.register("store.make_schema")


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one kind of database, and their version.

    version: Alembic's table, among those of `metadata`.
    newest, older: the revision of the newest file in `migrations`, a folder of a package as Alembic
    writes it, and those of the others.
    option: the option that names another place for such a database.
    """

    metadata: MetaData
    version: Table
    newest: str
    older: tuple[str, ...]
    migrations: str
    option: str


def version_table(name: str, metadata: MetaData) -> Table:
    """Define Alembic's version table under another name.

    Optuna may use Alembic in the same database.
    """
    return Table(
        name,
        metadata,
        Column("version_num", String(32), nullable=False),
        PrimaryKeyConstraint("version_num", name=f"{name}_pkc"),
    )


def prepare(database: Database, schema: Schema) -> None:
    """Create the tables, or upgrade them to the newest version.

    Raises StoreBroken as `version` does.
    """
    if version(database, schema) != schema.newest:
        _make_newest(database, schema)
    database.remember_store()


def _make_newest(database: Database, schema: Schema) -> None:
    with _MAKE_SCHEMA, database.writing() as connection:
        database.lock_schema(connection)
        # Read again, because another process may have been faster.
        found = _version(connection, database, schema)
        if found is None:
            database.refuse_emptied()
            schema.metadata.create_all(connection)
            connection.execute(insert(schema.version).values(version_num=schema.newest))
        elif found != schema.newest:
            upgrade(connection, schema)


def version(database: Readable, schema: Schema) -> str | None:
    """Return the version of a database without changing anything; None if it is empty.

    Raises:
        StoreBroken: the version is newer or too old, or another program uses the database.
    """
    # Two statements without one view: before anything is made, all is read again under a lock.
    with database.reading(single=True) as connection:
        return _version(connection, database, schema)


def upgrade(connection: Connection, schema: Schema) -> None:
    """Run the migrations inside the caller's transaction."""
    # Importing Alembic takes as long as the whole start, so only an old database pays for it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "suggest.storage:migrations")
    config.set_main_option("version_locations", schema.migrations)
    config.set_main_option("path_separator", "newline")
    config.attributes["connection"] = connection
    config.attributes["schema"] = schema
    command.upgrade(config, schema.newest)


def _version(connection: Connection, database: Readable, schema: Schema) -> str | None:
    existing = set(inspect(connection).get_table_names())
    if schema.version.name not in existing:
        if taken := sorted(existing & set(schema.metadata.tables)):
            raise StoreBroken(
                f"{database.place}: has a table {taken[0]!r} that is not tuner's (an Optuna "
                f"storage has the same names); name another place with {schema.option}"
            )
        return None
    # As SQL, since each start asks this, and compiling it takes longer.
    rows = connection.exec_driver_sql(f"SELECT version_num FROM {schema.version.name}")
    versions = [str(version) for version in rows.scalars()]
    if len(versions) != 1 or not re.fullmatch(r"\d{4}", versions[0]):
        shown = f"{', '.join(map(repr, versions))}, which is not one" if versions else "missing"
        raise StoreBroken(
            f"{database.place}: the version of its schema is {shown}; restore a backup"
        )
    (found,) = versions
    if found > schema.newest:
        raise UnknownSchema(
            f"{database.place}: has schema {found}, newer than {schema.newest}, the newest that "
            f"this tuner knows; upgrade tuner, or name another place with {schema.option}"
        )
    if found not in (*schema.older, schema.newest):
        known = ", ".join(schema.older) or "no other"
        raise UnknownSchema(
            f"{database.place}: has schema {found}; this tuner uses {schema.newest} and upgrades "
            f"{known}; first open it with a release in between, or name another place with "
            f"{schema.option}"
        )
    return found
