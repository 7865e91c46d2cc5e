"""Two controllers as processes of their own, on the small API server and a PostgreSQL of theirs.

Each reaches the API server and the database through a wire of its own, which a test can cut.
Leases are shorter than an installation's, so that tests wait for seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from controller.core.model import attempt_name
from controller.experiment_store import SqlExperimentStore
from controller.operator import leadership
from controller.operator.leadership import NAME
from controller.search import study_name
from controller.spec import from_document
from suggest.server.admin import open_store
from suggest.storage.postgres import PostgresDatabase
from tests.kube.fake_api import FakeApi
from tests.kube.fake_kubelet import Script
from tests.kube.operated import KIND, NAMESPACE, experiment
from tests.kube.small_cluster import eventually
from tests.postgres import PORT

Raw = dict[str, Any]
SOCKET = f".s.PGSQL.{PORT}"
_BACKLOG = 8
CONTROLLER_LEASE_S, RENEW_S, MARGIN_S, CALL_S, AWAY_S = 5.0, 0.5, 2.0, 2.0, 3.0
# Programs: with the times of an installation, and with those above.
REAL = "import sys; from controller.cli.main import main; sys.exit(main())"
BRISK = f"""
import sys
from controller.operator import experiments, leadership, manager, postgres, process

leadership.CONTROLLER_LEASE_S, leadership.MARGIN_S = {CONTROLLER_LEASE_S}, {MARGIN_S}
leadership.RENEW_S = process.RENEW_S = {RENEW_S}
postgres.CALL_S = {CALL_S}
experiments.AWAY_S = manager.AWAY_S = process.AWAY_S = {AWAY_S}
from controller.cli.main import main
sys.exit(main())
"""


class Wire:
    """Passes connections on to a server until `cut`: then nothing passes, and nobody is told.

    What was sent meanwhile arrives after `mend`, unless that is late_s later: then the kernel has
    broken its connection (TCP_USER_TIMEOUT).
    """

    def __init__(self, target: tuple[str, int] | str, late_s: float) -> None:
        """target: a port, or the path of a socket."""
        self.loses_commits = False  # each third is made, and its answer is lost
        self.commits_lost = 0
        self._commits = itertools.count(1)
        self._target = target
        self._late_s = late_s
        self._passes = asyncio.Event()
        self._passes.set()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._listening.setblocking(False)
        self._waiting: list[socket.socket] = []
        self._accepting = asyncio.create_task(self._accept())
        self._passing: set[asyncio.Task[None]] = set()
        self._ends: list[asyncio.StreamWriter] = []

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def cut(self, *, drops: bool = False) -> None:
        """drops: new connections get no answer either, instead of being accepted."""
        self._passes.clear()
        if not drops:
            return
        self._accepting.cancel()
        # While its queue is full, the kernel ignores whoever wants to connect.
        for _ in range(_BACKLOG + 2):
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(self._listening.getsockname())
            self._waiting.append(waiting)

    def mend(self) -> None:
        self._passes.set()
        while self._waiting:
            self._waiting.pop().close()
        if self._accepting.cancelling() or self._accepting.done():
            self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        self.mend()
        self._accepting.cancel()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(self._accepting, *self._passing, return_exceptions=True)
        self._listening.close()
        for end in self._ends:
            end.transport.abort()
            with contextlib.suppress(OSError):
                await end.wait_closed()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listening)
            self._begin(self._connect(connection))

    async def _connect(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        self._ends.append(writer)
        try:
            there, back = (
                await asyncio.open_unix_connection(self._target)
                if isinstance(self._target, str)
                else await asyncio.open_connection(*self._target)
            )
        except OSError:
            writer.close()
            return
        self._ends.append(back)
        lost = asyncio.Event()
        self._begin(self._pass(reader, back, asks=lost))
        self._begin(self._pass(there, writer, loses=lost))

    def _begin(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(doing)
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    def _loses(self, data: bytes) -> bool:
        return self.loses_commits and b"COMMIT" in data and next(self._commits) % 3 == 0

    async def _pass(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        *,
        asks: asyncio.Event | None = None,
        loses: asyncio.Event | None = None,
    ) -> None:
        """asks: set when an answer is to be lost; loses: then the connection ends instead."""
        with contextlib.suppress(OSError, TimeoutError):
            while data := await source.read(65536):
                if loses is not None and loses.is_set():
                    self.commits_lost += 1
                    break
                if asks is not None and self._loses(data):
                    asks.set()
                async with asyncio.timeout(self._late_s):
                    await self._passes.wait()
                target.write(data)
                await target.drain()
        target.close()


class Replica:
    """One controller, which may be started again after its end."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder / name
        self.databases: list[Wire] = []  # a wire to each host of the database
        self._api: Wire | None = None
        self._flags: list[str] = []
        self._process: asyncio.subprocess.Process | None = None

    @property
    def api(self) -> Wire:
        assert self._api is not None
        return self._api

    async def start(self, api: FakeApi, storage: str, program: str) -> None:
        """storage: the URL of the database; "": SQLite."""
        if self._api is None:
            late_s = leadership.MARGIN_S if program is REAL else MARGIN_S
            self._wire(api, storage, late_s)
        with (self.folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                program,
                "controller",
                "--log-format=json",
                *self._flags,
                stdout=log,
                stderr=log,
                env=os.environ
                | {"KUBECONFIG": str(self.folder / "kubeconfig"), "POD_NAME": self.name},
            )

    def _wire(self, api: FakeApi, storage: str, late_s: float) -> None:
        """Lead to the API server and to each host of the database by wires."""
        self.folder.mkdir()
        config = api.kubeconfig()
        cluster = config["clusters"][0]["cluster"]
        host, _, port = cluster["server"].removeprefix("http://").partition(":")
        self._api = Wire((host, int(port)), late_s)
        cluster["server"] = f"http://127.0.0.1:{self._api.port}"
        (self.folder / "kubeconfig").write_text(json.dumps(config))
        self._flags = [f"--state-dir={self.folder / 'state'}"]
        if not storage:
            return
        url = make_url(storage)
        hosts = str(url.query["host"]).split(",")
        self.databases = [Wire(f"{host}/{SOCKET}", late_s) for host in hosts]
        url = url.update_query_dict(
            {
                "host": ",".join("127.0.0.1" for _ in self.databases),
                "port": ",".join(f"{wire.port}" for wire in self.databases),
            }
        )
        self._flags.append(f"--storage={url.render_as_string(hide_password=False)}")

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    async def ended(self) -> None:
        assert self._process is not None
        await self._process.wait()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._api is not None:
            await self._api.close()
        for database in self.databases:
            await database.close()


