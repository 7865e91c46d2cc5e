"""Add leases of trials: how often each was handed out, and how long its lease lasts. Frozen, as 0001 is."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("trials", sa.Column("tries", sa.Integer, nullable=False, server_default="0"))
    op.add_column("trials", sa.Column("lease_us", sa.BigInteger))
