"""The tables of the study store, as this version of the code needs them. Definitions only; no query.

The namespace is in every key. A change here needs a migration (tests/contract compares the two).
Times are microseconds since 1970 UTC: exact, and the same on every database. A NULL measurement is NaN, which SQLite
cannot store otherwise.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

# Bytes in order, as on SQLite: a database's own collation may put "a-b" elsewhere than its pages expect.
_NAME = String(63).with_variant(String(63, collation="C"), "postgresql")

studies = Table(
    "studies",
    metadata,
    Column("namespace", _NAME, primary_key=True),
    Column("study", _NAME, primary_key=True),
    Column("uid", String(32), nullable=False),
    Column("spec", JSON, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("create_time_us", BigInteger, nullable=False),
    Column("create_request_id", Text, nullable=False),
    Column("fingerprint", String(64), nullable=False),  # of the spec as created: what a repeated CreateStudy must match
    Column("owner_address", Text, nullable=False),
    Column("owner_epoch", BigInteger, nullable=False),
    Column("past", JSON, nullable=False, server_default="[]"),  # spaces before they grew, oldest first
    Column("owner_nonce", String(32), nullable=False, server_default=""),  # of the taking that gave the epoch
)

trials = Table(
    "trials",
    metadata,
    Column("namespace", _NAME, nullable=False),
    Column("study", _NAME, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("parameters", JSON, nullable=False),
    Column("value", Float(53)),
    Column("step", BigInteger),
    Column("reason", Text, nullable=False),
    Column("failure_class", Text, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("request_id", Text, nullable=False),  # of the SuggestTrials that handed it out
    Column("add_request_id", Text),  # of the AddTrial that made it; NULL otherwise
    Column("labels", JSON, nullable=False),
    Column("create_time_us", BigInteger, nullable=False),
    Column("end_time_us", BigInteger),
    Column(
        "deleted", Boolean, nullable=False
    ),  # taken out of the study; the row keeps its number from being given again
    Column("tries", Integer, nullable=False, server_default="0"),  # how many times SuggestTrials handed it out
    Column("lease_us", BigInteger),  # how long its lease lasts from each renewal on; NULL: it has none
    # Values of the objectives after the first, and of the constraints' metrics: lists; NULL where there are none.
    Column("further", JSON(none_as_null=True)),
    Column("constraint_values", JSON(none_as_null=True)),
    PrimaryKeyConstraint("namespace", "study", "number"),
    UniqueConstraint("namespace", "study", "add_request_id"),
    ForeignKeyConstraint(["namespace", "study"], ["studies.namespace", "studies.study"], ondelete="CASCADE"),
)

measurements = Table(
    "measurements",
    metadata,
    # The order of the reports: what "last" means. BIGINT would be no rowid alias on SQLite.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("namespace", _NAME, nullable=False),
    Column("study", _NAME, nullable=False),
    Column("trial", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("metric", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("value", Float(53)),
    UniqueConstraint("namespace", "study", "trial", "attempt", "metric", "step"),
    # No reference to the trial: to look that up for each row would take as long as to insert it. Whoever deletes a
    # trial or a study deletes its measurements.
)

# Who writes, where no file lock can say it: on PostgreSQL. A server that is silent for too long has lost its studies.
servers = Table(
    "servers",
    metadata,
    Column("id", String(32), primary_key=True),  # of one life of a process
    Column("heartbeat_us", BigInteger, nullable=False),  # by the database's clock
)

owners = Table(
    "owners",
    metadata,
    Column("namespace", _NAME, nullable=False),
    Column("study", _NAME, nullable=False),
    Column("server", String(32), nullable=False),
    PrimaryKeyConstraint("namespace", "study"),
    ForeignKeyConstraint(["namespace", "study"], ["studies.namespace", "studies.study"], ondelete="CASCADE"),
    ForeignKeyConstraint(["server"], ["servers.id"], ondelete="CASCADE"),
)

# What trials of Katib's clients report, as it was reported. Katib's requests name no namespace.
katib_observations = Table(
    "katib_observations",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("trial_name", Text, nullable=False),
    Column("time_us", BigInteger, nullable=False),  # of the time stamp; ties are in the order of the reports
    Column("time_stamp", Text, nullable=False),
    Column("metric", Text, nullable=False),
    Column("value", Text, nullable=False),  # Katib has metrics that are no numbers
    Index("katib_observations_of_trial", "trial_name", "metric", "time_us", "id"),
)

# Alembic's own table, under our name: Optuna may keep its `alembic_version` in the same database server.
VERSION_TABLE = "suggest_schema_version"
version_metadata = MetaData()
schema_version = Table(
    VERSION_TABLE,
    version_metadata,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)
