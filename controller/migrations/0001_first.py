"""The tables of the first release, which every database had when it was made:
`experiment_tables`.
"""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do nothing: the next version is the first that has something to change."""
