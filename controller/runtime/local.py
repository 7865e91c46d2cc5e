"""Trials as processes of this machine, behind the experiment's supervisor (`controller.runtime.supervisor`).

This side only remembers what the supervisor tells and asks it again after either was killed; it starts, signals and
waits for no trial itself, and writes no file but the supervisor's log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from controller.model import FailureClass
from controller.runtime import gpus
from controller.runtime.connection import Message, SupervisorConnection
from controller.runtime.protocol import CannotStart, Exit, Launch, RuntimeLost, Sighting

_BOOT = "import sys; sys.path.append(sys.argv[1]); from controller.runtime.supervisor import main; main()"
_ROOT = Path(__file__).parents[2]
_GIVE_UP_S = 10.0
_LOG_POLL_S = 0.02
_LARGE_READ = 1 << 16
_RETRY_S = 0.02
_HANG_UP_S = 0.5
_TRIES = 3


class LocalRuntime:
    """Implements `controller.runtime.protocol.Runtime`. Nothing is started before the first call that needs it.

    experiment_dir: the experiment's own folder; must exist. One LocalRuntime at a time should act on it.
    """

    def __init__(self, experiment_dir: Path) -> None:
        self._folder = experiment_dir.resolve()
        self._connection: SupervisorConnection | None = None
        self._connecting = asyncio.Lock()
        self._shown: dict[str, Message] = {}
        self._sightings: dict[str, Sighting] = {}
        self._stops: dict[str, float] = {}  # when each is to be killed: a new supervisor must hear it again
        self._lent: dict[str, tuple[float, tuple[str, ...]]] = {}  # GPUs of attempts whose start is under way
        self._changed = asyncio.Event()
        self._log_seen: dict[str, int] = {}
        self._gpus: tuple[str, ...] | None = None

    async def start(self, launch: Launch) -> None:
        await self._connected()  # who holds which GPU is known only then
        if launch.name in self._shown:
            return
        env = {**os.environ, **launch.env}
        ids = self._lend(launch)
        if launch.gpu > 0:
            env[gpus.VARIABLE] = ",".join(ids)
        try:
            await self._ask(
                "start",
                name=launch.name,
                directory=str(launch.directory.absolute()),
                command=launch.command,
                env=env,
                folder=str(launch.working_directory.absolute()),
                timeout_s=launch.timeout_s,
                grace_s=launch.grace_s,
                gpu=launch.gpu,
                gpus=ids,
            )
        finally:
            self._lent.pop(launch.name, None)

    async def stop(self, name: str, *, grace_s: float) -> None:
        await self._connected()
        sighting = self._sightings.get(name)
        if sighting is None or sighting.exit is not None:
            return
        self._stops[name] = min(self._stops.get(name, float("inf")), time.monotonic() + grace_s)
        await self._ask("stop", name=name, grace_s=grace_s)

    async def remove(self, name: str) -> None:
        await self._ask("remove", name=name)
        for known in (self._shown, self._sightings, self._stops, self._log_seen):
            known.pop(name, None)

    async def observe(self) -> Mapping[str, Sighting]:
        await self._connected()
        self._changed.clear()
        return dict(self._sightings)

    async def read_log(self, name: str, offset: int, *, limit: int = 1 << 20) -> bytes:
        await self._connected()
        shown = self._shown.get(name)
        if shown is None:
            return b""
        path = Path(shown["directory"], "log.txt")
        size = _size(path)
        if min(size - offset, limit) > _LARGE_READ:
            data = await asyncio.to_thread(_read, path, offset, limit=limit)
        else:
            data = _read(path, offset, limit=limit) if size > offset else b""
        self._log_seen[name] = offset + len(data)
        return data

    async def wait(self, within_s: float, *, log_growth: bool) -> None:
        deadline = time.monotonic() + within_s
        while not self._changed.is_set():
            left = deadline - time.monotonic()
            if left <= 0 or (log_growth and self._a_log_has_grown()):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, _LOG_POLL_S) if log_growth else left):
                    await self._changed.wait()

    def slots(self, gpu: float) -> int | None:
        return gpus.slots(len(self._gpu_ids()), gpu) if gpu > 0 else None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.leave()

    # What the supervisor tells

    def _show(self, shown: Message) -> None:
        name = shown["name"]
        end = shown["exit"]
        self._shown[name] = shown
        self._sightings[name] = Sighting(
            name=name,
            start_time=datetime.fromtimestamp(shown["time"], UTC),
            exit=None if end is None else _exit(end),
        )
        if end is not None:
            self._stops.pop(name, None)
            self._changed.set()

    def _a_log_has_grown(self) -> bool:
        for name, sighting in self._sightings.items():
            if sighting.exit is None:
                size = _size(Path(self._shown[name]["directory"], "log.txt"))
                if size > self._log_seen.get(name, 0):
                    self._log_seen[name] = size  # told once; reading sets it back to what was read
                    return True
        return False

    # How the supervisor is reached

    async def _ask(self, do: str, **request: object) -> Message:
        """Ask until answered: every request may be repeated, also to the next supervisor.

        Raises:
            CannotStart: the answer was a refusal.
            RuntimeLost: no supervisor lives long enough to answer.
        """
        for _ in range(_TRIES):
            connection = await self._connected()
            try:
                reply = await connection.ask(do, request)
            except ConnectionError:
                continue
            if "refused" in reply:
                blame = FailureClass.INFRASTRUCTURE if reply["infrastructure"] else FailureClass.CONFIGURATION
                raise CannotStart(reply["refused"], blame)
            return reply
        raise self._unreachable("dies before it answers")

    async def _connected(self) -> SupervisorConnection:
        """The connection, with all it has to tell heard; made anew where it was lost."""
        async with self._connecting:
            if self._connection is None or self._connection.lost:
                self._connection = await self._reach()
            return self._connection

    async def _reach(self) -> SupervisorConnection:
        give_up_at = time.monotonic() + _GIVE_UP_S
        hang_up_at = time.monotonic() + _HANG_UP_S
        while time.monotonic() < give_up_at:
            pid, path = self._supervisor()
            with contextlib.suppress(OSError):  # nobody there, or somebody who is just going
                return await self._introduce(path)
            if await asyncio.to_thread(self._spawn):
                continue
            # One lives and is just coming, just going, or its socket was deleted under it.
            if pid and time.monotonic() >= hang_up_at:
                hang_up_at = give_up_at
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGHUP)
            await asyncio.sleep(_RETRY_S)
        raise self._unreachable("cannot be reached")

    async def _introduce(self, path: str) -> SupervisorConnection:
        """Hear of all attempts, and repeat what a predecessor may have taken to its grave. Raises OSError."""
        connection = await SupervisorConnection.open(path, show=self._show, lost=self._changed.set)
        self._shown.clear()
        self._sightings.clear()
        try:
            await connection.ask("list", {})
            for name, kill_at in list(self._stops.items()):
                await connection.ask("stop", {"name": name, "grace_s": max(0.0, kill_at - time.monotonic())})
        except BaseException:
            connection.abandon()
            raise
        return connection

    def _supervisor(self) -> tuple[int, str]:
        """The living supervisor's pid and socket, as it wrote them into its lock; the last one's if none lives."""
        try:
            written = json.loads((self._folder / "supervisor.lock").read_bytes())
            return written["pid"], written["socket"]
        except (OSError, ValueError):
            return 0, ""

    def _spawn(self) -> bool:
        """Whether a new supervisor is ready. False: another holds the lock, or it could not start."""
        arguments = ("-I", "-S", "-X", "utf8", "-c", _BOOT, str(_ROOT), str(self._folder))
        with (self._folder / "supervisor.log").open("ab") as log:
            started = subprocess.run(
                (sys.executable, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                check=False,
            )
        return started.stdout == b"ready\n"

    def _unreachable(self, what: str) -> RuntimeLost:
        return RuntimeLost(f"the supervisor of the trials {what}; see {self._folder / 'supervisor.log'}")

    # GPUs

    def _gpu_ids(self) -> tuple[str, ...]:
        if self._gpus is None:
            self._gpus = gpus.visible_gpus(os.environ)
        return self._gpus

    def _lend(self, launch: Launch) -> tuple[str, ...]:
        if launch.gpu == 0:
            return ()
        running = [self._shown[name] for name, sighting in self._sightings.items() if sighting.exit is None]
        in_use = [(shown["gpu"], shown["gpus"]) for shown in running] + list(self._lent.values())
        ids = gpus.assign(self._gpu_ids(), in_use, launch.gpu)
        if ids is None:
            message = f"no room for {launch.gpu:g} GPU: this machine lends {len(self._gpu_ids())}, the rest is in use"
            raise CannotStart(message, FailureClass.INFRASTRUCTURE)
        self._lent[launch.name] = (launch.gpu, ids)
        return ids


def _exit(end: Message) -> Exit:
    return Exit(
        time=datetime.fromtimestamp(end["time"], UTC),
        code=end.get("code"),
        signal=end.get("signal"),
        stopped=end["stopped"],
        timed_out=end["timed_out"],
        out_of_memory=end["out_of_memory"],
        unknown=end.get("unknown", False),
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, offset: int, *, limit: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            return file.read(limit) or b""
    except FileNotFoundError:
        return b""
