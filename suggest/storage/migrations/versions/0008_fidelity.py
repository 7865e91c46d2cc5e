"""Add the fidelity of trials, and their values at smaller ones. Frozen, as 0001 is."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("trials", sa.Column("fidelity", sa.Float(53)))
    op.add_column("trials", sa.Column("rungs", sa.JSON))
