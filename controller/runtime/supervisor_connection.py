"""The controller's end of the socket to an experiment's supervisor: finding or starting one, and talking with it.

Knows the form of messages (numbered requests, answers, news in between), not their meaning. A lost connection stays
lost; who needs another reaches again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from controller.runtime.forked_python import placeholder
from controller.runtime.protocol import RuntimeLost

Message: TypeAlias = dict[str, Any]  # JSON; both ends of the socket are in this folder

_LINE_LIMIT = 1 << 28  # a list of 100,000 attempts fits
_LEAVE_S = 5.0
_BOOT = "import sys; sys.path.append(sys.argv[1]); from controller.runtime.supervisor import main; main()"
_BOOT_TO_FORK = _BOOT.replace("sys.path.append(sys.argv[1])", "sys.path[0] = sys.argv[1]")  # not the current folder
_ROOT = Path(__file__).parents[2]
_GIVE_UP_S = 10.0
_HANG_UP_S = 0.5  # longer than a supervisor takes to come or go
_RETRY_S = 0.02
_TRIES = 3


class SupervisorConnection:
    """`open` one; `lost` once the other end is gone. Each attempt that any message carries is shown, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, show: Callable[[Message], None],
                 lost: Callable[[], None]) -> None:  # fmt: skip
        self.lost = False
        self._reader = reader
        self._writer = writer
        self._show = show
        self._tell_lost = lost
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(
        cls, path: str, *, show: Callable[[Message], None], lost: Callable[[], None]
    ) -> SupervisorConnection:
        """Raises OSError if nobody listens at the path."""
        reader, writer = await asyncio.open_unix_connection(path, limit=_LINE_LIMIT)
        return cls(reader, writer, show=show, lost=lost)

    async def ask(self, do: str, request: Mapping[str, object]) -> Message:
        """Raises ConnectionError if the other end goes away first: whether it heard is not known."""
        if self.lost:
            raise ConnectionResetError
        number = next(self._numbers)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._writer.write(json.dumps({"id": number, "do": do, **request}).encode() + b"\n")
        return await answer

    async def leave(self) -> None:
        """Say good-bye. If that ends the supervisor, return when it has ended."""
        try:
            async with asyncio.timeout(_LEAVE_S):
                if (await self.ask("leave", {}))["last"]:
                    await self._listening
        except (ConnectionError, TimeoutError):
            pass
        self.abandon()

    def abandon(self) -> None:
        """Let go without a word, as a crash would."""
        self._listening.cancel()
        self._writer.transport.abort()

    async def _listen(self) -> None:
        try:
            while line := await self._reader.readline():
                message: Message = json.loads(line)
                # Shown here, not by who asked: the next line may already tell of its end.
                for attempt in message.get("attempts", ()):
                    self._show(attempt)
                answer = self._answers.pop(message.get("id", 0), None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
        except ConnectionError:
            pass
        finally:
            self.lost = True
            self._writer.transport.abort()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ConnectionResetError())
            self._tell_lost()


async def reach(
    folder: Path, introduce: Callable[[str], Awaitable[SupervisorConnection]], *, module: str = ""
) -> SupervisorConnection:
    """The living supervisor of the experiment in this folder, or a new one.

    introduce: connects to a socket's path and says and hears what must be first; may raise OSError. module: what a new
    one imports, to fork it for trials that run it.

    Raises:
        RuntimeLost: none can be started, or the one that lives does not answer.
    """
    give_up_at = time.monotonic() + _GIVE_UP_S
    hang_up_at = time.monotonic() + _HANG_UP_S
    failures = 0
    while time.monotonic() < give_up_at:
        pid, path = _written_in_the_lock(folder)
        with contextlib.suppress(OSError):  # nobody there, or somebody who is just going
            return await introduce(path)
        match await asyncio.to_thread(_spawn, folder, module):
            case b"ready\n":
                continue
            case b"held\n":  # one lives, and is just coming or going, or its socket was deleted under it
                if pid and time.monotonic() >= hang_up_at:
                    hang_up_at = give_up_at
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGHUP)
            case _:
                failures += 1
                if failures == _TRIES:
                    raise unreachable(folder, "does not start")
        await asyncio.sleep(_RETRY_S)
    raise unreachable(folder, "cannot be reached")


def unreachable(folder: Path, what: str) -> RuntimeLost:
    return RuntimeLost(f"the supervisor of the trials {what}; see {folder / 'supervisor.log'}")


def _written_in_the_lock(folder: Path) -> tuple[int, str]:
    """The living supervisor's pid and socket; the last one's if none lives."""
    try:
        written = json.loads((folder / "supervisor.lock").read_bytes())
        return written["pid"], written["socket"]
    except (OSError, ValueError):
        return 0, ""


def _spawn(folder: Path, module: str) -> bytes:
    """What the new supervisor says for itself; it has left our process group and is not our child."""
    # Trials that are forked from it inherit its flags: they need an interpreter such as their command would start.
    flags = ("-c", _BOOT_TO_FORK) if module else ("-I", "-S", "-X", "utf8", "-c", _BOOT)
    arguments = (*flags, str(_ROOT), module, str(folder))
    try:
        with (folder / "supervisor.log").open("ab") as log:
            started = subprocess.run(
                (sys.executable, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                check=False,
                env={**os.environ, **placeholder()} if module else None,
            )
    except OSError as error:
        raise RuntimeLost(f"cannot start the supervisor of the trials: {error}") from error
    return started.stdout
