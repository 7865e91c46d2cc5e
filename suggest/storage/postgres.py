"""PostgreSQL connections: a pool, transactions, and errors translated for people.

This module names no table. A single statement is its own transaction, so it costs one round trip.
The database server ends a session that stalls within a transaction for a second, so that a frozen
process does not block others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool

from suggest.distribution import install_command
from suggest.errors import InvalidArgument, StoreBroken, StoreUnavailable
from suggest.storage.database import DamagedRow
from suggest.storage.study_json import read_json
from suggest.url_redaction import redacted_url

POOL = 20  # connections; more than a server has worker threads
WAIT_S = 5.0
CONNECT_TIMEOUT_S = 3
INSTANCE = "instance"  # the key in a connection's `info`
# "tuner" in ASCII, distinct from the advisory locks of other programs in this database
_SCHEMA_LOCK = 0x74756E6572
_SETTINGS = {
    "idle_in_transaction_session_timeout": "1000",
    "lock_timeout": "3000",
    "application_name": "tuner",
}
SYNC = {"normal": "", "full": "on"}

# By prefix of the SQLSTATE; the longest match decides.
_CURES = {
    "08": "the connection broke; check that it is running and reachable",
    "25006": "it is read-only; name the primary, not a standby",
    "25P03": "the connection was idle in a transaction and was closed",
    "28": "access denied for this user; see user and password in the URL, PGPASSWORD or ~/.pgpass",
    "3D000": "there is no such database; create it first (createdb)",
    "40": "conflict with another transaction; try again",
    "42P01": "it was emptied or replaced; restore a backup, or restart the server to begin with "
    "an empty store",
    "42701": "its schema has another version than it says; restore a backup",
    "42P07": "its schema has another version than it says; restore a backup",
    "42501": "this user lacks a privilege; grant it the privileges to use and create tables",
    "53100": "its disk is full; nothing was lost; free some space and try again",
    "53300": "it accepts no more connections; end some clients, or raise max_connections",
    "53": "it has no room for this; see max_connections and its memory",
    "55P03": "another process has kept it locked; try again, or end that process",
    "57": "it is starting, stopping or has ended the statement; try again",
    "58": "its machine failed; see the server's log",
    "XX001": "it is damaged; restore it from a backup",
    "XX002": "it is damaged; restore it from a backup",
}
_BROKEN = ("42701", "42P07", "XX001", "XX002")


@contextmanager
def translated(place: str) -> Iterator[None]:
    """Translate database errors to the types of `suggest.errors`.

    Errors that indicate a bug of this package (bad SQL, a violated constraint) pass through.
    """
    try:
        yield
    except DamagedRow as e:
        raise e.broken(place) from e
    except PoolTimeout as e:
        raise StoreUnavailable(
            f"{place}: all {POOL} connections have been busy for {WAIT_S:g} s; try again"
        ) from e
    except SQLAlchemyError as e:
        if not isinstance(e, DBAPIError):
            raise
        raise _ours(e, place) from e


def _ours(error: DBAPIError, place: str) -> Exception:
    import psycopg  # already imported, since it raised the error

    cause, state = error.orig, getattr(error.orig, "sqlstate", None) or ""
    words = " ".join(str(cause).split())
    fitting = max((known for known in _CURES if state.startswith(known)), key=len, default="")
    if fitting:
        kind = StoreBroken if fitting in _BROKEN else StoreUnavailable
        return kind(f"{place}: {_CURES[fitting]} (PostgreSQL: {words})")
    if isinstance(cause, psycopg.DataError) and "NUL" in words:
        return InvalidArgument.at(
            "", "a text contains a zero byte, which PostgreSQL cannot store; remove it"
        )
    if error.connection_invalidated:
        # psycopg 3.2.1 has no SQLSTATE of a session that the server has ended
        return StoreUnavailable(f"{place}: {_CURES['08']} (PostgreSQL: {words})")
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreUnavailable(
            f"{place}: no connection; check that it is running, and see its log (PostgreSQL: "
            f"{words})"
        )
    return error


class PostgresDatabase:
    """The `Database` that `url` names. Connections are opened on demand; close() closes them."""

    def __init__(self, url: str, *, sync: str = "normal") -> None:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            # Not chained, because the message of the cause may contain a part of the password.
            raise InvalidArgument.at(
                "storage", "is not a URL; use postgresql+psycopg://USER@HOST/DATABASE"
            ) from None
        if "@" in (parsed.host or ""):
            raise InvalidArgument.at(
                "storage",
                f"{redacted_url(url)}: has two @; write one in a password as %40, a / as %2F",
            )
        self.place = redacted_url(url).partition("?")[0]
        settings = {**_SETTINGS, **({"synchronous_commit": SYNC[sync]} if SYNC[sync] else {})}
        try:
            self._engine = create_engine(
                parsed,
                json_deserializer=read_json,
                use_native_hstore=False,  # no column has it, and to look for it takes round trips
                # the row count shows whether an INSERT wrote all rows
                execution_options={"preserve_rowcount": True},
                poolclass=QueuePool,
                pool_size=POOL,
                max_overflow=0,
                pool_timeout=WAIT_S,
                connect_args={
                    "connect_timeout": CONNECT_TIMEOUT_S,
                    "tcp_user_timeout": 5000,
                    "options": " ".join(f"-c {name}={value}" for name, value in settings.items()),
                },
            )
        except ArgumentError as e:  # about hosts and ports
            raise InvalidArgument.at("storage", f"{redacted_url(url)}: {e}") from e
        except ModuleNotFoundError as e:
            message = (
                f"PostgreSQL needs the library psycopg; install with: {install_command('postgres')}"
            )
            raise InvalidArgument.at("storage", message) from e
        self.restarts = 0
        self._instance = ""
        event.listen(self._engine, "connect", self._note_instance)
        self._single = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ")

    @contextmanager
    def writing(self, *, single: bool = False) -> Iterator[Connection]:
        engine = self._single if single else self._engine
        with translated(self.place), engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self, *, single: bool = False) -> Iterator[Connection]:
        engine = self._single if single else self._snapshots
        with translated(self.place), engine.begin() as connection:
            yield connection

    # psycopg's connection, and the record of SQLAlchemy's pool, which has no type
    def _note_instance(self, connection: Any, record: Any) -> None:
        """Note which server instance the connection leads to.

        It changes with a restart, a restore or a failover.
        """
        connection.autocommit = True  # one round trip instead of three
        with connection.cursor() as cursor:
            cursor.execute("SELECT extract(epoch FROM pg_postmaster_start_time())::text")
            (instance,) = cursor.fetchone()
        connection.autocommit = False
        if self._instance not in ("", instance):
            self.restarts += 1
        self._instance = record.info[INSTANCE] = instance

    def lock_schema(self, connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK})

    def check_pages(self, connection: Connection) -> None:
        """Do nothing: PostgreSQL has pg_amcheck for this."""

    def refuse_emptied(self) -> None:
        """Accept a database without tables: people create it before Tuner opens it."""

    def remember_store(self) -> None:
        """Do nothing, as `refuse_emptied` does."""

    def close(self) -> None:
        self._engine.dispose()
