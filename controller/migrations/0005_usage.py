"""What each namespace has used in each month, and an index of the attempts that have not ended."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "usage",
        sa.Column("namespace", sa.String, primary_key=True),
        sa.Column("month", sa.String, primary_key=True),
        sa.Column("gpu_hours", sa.Float, nullable=False),
        sa.Column("cost", sa.Float, nullable=False),
    )
    unended = sa.text("end_time IS NULL")
    op.create_index(
        "attempts_unended", "attempts", ["uid"], sqlite_where=unended, postgresql_where=unended
    )
