"""The entry point of Alembic, which uses the connection and transaction that `suggest.storage.upgrades` gives it.

To add a version, do not use `alembic revision`: copy the newest file in versions/, and add its id to upgrades.VERSIONS.
"""

from alembic import context

from suggest.storage.study_tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
context.run_migrations()
