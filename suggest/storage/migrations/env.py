"""The entry point of Alembic, which uses the connection and transaction that
`suggest.storage.schema` gives it.
"""

from alembic import context

schema = context.config.attributes["schema"]
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=schema.metadata,
    version_table=schema.version.name,
    render_as_batch=True,
)
context.run_migrations()
