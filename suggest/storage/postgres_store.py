"""The store in a PostgreSQL database, shared by several servers. Ownership depends on heartbeats.

`FailureDetector` judges whether another owner is alive by observing whether its heartbeat changes.
"""

from __future__ import annotations

import enum
import logging
import math
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import BigInteger, Connection, cast, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from suggest.deadline import locked
from suggest.errors import NotFound, NotOwner, TunerError, Unavailable
from suggest.storage.ownership import Claim, held, of, taken_by, taking
from suggest.storage.postgres import INSTANCE, PostgresDatabase
from suggest.storage.sql_store import StudyStore
from suggest.storage.statements import PostgresStatements
from suggest.storage.store import Lease
from suggest.storage.study_tables import owners, servers, studies
from suggest.study import StudyName

SILENCE_S = 1.5
# the longest gap between two looks; after a longer one, silence counts from the later look
GAP_S = 1.0


class Liveness(enum.Enum):
    ALIVE = "alive"
    SILENT = "silent"
    UNKNOWN = "unknown"  # not observed for long enough


@dataclass(slots=True)
class _LastBeat:
    value: int
    since: float  # when the value was first seen, without a gap in the looks since
    looked: float
    changed: bool = False


class FailureDetector:
    """Judges which servers are alive. Not thread-safe.

    The heartbeats of a look were read at some moment between `began` and `ended`.
    """

    def __init__(self) -> None:
        self._last_beats: dict[str, _LastBeat] = {}

    def look(self, heartbeats: Mapping[str, int], *, began: float, ended: float) -> None:
        """Record the heartbeats of all servers that exist."""
        for server in self._last_beats.keys() - heartbeats.keys():
            del self._last_beats[server]
        for server, value in heartbeats.items():
            self.look_at(server, value, began=began, ended=ended)

    def look_at(self, server: str, value: int, *, began: float, ended: float) -> Liveness:
        heard = self._last_beats.get(server)
        if heard is None:
            self._last_beats[server] = _LastBeat(value, since=ended, looked=ended)
            return Liveness.UNKNOWN
        if value != heard.value:
            heard.value, heard.since, heard.changed = value, ended, True
        elif ended - heard.looked > GAP_S:
            heard.since = ended
        heard.looked = ended
        if began - heard.since >= SILENCE_S:
            return Liveness.SILENT
        return Liveness.ALIVE if heard.changed else Liveness.UNKNOWN

    def interrupted(self) -> None:
        """Record that a look failed: other servers may also have failed to write heartbeats."""
        for heard in self._last_beats.values():
            heard.looked = -math.inf

    def silent_for(self, seconds: float, now: float) -> dict[str, int]:
        """Return the servers whose heartbeat has not changed for this long, with that heartbeat."""
        return {
            server: heard.value
            for server, heard in self._last_beats.items()
            if now - heard.since >= seconds
        }


log = logging.getLogger(__name__)

BEAT_S = 0.5
_FORGOTTEN_S = 3600.0

_NOW_US = cast(func.extract("epoch", func.clock_timestamp()) * 1_000_000, BigInteger)


