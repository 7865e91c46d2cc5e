"""The trial that has asked to end the search."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("experiments", sa.Column("ended_by", sa.Integer))
