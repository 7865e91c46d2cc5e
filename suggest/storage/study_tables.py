"""The tables of the study store, as this version of the code needs them.
Definitions only; no query.

The namespace is in every key. A change here needs a new version of the schema (see
`suggest.storage.schema`). Times are microseconds since 1970 UTC, which are exact and the same in
every database. A measurement of NULL means NaN, because SQLite cannot store NaN.
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
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from suggest.storage.schema import Schema, version_table

metadata = MetaData()

# Compare bytes, as SQLite does: the database's own collation may order "a-b"
# differently than paging expects.
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
    # of the spec at creation; a repeated CreateStudy must match it
    Column("fingerprint", String(64), nullable=False),
    Column("owner_address", Text, nullable=False),
    Column("owner_epoch", BigInteger, nullable=False),
    Column("past", JSON, nullable=False),  # the earlier search spaces, oldest first
    Column("owner_nonce", String(32), nullable=False),  # random, new with each epoch
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
    # of the SuggestTrials call that handed out the trial
    Column("request_id", Text, nullable=False),
    # of the AddTrial call that created the trial; NULL for other trials
    Column("add_request_id", Text),
    Column("labels", JSON, nullable=False),
    Column("create_time_us", BigInteger, nullable=False),
    Column("end_time_us", BigInteger),
    # the row stays, so that the trial's number is not used again
    Column("deleted", Boolean, nullable=False),
    Column("tries", Integer, nullable=False),  # how often SuggestTrials handed out the trial
    # duration of the trial's lease after each renewal; NULL without a lease
    Column("lease_us", BigInteger),
    # Lists with the values of the objectives after the first,
    # and of the constraints; NULL if there are none.
    Column("further", JSON(none_as_null=True)),
    Column("constraint_values", JSON(none_as_null=True)),
    # up to which the trial runs, or ran last; NULL in studies without fidelity
    Column("fidelity", Float(53)),
    # [[fidelity, value], …] below the largest; NULL if there are none
    Column("rungs", JSON(none_as_null=True)),
    # the trial from whose checkpoint it continues; NULL if there is none
    Column("parent", BigInteger),
    PrimaryKeyConstraint("namespace", "study", "number"),
    UniqueConstraint("namespace", "study", "add_request_id"),
    ForeignKeyConstraint(
        ["namespace", "study"], ["studies.namespace", "studies.study"], ondelete="CASCADE"
    ),
)

measurements = Table(
    "measurements",
    metadata,
    # The order of the reports, which defines the "last" one.
    # On SQLite only INTEGER can be an alias of the rowid.
    Column(
        "id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    ),
    Column("namespace", _NAME, nullable=False),
    Column("study", _NAME, nullable=False),
    Column("trial", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("metric", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("value", Float(53)),
    UniqueConstraint("namespace", "study", "trial", "attempt", "metric", "step"),
    # No foreign key to the trial: checking it for each row would take as long as inserting the row.
    # Code that deletes a trial or a study deletes the measurements.
)

# Heartbeats of servers on PostgreSQL, where there are no file locks. A server that is silent for
# too long has lost its studies.
servers = Table(
    "servers",
    metadata,
    Column("id", String(32), primary_key=True),  # random, new with each start of a process
    Column("heartbeat_us", BigInteger, nullable=False),  # by the database's clock
)

owners = Table(
    "owners",
    metadata,
    Column("namespace", _NAME, nullable=False),
    Column("study", _NAME, nullable=False),
    Column("server", String(32), nullable=False),
    PrimaryKeyConstraint("namespace", "study"),
    ForeignKeyConstraint(
        ["namespace", "study"], ["studies.namespace", "studies.study"], ondelete="CASCADE"
    ),
    ForeignKeyConstraint(["server"], ["servers.id"], ondelete="CASCADE"),
)

# The reports of trials of Katib's clients. There is no namespace,
# because Katib's requests name none.
katib_observations = Table(
    "katib_observations",
    metadata,
    Column(
        "id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    ),
    Column("trial_name", Text, nullable=False),
    # of the time stamp; ties are in the order of the reports
    Column("time_us", BigInteger, nullable=False),
    Column("time_stamp", Text, nullable=False),
    Column("metric", Text, nullable=False),
    Column("value", Text, nullable=False),  # Katib has metrics that are no numbers
    Index("katib_observations_of_trial", "trial_name", "metric", "time_us", "id"),
)

# Who is signed in to the page of `tuner serve --ui`. The key is the hash of the
# session's id, with which the token is sealed, so that the table alone reveals neither.
# The owner is a hash of the token.
page_sessions = Table(
    "page_sessions",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
    Column("used_us", BigInteger, nullable=False),  # by the servers' clocks
    Column("owner", String(64), nullable=False),
)

SCHEMA = Schema(
    metadata,
    version_table("study_schema_version", metadata),
    newest="0001",
    older=(),
    migrations="suggest.storage:migrations/versions",
    option="--storage",
)
