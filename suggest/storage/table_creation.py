"""Creates the tables of a new database, for both halves. Names no table."""

from __future__ import annotations

from sqlalchemy import Connection, Dialect, MetaData
from sqlalchemy.schema import CreateIndex, CreateTable

_compiled: dict[tuple[MetaData, str, str], list[str]] = {}


def create_tables(connection: Connection, metadata: MetaData) -> None:
    """Create all tables of `metadata`, none of which may exist, with their indexes.

    `MetaData.create_all` compiles the statements for each new engine again and asks for every table whether it exists:
    most of the time that a new database takes. Here a process compiles them once.
    """
    dialect = connection.dialect
    kind = (metadata, dialect.name, dialect.driver)
    if kind not in _compiled:
        _compiled[kind] = _statements(metadata, dialect)
    for statement in _compiled[kind]:
        connection.exec_driver_sql(statement)


def _statements(metadata: MetaData, dialect: Dialect) -> list[str]:
    statements = []
    for table in metadata.sorted_tables:
        statements.append(str(CreateTable(table).compile(dialect=dialect)))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            statements.append(str(CreateIndex(index).compile(dialect=dialect)))
    return statements
