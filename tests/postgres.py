"""A private PostgreSQL for tests, from the system's own programs: a temporary folder, a Unix
socket, nothing durable.

A database is three hundred files. Making them takes a tenth of a second on a disk,
and a quarter of that in memory.

It ends with the tests, also when those are killed:
the guard of `tests.cluster.processes` sees to it.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.cluster.processes import Processes

REQUIRED = "TUNER_TEST_POSTGRES_REQUIRED"
PORT = 5432  # of a socket in a folder of its own: nobody else has it
IN_MEMORY = Path("/dev/shm")
# that must be free there: several workers take some hundred megabytes each
IN_MEMORY_BYTES = 4 << 30
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "max_connections": "100",
    "shared_buffers": "16MB",
    "max_wal_size": "64MB",
    "log_min_messages": "warning",
}


def programs() -> Path | None:
    """The folder of the newest initdb and postgres."""
    on_path = shutil.which("initdb")
    there = [Path(on_path).resolve().parent] if on_path else []
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name)
    )
    there += reversed(found)
    return next(
        (path for path in there if (path / "initdb").exists() and (path / "postgres").exists()),
        None,
    )


class Postgres:
    """Starts with the object. `new_database()` names an empty one; stop()
    and start() as an outage would.

    `settings`: other than SETTINGS. With a `primary`, it is a standby that follows it, and has what
    it acknowledges.
    """

    def __init__(self, binaries: Path, *, primary: Postgres | None = None, **settings: str) -> None:
        self._binaries = binaries
        self._settings = SETTINGS | settings
        folder = Path(tempfile.mkdtemp(prefix="tuner-pg-", dir=_place()))
        self._data = folder / "data"
        self._socket = folder / "s"
        self._socket.mkdir()
        self._as_user: list[str] = []
        if os.geteuid() == 0:  # which PostgreSQL refuses
            user = _unprivileged_user()
            self._as_user = [
                "setpriv",
                f"--reuid={user.pw_uid}",
                f"--regid={user.pw_gid}",
                "--clear-groups",
            ]
            for path in (folder, self._socket):
                os.chown(path, user.pw_uid, user.pw_gid)
        self._processes = Processes(folder)
        self._numbers = itertools.count()
        try:
            made = subprocess.run(
                [*self._as_user, *(self._copy(primary) if primary else self._new())],
                capture_output=True,
                text=True,
                cwd=folder,
                timeout=120,
                check=False,
            )
            assert made.returncode == 0, made.stderr
            self.start()
            if primary is not None:
                primary._administer("ALTER SYSTEM SET synchronous_standby_names = '*'")
                primary._administer("SELECT pg_reload_conf()")
        except BaseException:
            self.close()
            raise

    def _new(self) -> list[str | Path]:
        """Return the command that makes an empty cluster of databases."""
        text = ["-U", "tuner", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"]
        return [self._binaries / "initdb", "-D", self._data, *text]

    def _copy(self, primary: Postgres) -> list[str | Path]:
        """Return the command that copies a running one, to follow it."""
        where = ["-h", primary._socket, "-p", str(PORT), "-U", "tuner", "-D", self._data]
        how = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        return [self._binaries / "pg_basebackup", *where, *how]

    def promote(self) -> None:
        """Make the standby a primary."""
        self._administer("SELECT pg_promote()")

    def start(self) -> None:
        settings = [f"-c{name}={value}" for name, value in self._settings.items()]
        command = [
            *self._as_user,
            self._binaries / "postgres",
            "-D",
            self._data,
            "-k",
            self._socket,
            "-p",
            str(PORT),
        ]
        self._processes.start("postgres", [*command, *settings])
        deadline = time.monotonic() + 60
        while not self._answers():
            self._processes.check()
            assert time.monotonic() < deadline, self._processes.tail("postgres")
            time.sleep(0.05)

    def stop(self) -> None:
        """At once, cutting every connection: what was not committed is lost, as in a crash."""
        if "postgres" in self._processes.names():
            pid = self._processes.pid("postgres")
            os.kill(pid, signal.SIGQUIT)  # unlike SIGKILL it leaves no shared memory behind
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and not _ended(pid):
                time.sleep(0.02)
            self._processes.stop("postgres")

    def save(self) -> None:
        """Its files as they are, once it is stopped."""
        subprocess.run(["cp", "-a", self._data, self._data.with_name("saved")], check=True)

    def put_back(self) -> None:
        """What was saved, once it is stopped: as a standby that lagged, or a restored snapshot."""
        shutil.rmtree(self._data)
        self._data.with_name("saved").rename(self._data)

    def new_database(self, standby: Postgres | None = None) -> str:
        """Its URL, which also names the standby."""
        name = f"test{next(self._numbers)}"
        self._administer(f"CREATE DATABASE {name}")
        url = f"postgresql+psycopg://tuner@/{name}?host={self._socket}"
        if standby is None:
            return f"{url}&port={PORT}"
        both = f"{url},{standby._socket}&port={PORT},{PORT}"
        return f"{both}&target_session_attrs=read-write"

    def dump(self, url: str) -> str:
        """What pg_dump writes: it replaces what it finds when it is restored."""
        return self._client("pg_dump", url, "--clean", "--if-exists")

    def restore(self, url: str, dump: str) -> None:
        """While everybody stays connected."""
        self._client(
            "psql", url, "--quiet", "--set=ON_ERROR_STOP=1", "--single-transaction", given=dump
        )

    def _client(self, program: str, url: str, *options: str, given: str = "") -> str:
        target = url.replace("+psycopg", "")
        done = subprocess.run(
            [self._binaries / program, *options, target],
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self) -> None:
        self.stop()
        self._processes.close()

    def _answers(self) -> bool:
        try:
            self._administer("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _administer(self, statement: str) -> None:
        where = f"host={self._socket} port={PORT} user=tuner dbname=postgres connect_timeout=5"
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute(statement)


def _place() -> str:
    """Return the folder of temporary folders, with a short path: that of a socket has 108 bytes."""
    in_memory = IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free >= IN_MEMORY_BYTES
    return str(IN_MEMORY) if in_memory else "/tmp"


def _unprivileged_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise AssertionError("there is neither a user postgres nor nobody to run PostgreSQL as")


def _ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@contextmanager
def a_postgres(*, primary: Postgres | None = None) -> Iterator[Postgres]:
    """A server, or a standby of one. Skips the test where there is none, or fails it where there must be."""
    binaries = programs()
    if binaries is None:
        missing = "no initdb and postgres on this machine; on Debian: make postgres-packages"
        assert not os.environ.get(REQUIRED), missing
        pytest.skip(missing)
    server = Postgres(binaries, primary=primary)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with a_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    """An empty database."""
    return postgres.new_database()
