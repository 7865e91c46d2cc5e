"""Add a random nonce to leases, because epochs repeat after a restore. Frozen, as 0001 is."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("studies", sa.Column("owner_nonce", sa.String(32), nullable=False, server_default=""))
