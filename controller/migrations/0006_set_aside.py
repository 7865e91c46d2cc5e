"""Another name for the mark of failed attempts whose trial runs again: reruns are other things."""

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.alter_column("attempts", "rerun", new_column_name="set_aside")