class Replicas:
    """An API server, a database, and controllers."""

    def __init__(self, api: FakeApi, storage: str, folder: Path) -> None:
        self.api = api
        self.storage = storage
        self.replicas: list[Replica] = []
        self.started = Counter[str]()  # by the name of the Job
        self._folder = folder

    async def start(self, name: str, program: str = BRISK) -> Replica:
        replica = Replica(name, self._folder)
        await replica.start(self.api, self.storage, program)
        self.replicas.append(replica)
        return replica

    async def start_alone(self, program: str = BRISK) -> Replica:
        replica = await self.start("first", program)
        await self.until(lambda: self.holder == "first")
        return replica

    async def start_two(self, program: str = BRISK) -> tuple[Replica, Replica]:
        """Return the leader and the standby."""
        return await self.start_alone(program), await self.start("second", program)

    @property
    def holder(self) -> str:
        lease = self.api.find("leases", NAMESPACE, NAME) or {"spec": {}}
        return str(lease["spec"].get("holderIdentity") or "").partition("_")[0]

    @property
    def epoch(self) -> int:
        return int(self.api.get("leases", NAMESPACE, NAME)["spec"]["leaseTransitions"])

    def apply(self, names: Sequence[str], **spec: object) -> None:
        for name in names:
            self.api.put("experiments", experiment(name, **spec))

    def status(self, name: str) -> Raw:
        return dict(self.api.get("experiments", NAMESPACE, name).get("status") or {})

    def are(self, state: str, names: Sequence[str]) -> bool:
        return all(self.status(name).get("state") == state for name in names)

    async def until(self, condition: Callable[[], object], *, within_s: float = 60) -> None:
        try:
            await eventually(lambda: bool(condition()), within_s=within_s)
        except AssertionError:
            logs = "\n".join(f"{each.name}:\n{each.log[-6000:]}" for each in self.replicas)
            raise AssertionError(f"not within {within_s:g} s; {self.states()}\n{logs}") from None

    def states(self) -> dict[str, object]:
        resources = self.api.all("experiments", NAMESPACE)
        return {each["metadata"]["name"]: each.get("status") for each in resources}

    def assert_nothing_lost_or_twice(self, names: Sequence[str], trials: int) -> None:
        """Compare the Jobs that the API server was asked for with the store and with the studies,
        trial by trial: each has run once, and has its value.
        """
        assert set(self.started.values()) == {1}
        store = SqlExperimentStore(PostgresDatabase(self.storage), from_document)
        studies = open_store(self.storage)
        jobs = set[str]()
        for name in names:
            stored = store.experiment(NAMESPACE, name)
            assert stored is not None
            attempts = store.attempts(stored.uid)
            assert [(each.trial, each.number, each.state.value) for each in attempts] == [
                (number, 1, "succeeded") for number in range(trials)
            ]
            jobs |= {attempt_name(name, stored.uid, each.trial, each.number) for each in attempts}
            found = studies.trials(study_name(stored), states=(), client_id="", after=-1, limit=999)
            assert [(t.number, t.state.value, t.value) for t in found] == [
                (number, "succeeded", 0.5) for number in range(trials)
            ]
            assert self.status(name)["trials"] == {"succeeded": trials}
        studies.close()
        store.close()
        assert set(self.started) == jobs


@contextlib.asynccontextmanager
async def installed(
    storage: str, folder: Path, script: Script | Callable[[Raw], Script]
) -> AsyncIterator[Replicas]:
    """Yield an installation without a controller, whose pods follow the script.

    script: of all Jobs, or a function of the Job.
    """
    async with FakeApi() as api:
        api.define(*KIND)
        installation = Replicas(api, storage, folder)

        def plan(job: Raw) -> Script:
            installation.started[job["metadata"]["name"]] += 1
            return script if isinstance(script, Script) else script(job)

        api.kubelet.play(plan)
        try:
            yield installation
        finally:
            for replica in installation.replicas:
                await replica.close()