class OwnedByHeartbeat:
    """`Ownership` of one process by heartbeats, from the first `take` until close().

    With a `claim`, it does not wait for the silence of the process that has a study.
    """

    def __init__(self, database: PostgresDatabase, claim: Claim | None) -> None:
        self._database = database
        self._claim = claim
        self._server = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._beaten_at = 0.0  # monotonic time before the last heartbeat was sent
        self._instance = ""  # the instance of the database server
        # how often leases became doubtful: a heartbeat was late, or the database instance changed
        self._gaps = 0
        # by uid: the value of `_gaps` when the lease was last known to hold
        self._checked: dict[str, int] = {}
        self._detector = FailureDetector()
        self._detector_lock = threading.Lock()

    def take(self, name: StudyName, *, uid: str, address: str) -> Lease:
        self._live()
        gaps = self._gaps
        with self._database.writing() as connection:
            of_study = (of(studies, name), studies.c.uid == uid)
            # The row lock serializes takers from here on, so the next statement sees what the
            # previous taker did.
            if (
                connection.execute(
                    select(studies.c.uid).where(*of_study).with_for_update()
                ).one_or_none()
                is None
            ):
                raise NotFound(f"{name} does not exist")
            if self._claim is None:
                self._refuse_held(connection, name, address)
            else:
                self._claim(connection)
            mine = insert(owners).values(
                namespace=name.namespace, study=name.study, server=self._server
            )
            connection.execute(
                mine.on_conflict_do_update(
                    index_elements=[owners.c.namespace, owners.c.study],
                    set_={"server": self._server},
                )
            )
            lease = taking(connection, name, uid=uid, address=address)
            assert lease is not None, "its row is locked"
            lease = replace(lease, instance=connection.info[INSTANCE])
        self._checked[uid] = gaps
        return lease

    def _refuse_held(self, connection: Connection, name: StudyName, address: str) -> None:
        """Raise NotOwner or Unavailable if another process has the study, unless it is silent."""
        began = time.monotonic()
        holder = connection.execute(
            select(
                owners.c.server,
                servers.c.heartbeat_us,
                (_NOW_US - servers.c.heartbeat_us).label("age_us"),
                studies.c.owner_address,
            )
            .join_from(owners, servers, owners.c.server == servers.c.id)
            .join(
                studies,
                (studies.c.namespace == owners.c.namespace) & (studies.c.study == owners.c.study),
            )
            .where(of(owners, name))
        ).one_or_none()
        if holder is None or holder.server == self._server:
            return
        verdict = self._verdict(holder.server, holder.heartbeat_us, began=began)
        if verdict is Liveness.SILENT:
            return
        if verdict is Liveness.UNKNOWN and not 0 <= holder.age_us < SILENCE_S * 1e6:
            # By the database's clock the holder is silent, or from the future.
            # The clock may be wrong.
            raise Unavailable(
                f"{name} belongs to a server that may have died; unless it is seen again within "
                f"{SILENCE_S:g} s another takes over: try again in a moment"
            )
        if holder.owner_address == address:
            raise Unavailable(
                f"{name} still belongs to a process that listened at {address} before; try "
                "again in a moment, and if another machine's server uses that address "
                "too, give each its own: --advertise"
            )
        raise taken_by(name, holder.owner_address)

    def still_held(self, lease: Lease) -> bool:
        gaps = self._gaps
        if time.monotonic() - self._beaten_at < SILENCE_S and self._checked.get(lease.uid) == gaps:
            return True
        with self._database.reading(single=True) as connection:
            same = connection.info[INSTANCE] == lease.instance
            if same and connection.execute(select(held(lease))).scalar_one():
                self._checked[lease.uid] = gaps
                return True
        return False

    def check(self, connection: Connection, lease: Lease) -> None:
        if connection.info[INSTANCE] != lease.instance:
            # The last commits may be lost, so the engine in this process may be ahead of the store.
            raise NotOwner(
                f"{lease.name}: the database was restarted or has failed over; take the study again"
            )

    def release(self, lease: Lease) -> None:
        self.deleted(lease)
        try:
            with self._database.writing() as connection:
                connection.execute(
                    delete(owners).where(
                        of(owners, lease.name), owners.c.server == self._server, held(lease)
                    )
                )
                connection.execute(
                    update(studies)
                    .where(of(studies, lease.name), held(lease))
                    .values(owner_address="")
                )
        except TunerError as e:
            # others can take it once this server is silent
            log.warning("study=%s released=no error=%s", lease.name, e)

    def deleted(self, lease: Lease) -> None:
        self._checked.pop(lease.uid, None)

    def close(self) -> None:
        self._closing.set()
        if self._thread is None:
            return
        self._thread.join()
        try:
            with self._database.writing(single=True) as connection:
                connection.execute(delete(servers).where(servers.c.id == self._server))
        except TunerError as e:
            log.warning("server=%s deregistered=no error=%s", self._server, e)

    def _live(self) -> None:
        """Register this server and start its heartbeat, twice a second."""
        with locked(
            self._lock, late=Unavailable(f"{self._database.place}: it responds slowly; try again")
        ):
            if self._thread is None:
                self._beat()
                self._thread = threading.Thread(
                    target=self._send_heartbeats, name="heartbeat", daemon=True
                )
                self._thread.start()

    def _send_heartbeats(self) -> None:
        silent = False
        while not self._closing.wait(BEAT_S):
            try:
                self._beat()
            # nothing may end this thread: without heartbeats all studies are lost
            except Exception as e:
                with self._detector_lock:
                    self._detector.interrupted()
                if not silent:
                    log.warning("heartbeat=failed error=%s", e)
                silent = True
            else:
                if silent:
                    log.warning("heartbeat=back")
                silent = False

    def _beat(self) -> None:
        now = time.monotonic()
        alive = insert(servers).values(id=self._server, heartbeat_us=_NOW_US)
        alive = alive.on_conflict_do_update(
            index_elements=[servers.c.id], set_={"heartbeat_us": _NOW_US}
        )
        with self._database.writing(single=True) as connection:
            connection.execute(alive)
            instance = connection.info[INSTANCE]
        if (now - self._beaten_at >= SILENCE_S or instance != self._instance) and self._beaten_at:
            self._gaps += 1
        self._instance = instance
        self._beaten_at = now
        self._look_at_others()

    def _look_at_others(self) -> None:
        query = select(servers.c.id, servers.c.heartbeat_us).where(servers.c.id != self._server)
        began = time.monotonic()
        with self._database.reading(single=True) as connection:
            heartbeats = {row.id: row.heartbeat_us for row in connection.execute(query)}
        with self._detector_lock:
            self._detector.look(heartbeats, began=began, ended=time.monotonic())
            forgotten = self._detector.silent_for(_FORGOTTEN_S, began)
        for server, heartbeat_us in forgotten.items():
            this = delete(servers).where(
                servers.c.id == server, servers.c.heartbeat_us == heartbeat_us
            )
            with self._database.writing(single=True) as connection:
                connection.execute(this)

    def _verdict(self, server: str, heartbeat_us: int, *, began: float) -> Liveness:
        with self._detector_lock:
            return self._detector.look_at(server, heartbeat_us, began=began, ended=time.monotonic())


_STATEMENTS = PostgresStatements()


class PostgresStore(StudyStore):
    """A store in PostgreSQL.

    `url` is postgresql+psycopg://USER@HOST:PORT/DATABASE,
    optionally with libpq's options after a question mark.
    """

    def __init__(self, url: str, *, sync: str = "normal", claim: Claim | None = None) -> None:
        database = PostgresDatabase(url, sync=sync)
        super().__init__(database, OwnedByHeartbeat(database, claim), _STATEMENTS)
