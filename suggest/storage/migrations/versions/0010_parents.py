"""Add the trial from whose checkpoint a trial goes on. Frozen, as 0001 is."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("trials", sa.Column("parent", sa.BigInteger))
