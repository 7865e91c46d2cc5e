"""Add servers and the owners of studies: ownership for databases without file locks. Frozen, as 0001 is."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

NAME = sa.String(63).with_variant(sa.String(63, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "servers",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("heartbeat_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "owners",
        sa.Column("namespace", NAME, nullable=False),
        sa.Column("study", NAME, nullable=False),
        sa.Column("server", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "study"),
        sa.ForeignKeyConstraint(["namespace", "study"], ["studies.namespace", "studies.study"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["server"], ["servers.id"], ondelete="CASCADE"),
    )
