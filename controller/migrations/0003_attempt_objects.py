"""What a runtime did with the objects of attempts, which was in a file of each attempt's folder."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "attempt_objects",
        sa.Column(
            "uid",
            sa.String,
            sa.ForeignKey("experiments.uid", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("trial", sa.Integer, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("object_uid", sa.String, nullable=False),
        sa.Column("timed_out", sa.Boolean, nullable=False),
    )
