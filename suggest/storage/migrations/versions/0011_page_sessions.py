"""Who is signed in to the page of a server. Frozen, as 0001 is."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "page_sessions",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("used_us", sa.BigInteger, nullable=False),
    )
