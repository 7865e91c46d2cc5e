"""The schema version: opening a store creates, upgrades or refuses its schema.

A new store gets its tables from `study_tables` and is stamped with the newest version, without Alembic, whose import
would double the start-up time. Only an older store needs Alembic.
"""

from __future__ import annotations

from sqlalchemy import Connection, insert, inspect

from suggest import failpoints
from suggest.errors import StoreBroken
from suggest.storage.database import Database, Readable
from suggest.storage.study_tables import VERSION_TABLE, metadata, schema_version, version_metadata

# All versions, oldest first: the revisions in `migrations/versions` (a test compares the two).
VERSIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011", "0012")
HEAD = VERSIONS[-1]

_BEFORE, _AFTER = failpoints.register("store.make_schema")


def prepare(database: Database) -> None:
    """Create the schema or upgrade it to HEAD. Raises StoreBroken if it is newer, or belongs to another program."""
    with database.reading() as connection:
        if _version(connection, database) == HEAD:
            return
    failpoints.reach(_BEFORE)
    with database.writing() as connection:
        database.lock_schema(connection)
        version = _version(connection, database)  # again, because another process may have been faster
        if version is None:
            database.refuse_emptied()
            metadata.create_all(connection)
            version_metadata.create_all(connection)
            connection.execute(insert(schema_version).values(version_num=HEAD))
        elif version != HEAD:
            upgrade(connection)
    failpoints.reach(_AFTER)


def version(database: Readable) -> str | None:
    """Return the schema version without changing anything; None for an empty database. Raises as `prepare` does."""
    with database.reading() as connection:
        return _version(connection, database)


def upgrade(connection: Connection, to: str = HEAD) -> None:
    """Run the migrations inside the caller's transaction."""
    from alembic import command  # the import takes as long as the whole start, so only an old store pays for it
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "suggest.storage:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, to)


def _version(connection: Connection, database: Readable) -> str | None:
    """Return the schema version, None for an empty database."""
    existing = set(inspect(connection).get_table_names())
    if VERSION_TABLE not in existing:
        if taken := sorted(existing & set(metadata.tables)):
            raise StoreBroken(
                f"{database.place}: has a table {taken[0]!r} that is not tuner's (an Optuna storage has the same "
                "names); name another place with --storage"
            )
        return None
    # As SQL, since each start asks this, and compiling it takes longer.
    version = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar_one_or_none()
    if version is not None and version not in VERSIONS:
        raise StoreBroken(
            f"{database.place}: has schema {version}, newer than {HEAD}, the newest that this tuner knows; "
            "upgrade tuner, or name another place with --storage"
        )
    return version
