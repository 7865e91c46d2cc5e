"""Add the earlier search spaces of a study. Frozen, as 0001 is."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("studies", sa.Column("past", sa.JSON, nullable=False, server_default="[]"))
