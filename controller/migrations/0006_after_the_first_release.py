"""What has been added since the first release: see `experiment_tables`."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "controller_leader",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("holder", sa.String, nullable=False),
    )
    experiment = sa.ForeignKey("experiments.uid", ondelete="CASCADE")
    op.create_table(
        "attempt_objects",
        sa.Column("uid", sa.String, experiment, primary_key=True),
        sa.Column("trial", sa.Integer, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("object_uid", sa.String, nullable=False),
        sa.Column("timed_out", sa.Boolean, nullable=False),
    )
    op.create_table(
        "usage",
        sa.Column("namespace", sa.String, primary_key=True),
        sa.Column("month", sa.String, primary_key=True),
        sa.Column("gpu_hours", sa.Float, nullable=False),
        sa.Column("cost", sa.Float, nullable=False),
        sa.Column("stopped_gpu_hours", sa.Float, nullable=False, server_default="0"),
        sa.Column("stopped_cost", sa.Float, nullable=False, server_default="0"),
    )
    for table, names in (
        ("attempts", ("gpus", "price_per_hour", "earlier_s")),
        ("experiments", ("gpu_hours", "cost")),
    ):
        for name in names:
            column = sa.Column(name, sa.Float, nullable=False, server_default="0")
            op.add_column(table, column)
    ended_by = sa.Column("ended_by", sa.String, nullable=False, server_default="")
    op.add_column("experiments", ended_by)
    unended = sa.text("end_time IS NULL")
    op.create_index(
        "attempts_unended", "attempts", ["uid"], sqlite_where=unended, postgresql_where=unended
    )
