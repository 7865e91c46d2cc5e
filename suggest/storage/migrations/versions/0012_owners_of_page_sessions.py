"""Add the owners of sessions, because each has a limit. Frozen, as 0001 is."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("page_sessions", sa.Column("owner", sa.String(64), nullable=False, server_default=""))
