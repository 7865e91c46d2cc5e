"""The first schema: studies, trials, measurements. Frozen: never import `study_tables` here, because that changes."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NAME = sa.String(63).with_variant(sa.String(63, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "studies",
        sa.Column("namespace", NAME, primary_key=True),
        sa.Column("study", NAME, primary_key=True),
        sa.Column("uid", sa.String(32), nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("create_time_us", sa.BigInteger, nullable=False),
        sa.Column("create_request_id", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("owner_address", sa.Text, nullable=False),
        sa.Column("owner_epoch", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "trials",
        sa.Column("namespace", NAME, nullable=False),
        sa.Column("study", NAME, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("parameters", sa.JSON, nullable=False),
        sa.Column("value", sa.Float(53)),
        sa.Column("step", sa.BigInteger),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("failure_class", sa.Text, nullable=False),
        sa.Column("client_id", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("add_request_id", sa.Text),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("create_time_us", sa.BigInteger, nullable=False),
        sa.Column("end_time_us", sa.BigInteger),
        sa.Column("deleted", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("namespace", "study", "number"),
        sa.UniqueConstraint("namespace", "study", "add_request_id"),
        sa.ForeignKeyConstraint(["namespace", "study"], ["studies.namespace", "studies.study"], ondelete="CASCADE"),
    )
    op.create_table(
        "measurements",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("namespace", NAME, nullable=False),
        sa.Column("study", NAME, nullable=False),
        sa.Column("trial", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("value", sa.Float(53)),
        sa.UniqueConstraint("namespace", "study", "trial", "attempt", "metric", "step"),
        sa.ForeignKeyConstraint(
            ["namespace", "study", "trial"],
            ["trials.namespace", "trials.study", "trials.number"],
            ondelete="CASCADE",
        ),
    )
