"""What trials of Katib's clients report, as it was reported. Frozen, as 0001 is."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "katib_observations",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("trial_name", sa.Text, nullable=False),
        sa.Column("time_us", sa.BigInteger, nullable=False),
        sa.Column("time_stamp", sa.Text, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_index("katib_observations_of_trial", "katib_observations", ["trial_name", "metric", "time_us", "id"])
