"""Add values of further objectives and of constraints. Frozen, as 0001 is."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("trials", sa.Column("further", sa.JSON))
    op.add_column("trials", sa.Column("constraint_values", sa.JSON))
