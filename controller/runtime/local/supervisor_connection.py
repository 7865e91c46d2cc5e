"""The controller's connection to an experiment's supervisor: find or start a supervisor, and
exchange messages with it.

This module knows the format of messages (numbered requests, answers, unrequested messages), not
their meaning. A lost connection stays lost; a caller that needs a new one calls `reach` again.
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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from controller.core.attempt import RuntimeLost
from controller.runtime.local.listening import SUPERVISOR_LOCK

Message: TypeAlias = dict[str, Any]  # JSON; both ends of the socket are in this folder

_LINE_LIMIT = 1 << 28  # a list of 100,000 attempts fits
# An answer usually takes milliseconds, but requests wait while a start opens the trial's folder and
# program, which takes seconds on a cold disk or a slow NFS server. After a timeout the request is
# repeated, and nothing is lost.
ANSWER_S = 20.0
# three requests in a row fail before a run ends that a user has interrupted twice
HURRIED_ANSWER_S = 4.0
_SLICE_S = 1.0
_LEAVE_S = 5.0
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from controller.runtime.local.supervisor "
    "import main; main()"
)
# replaces the empty path
_BOOT_TO_FORK = _BOOT.replace("sys.path.append(sys.argv[1])", "sys.path[0] = sys.argv[1]")
_ROOT = Path(__file__).parents[3]
_GIVE_UP_S = 10.0
_HANG_UP_S = 0.5  # longer than a supervisor takes to start or exit
_RETRY_S = 0.02
_TRIES = 3


class SupervisorConnection:
    """A connection to the supervisor of the experiment in `folder`, created by `open`.

    `show` is called with every attempt of every message, in order,
    and `lost` once the other end is gone.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        folder: Path,
        answer_s: float,
        show: Callable[[Message], None],
        lost: Callable[[], None],
    ) -> None:
        self.lost = False
        self._folder = folder
        self.answer_s = answer_s
        self._reader = reader
        self._writer = writer
        self._show = show
        self._tell_lost = lost
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(
        cls,
        path: str,
        *,
        folder: Path,
        answer_s: float,
        show: Callable[[Message], None],
        lost: Callable[[], None],
    ) -> SupervisorConnection:
        """Connect to the socket at `path`. Raises OSError if no supervisor listens there.

        `answer_s` limits the wait for each answer, to the second.
        """
        reader, writer = await asyncio.open_unix_connection(path, limit=_LINE_LIMIT)
        return cls(reader, writer, folder=folder, answer_s=answer_s, show=show, lost=lost)

    async def ask(self, do: str, request: Mapping[str, object]) -> Message:
        """Send a request and return the answer.

        Raises:
            ConnectionError: The supervisor exited before answering; it is unknown whether it got
            the request.
            RuntimeLost: It does not answer, for example because it is suspended. It may still
                execute the request, so this connection is lost: what is known of the attempts may
                be outdated.
        """
        if self.lost:
            raise ConnectionResetError
        number = next(self._numbers)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._writer.write(json.dumps({"id": number, "do": do, **request}).encode() + b"\n")
        try:
            # In slices: if this process was suspended or busy itself, one expires before it can
            # read the answer. The limit may be lowered in the meantime.
            waited_s = 0.0
            while waited_s < self.answer_s and not answer.done():
                await asyncio.wait([answer], timeout=_SLICE_S)
                waited_s += _SLICE_S
        finally:
            self._answers.pop(number, None)
        if answer.done():
            return answer.result()
        self.abandon()
        pid, _path = _written_in_the_lock(self._folder)
        raise RuntimeLost(
            f"the supervisor of the trials (process {pid}) has not answered for {waited_s:g} s; if "
            f"it is suspended, continue it with: kill -CONT {pid}"
        )

    async def leave(self) -> None:
        """Announce that this client disconnects.

        If that ends the supervisor, return when it has ended.
        """
        try:
            async with asyncio.timeout(_LEAVE_S):
                if (await self.ask("leave", {}))["last"]:
                    await self._listening
        except (ConnectionError, TimeoutError, RuntimeLost):
            pass
        self.abandon()

    def abandon(self) -> None:
        """Close the connection without a message, as a crash would."""
        self.lost = True
        self._listening.cancel()
        self._writer.transport.abort()

    async def _listen(self) -> None:
        try:
            while line := await self._reader.readline():
                message: Message = json.loads(line)
                # Not left to the caller of `ask`, because the next line may already
                # report the attempt's end.
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
    folder: Path, introduce: Callable[[str], Awaitable[SupervisorConnection]], *, module: str
) -> SupervisorConnection:
    """Connect to the running supervisor of the experiment in this folder, or to a new one.

    Args:
        introduce: Connects to a socket's path and exchanges the first messages; may raise OSError.
        module: A module that a new supervisor imports, to fork it for trials that run it.

    Raises:
        RuntimeLost: No supervisor can be started, or the running one does not answer.
    """
    give_up_at = time.monotonic() + _GIVE_UP_S
    hang_up_at = time.monotonic() + _HANG_UP_S
    failures = 0
    while time.monotonic() < give_up_at:
        pid, path = _written_in_the_lock(folder)
        with contextlib.suppress(OSError):  # no supervisor, or one that is exiting
            return await introduce(path)
        match await asyncio.to_thread(_spawn, folder, module):
            case b"ready\n":
                continue
            case b"held\n":  # one is running, but is starting or exiting, or its socket was deleted
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


def unreachable(folder: Path, problem: str) -> RuntimeLost:
    return RuntimeLost(f"the supervisor of the trials {problem}; see {folder / 'supervisor.log'}")


def _written_in_the_lock(folder: Path) -> tuple[int, str]:
    """Return the pid and socket of the running supervisor, or of the last one if none runs."""
    try:
        document = json.loads((folder / SUPERVISOR_LOCK).read_bytes())
        return document["pid"], document["socket"]
    except (OSError, ValueError):
        return 0, ""


def _spawn(folder: Path, module: str) -> bytes:
    """Start a supervisor and return its first output."""
    # Forked trials inherit the supervisor's flags, so it needs the interpreter
    # that their command would start.
    flags = ("-c", _BOOT_TO_FORK) if module else ("-I", "-S", "-X", "utf8", "-c", _BOOT)
    log = folder / "supervisor.log"
    return detached_output(
        (*flags, str(_ROOT), module, str(folder)), log=log, what="the supervisor of the trials"
    )


def detached_output(arguments: Sequence[str], *, log: Path, what: str) -> bytes:
    """Run a Python program that leaves a server behind, and return its output. Raises RuntimeLost.

    The server leaves this process group and is not a child process. Its stderr goes to `log`.
    """
    try:
        with log.open("ab") as stderr:
            started = subprocess.run(
                (sys.executable, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                check=False,
            )
    except OSError as error:
        raise RuntimeLost(f"cannot start {what}: {error}") from error
    return started.stdout
