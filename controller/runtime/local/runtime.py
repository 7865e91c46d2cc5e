"""Run trials as processes of this machine, through the experiment's supervisor
(`controller.runtime.local.supervisor`).

This module keeps what the supervisor reports, and asks again after either process was killed. It
does not start, signal or wait for trials itself, and writes no file except the supervisor's log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from controller.boot_time import since_boot_s
from controller.core.attempt import AttemptStatus, Exit, RuntimeLost
from controller.core.model import Collection, FailureClass, KatibReports
from controller.runtime import log_file, processes
from controller.runtime.launch import CREDENTIALS
from controller.runtime.local import collectors, gpu_claims, gpus, ranks
from controller.runtime.local.collectors import Collector
from controller.runtime.local.report_address import keep_serving, report_variables
from controller.runtime.local.supervisor_connection import (
    ANSWER_S,
    HURRIED_ANSWER_S,
    Message,
    SupervisorConnection,
    reach,
    unreachable,
)
from controller.runtime.protocol import CannotStart, Conclusion, Launch

_LOG_POLL_S = 0.02
_TRIES = 3


class LocalRuntime:
    """Implements `controller.runtime.protocol.Runtime`.

    Starts no supervisor before the first call that needs one.

    Args:
        experiment_dir: The experiment's own folder, which must exist. Only one LocalRuntime at a
            time may use it.
        devices: The GPUs that the experiment's trials may use; none means all that this machine
            offers.
        collection: What to collect while a trial runs, if its measurements are not in its log.
        module: A Python module that the supervisor imports, and forks for trials whose command is
            `python -m` and its name.
        answer_s: How long to wait for each answer of the supervisor.
    """

    def __init__(
        self,
        experiment_dir: Path,
        *,
        devices: Sequence[str] = (),
        collection: Collection | None = None,
        module: str = "",
        answer_s: float = ANSWER_S,
    ) -> None:
        self._folder = experiment_dir.resolve()
        self._connection: SupervisorConnection | None = None
        self._connecting = asyncio.Lock()
        self._messages: dict[str, Message] = {}
        self._statuses: dict[str, AttemptStatus] = {}
        # when each is to be killed, to be repeated to a new supervisor
        self._stops: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._running_logs: dict[str, Path] = {}  # the logs of running attempts
        self._log_seen: dict[str, int] = {}
        self._devices = devices
        self._collection = collection
        self._collectors: dict[str, Collector] = {}
        self._module = module
        self._answer_s = answer_s
        self._pool: tuple[gpus.Device, ...] | None = None

    @property
    def shows_at_once(self) -> bool:
        return True

    async def start(self, launch: Launch) -> None:
        await self._connected()  # only then are earlier starts known
        if launch.name in self._messages:
            return
        env = {**os.environ, **launch.env}
        for name in CREDENTIALS:
            if name not in launch.env:
                env.pop(name, None)
        if launch.gpu > 0:
            if self.slots(launch.gpu, launch.workers) == 0:
                raise CannotStart(
                    f"it asks for more GPUs ({launch.gpu:g}) than this machine offers"
                )
            if any("waiting" not in message for message in self._messages.values()):
                raise RuntimeLost(
                    "trials of an older tuner are running, which claims no GPUs; continue when "
                    "they have ended"
                )
            # makes CUDA and nvidia-smi use the same indices
            env.setdefault(gpus.ORDER, "PCI_BUS_ID")
        if self._collection is not None:
            try:
                env |= collectors.prepare(self._collection, launch.directory.absolute())
                if self._takes_reports and "grpc_proxy" not in launch.env:
                    env |= await report_variables(self._folder, env)
            except OSError as error:
                problem = f"cannot create {error.filename}: {error.strerror}"
                raise CannotStart(problem, FailureClass.INFRASTRUCTURE) from error
        if launch.workers > 1:
            env |= ranks.world(launch, env, cores=processes.cores())
            if ranks.PORT not in launch.env:
                # inherited by this process; the workers' leader finds a free port
                env.pop(ranks.PORT, None)
        await self._ask(
            "start",
            name=launch.name,
            directory=str(launch.directory.absolute()),
            command=launch.command,
            env=env,
            folder=str(launch.working_directory.absolute()),
            timeout_s=launch.timeout_s,
            grace_s=launch.grace_s,
            log_limit=launch.log_limit_bytes,
            gpu=launch.gpu,
            gpus=[],
            devices=[(device.key, device.id) for device in self._gpu_pool()]
            if launch.gpu > 0
            else [],
            claims=gpu_claims.folder_for(os.environ),
            slots=launch.slots,
            workers=ranks.workers(launch) if launch.workers > 1 else [],
        )

    async def stop(self, name: str, *, grace_s: float) -> None:
        await self._connected()
        status = self._statuses.get(name)
        if status is None or status.exit is not None:
            return
        self._stops[name] = min(self._stops.get(name, float("inf")), time.monotonic() + grace_s)
        reply = await self._ask("stop", name=name, grace_s=grace_s)
        if not reply["existed"]:
            self._drop(name)

    async def remove(self, name: str) -> None:
        await self._ask("remove", name=name)
        self._drop(name)

    def _drop(self, name: str) -> None:
        for table in (
            self._messages,
            self._statuses,
            self._running_logs,
            self._stops,
            self._log_seen,
        ):
            table.pop(name, None)
        if (collector := self._collectors.pop(name, None)) is not None:
            collector.close()

    async def reconcile(self) -> None:
        # The supervisor does what is due without being asked, except this.
        if self._takes_reports and any(status.exit is None for status in self._statuses.values()):
            await keep_serving(self._folder)

    @property
    def _takes_reports(self) -> bool:
        return self._collection is not None and isinstance(self._collection.source, KatibReports)

    async def observe(self) -> Mapping[str, AttemptStatus]:
        await self._connected()
        self._changed.clear()
        return dict(self._statuses)

    async def read_log(self, name: str, offset: int, *, limit: int = 1 << 20) -> bytes:
        await self._connected()
        message = self._messages.get(name)
        if message is None:
            return b""
        path = Path(message["directory"], "log.txt")
        data = await log_file.read(path, offset, limit)
        self._log_seen[name] = offset + len(data)
        return data

    async def read_metrics(self, name: str, offset: int, *, limit: int = 1 << 20) -> bytes:
        await self._connected()
        message = self._messages.get(name)
        if message is None or message["time"] is None or self._collection is None:
            return b""
        directory = Path(message["directory"])
        try:
            collector = self._collectors.get(name)
            if collector is None:
                collector = self._collectors[name] = collectors.collector_of(
                    self._collection, directory
                )
            if message["exit"] is None:
                collector.begin()
            else:
                collector.finish()
            await asyncio.to_thread(collector.collect, offset + limit)
        except FileNotFoundError:
            return b""  # someone has deleted the attempt's folder; like a missing log
        except OSError as error:
            raise RuntimeLost(f"cannot write in {directory}: {error.strerror}") from error
        return await log_file.read(directory / collectors.COLLECTED_FILE, offset, limit)

    async def wait(self, within_s: float, *, log_growth: bool) -> None:
        # A single timer that reschedules itself costs a fifth of one wait per check.
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None

        def look_again() -> None:
            nonlocal timer
            self._look_for_log_growth()
            timer = loop.call_later(_LOG_POLL_S, look_again)

        if log_growth:
            look_again()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def answer(self, name: str, answers: str) -> None:
        pass  # they ask at the controller's socket

    def now(self) -> datetime:
        for message in self._messages.values():
            # That of an older tuner lacks it.
            if message["exit"] is None and "since_boot_s" in message:
                since_start_s = since_boot_s() - message["since_boot_s"]
                return datetime.fromtimestamp(message["time"] + since_start_s, UTC)
        return datetime.now(UTC)

    def wake(self) -> None:
        self._changed.set()

    def slots(self, gpu: float, workers: int) -> int | None:
        return gpus.slots(len(self._gpu_pool()), gpu) // workers if gpu > 0 else None

    async def conclude(self, conclusion: Conclusion) -> None:
        pass  # only controllers that have the database reach the supervisor

    def hurry(self) -> None:
        self._answer_s = min(self._answer_s, HURRIED_ANSWER_S)
        if self._connection is not None:
            self._connection.answer_s = self._answer_s

    async def close(self) -> None:
        for collector in self._collectors.values():
            collector.close()
        self._collectors.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.leave()

    # Reports of the supervisor

    def _show(self, message: Message) -> None:
        name = message["name"]
        end = message["exit"]
        previous = self._messages.get(name, message)
        keys = ("time", "waiting")
        changes_itself = any(previous.get(key) != message.get(key) for key in keys)
        self._messages[name] = message
        began = message["time"]
        self._statuses[name] = AttemptStatus(
            name=name,
            start_time=None if began is None else datetime.fromtimestamp(began, UTC),
            exit=None if end is None else _exit(end, message["directory"]),
            waiting=message.get("waiting", ""),
        )
        if changes_itself:
            self._changed.set()
        if end is None:
            if message["time"] is not None:
                self._running_logs[name] = Path(message["directory"], "log.txt")
        else:
            self._running_logs.pop(name, None)
            self._stops.pop(name, None)
            self._changed.set()

    def _look_for_log_growth(self) -> None:
        for name, path in self._running_logs.items():
            size = log_file.size(path)
            if size > self._log_seen.get(name, 0):
                self._log_seen[name] = size  # reported once; reading resets it to the size read
                self._changed.set()
            if (collector := self._collectors.get(name)) is not None and collector.grew():
                self._changed.set()

    # Connecting to the supervisor

    async def _ask(self, do: str, **request: object) -> Message:
        """Send a request until it is answered.

        Every request may be repeated, also to the next supervisor.

        Raises:
            CannotStart: The supervisor refused to start the attempt.
            RuntimeLost: Each supervisor exits before it answers, or one does not answer.
        """
        for _ in range(_TRIES):
            connection = await self._connected()
            try:
                reply = await connection.ask(do, request)
            except ConnectionError:
                continue
            if "refused" in reply:
                blame = FailureClass.CONFIGURATION
                if reply["infrastructure"]:
                    blame = FailureClass.INFRASTRUCTURE
                raise CannotStart(reply["refused"], blame)
            return reply
        raise unreachable(self._folder, "ends before it answers")

    async def _connected(self) -> SupervisorConnection:
        """Return the connection with all its messages received; connect again if it was lost."""
        async with self._connecting:
            if self._connection is None or self._connection.lost:
                self._connection = await reach(self._folder, self._synchronize, module=self._module)
            return self._connection

    async def _synchronize(self, path: str) -> SupervisorConnection:
        """Get the state of all attempts; repeat requests that a killed supervisor may have lost.

        Raises OSError.
        """
        connection = await SupervisorConnection.open(
            path,
            folder=self._folder,
            answer_s=self._answer_s,
            show=self._show,
            lost=self._changed.set,
        )
        for table in (self._messages, self._statuses, self._running_logs):
            table.clear()
        try:
            await connection.ask("list", {})
            for name, kill_at in list(self._stops.items()):
                await connection.ask(
                    "stop", {"name": name, "grace_s": max(0.0, kill_at - time.monotonic())}
                )
        except BaseException:
            connection.abandon()
            raise
        return connection

    # GPUs

    def _gpu_pool(self) -> tuple[gpus.Device, ...]:
        if self._pool is None:
            self._pool = gpus.pool(os.environ, self._devices)
        return self._pool


def _exit(end: Message, folder: str) -> Exit:
    if (cause := ranks.cause_of(end)) is not None:
        failure_class, reason = cause
        return Exit(
            datetime.fromtimestamp(end["time"], UTC), failure_class=failure_class, reason=reason
        )
    refused = end.get("refused")
    blame = FailureClass.INFRASTRUCTURE if end.get("infrastructure") else FailureClass.CONFIGURATION
    return Exit(
        time=datetime.fromtimestamp(end["time"], UTC),
        code=end.get("code"),
        signal=end.get("signal"),
        stopped=end["stopped"],
        timed_out=end["timed_out"],
        out_of_memory=end["out_of_memory"],
        full_disk=folder if _disk_is_full(folder) else "",
        unknown=end.get("unknown", False),
        failure_class=None if refused is None else blame,
        reason=refused or ranks.why_infeasible(end),
    )


def _disk_is_full(folder: str) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    # A file system without a number of files has no limit of them.
    return free == 0 or (disk.f_files > 0 and disk.f_favail == 0)
