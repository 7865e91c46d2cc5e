"""What attempts request and how long they ran before a pause, and what an experiment has used."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    for table, names in (
        ("attempts", ("gpus", "price_per_hour", "earlier_s")),
        ("experiments", ("gpu_hours", "cost")),
    ):
        for name in names:
            column = sa.Column(name, sa.Float, nullable=False, server_default="0")
            op.add_column(table, column)
