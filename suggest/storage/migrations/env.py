"""Where Alembic starts: on the connection and in the transaction that `suggest.storage.upgrades` gives it.

To add a version: `alembic revision` is not used; copy the newest file in versions/, and add its id to
upgrades.VERSIONS.
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
