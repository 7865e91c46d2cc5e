"""Katib's DBManager for the trials of one experiment on this machine: it appends reports to the
file of their attempt.

A process of its own, which outlives the controller: a report is in the file before it is answered.
It exits once the experiment has no supervisor. A trial that uses Katib's SDK asks for
`katib-db-manager.kubeflow`, a name in a cluster; the trial's environment names this process as the
proxy of gRPC, which then gets the connections to that name. Other connections are passed on. All
users of the machine can reach the port, so the proxy asks for the experiment's token.

Its end in the controller is `report_address`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import secrets
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import grpc
from google.protobuf.message import DecodeError

from controller.background_tasks import cancelled
from controller.core.model import REPORTED
from controller.runtime.local.collectors.collected import json_line
from controller.runtime.local.listening import SUPERVISOR_LOCK, private_socket
from controller.runtime.local.report_address import (
    LOCK,
    credentials,
    is_held,
    known_address,
    proxy_of,
)
from controller.runtime.trial_variables import DB_MANAGER_NAMES, place_below
from suggest.katib.v1beta1 import api_pb2 as pb

DB_MANAGER = DB_MANAGER_NAMES[-1]
METHOD = "ReportObservationLog"
SERVICE = "api.v1.beta1.DBManager"
MAX_REPORT = 16 << 20  # bytes
# Between two polls for the supervisor.
POLL_S = 0.5
# Polls without a supervisor that has not ended by itself: a controller starts another one.
IDLE_POLLS = 20
_HEAD_S = 10.0  # for the head of a connection
_PIECE = 1 << 16
_NUMBER = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf(?:inity)?)|nan", re.ASCII | re.IGNORECASE
)
_AUTHORIZATION = re.compile(r"\r\nProxy-Authorization:\s*Basic (\S+)\r\n", re.IGNORECASE)


def report_lines(report: pb.ObservationLog) -> Iterator[bytes]:
    """Yield a report as the lines of a collector.

    Values that were reported together are in one line: they follow each other with the same time
    stamp, and have different names. The cases in tests/fixtures/collectors/reports.json also hold
    for trial_image/collector/reports.go.
    """
    together: dict[str, float | str] = {}
    last = ""
    for entry in report.metric_logs:
        if not entry.metric.name:
            continue
        if together and (entry.time_stamp != last or entry.metric.name in together):
            yield json_line(together)
            together = {}
        last = entry.time_stamp
        together[entry.metric.name] = _number(entry.metric.value)
    if together:
        yield json_line(together)


def _number(text: str) -> float | str:
    return float(text) if _NUMBER.fullmatch(text.strip(" \t\r\n")) else text


class TrialReports:
    """The files that the experiment's trials report to. `folder` is the experiment's own."""

    def __init__(self, folder: Path) -> None:
        self._live = folder / "live"
        self._lock = threading.Lock()

    def append(self, trial: str, lines: Sequence[bytes]) -> bool:
        """Append to the file of the trial's newest attempt; False if the trial is not running.

        Raises OSError.
        """
        directory = self._attempt(trial)
        if directory is None:
            return False
        path = place_below(directory / "output", REPORTED.path)
        try:
            with self._lock:
                _append(path, b"".join(lines))
        except OSError as error:
            error.filename = str(path)
            raise
        return True

    def _attempt(self, trial: str) -> Path | None:
        of_trial = re.compile(rf"{re.escape(trial)}(?:-r(\d+))?")
        with contextlib.suppress(OSError):
            names = (of_trial.fullmatch(path.name) for path in self._live.iterdir())
            attempts = [(int(name[1] or 1), name[0]) for name in names if name]
            if attempts:
                return (self._live / max(attempts)[1]).readlink()
        return None


def _append(path: Path, data: bytes) -> None:
    """Append lines to a file. Raises OSError, and then a part of them may be in the file."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            # A full disk or a kill cut off the last line. It is ended, not removed:
            # it may have been read.
            data = b"\n" + data
        unwritten = memoryview(data)
        while unwritten:
            unwritten = unwritten[os.write(file, unwritten) :]
    finally:
        os.close(file)


class ReportHandler(grpc.GenericRpcHandler):
    """Serves the RPC by which trials report."""

    def __init__(self, reports: TrialReports) -> None:
        self._reports = reports

    # as grpc's own is typed
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if handler_call_details.method != f"/{SERVICE}/{METHOD}":
            return None  # UNIMPLEMENTED
        return grpc.unary_unary_rpc_method_handler(self._report)

    async def _report(self, raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        try:
            request = pb.ReportObservationLogRequest.FromString(raw)
        except DecodeError:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the message is not a ReportObservationLogRequest"
            )
        try:
            lines = list(report_lines(request.observation_log))
            is_running = await asyncio.to_thread(self._reports.append, request.trial_name, lines)
        except OSError as error:
            reason = (
                f"{error.filename}: the report cannot be stored: {error.strerror}; make it "
                f"writable, then report again"
            )
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        if not is_running:
            name = request.trial_name[:253]
            reason = (
                f"trial {name!r} is not running here; report under the name in KATIB_TRIAL_NAME"
            )
            await context.abort(grpc.StatusCode.NOT_FOUND, reason)
        return pb.ReportObservationLogReply().SerializeToString()


_Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class DbManager:
    """The gRPC server of one experiment's reports, at a socket that only this user can reach.

    The socket's folder may be emptied while trials run, as XDG_RUNTIME_DIR is at logout. Then the
    next connection makes it listen again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handler = ReportHandler(TrialReports(folder))
        self._path = Path()
        self._servers: list[grpc.aio.Server] = []  # earlier ones have connections
        self._connecting = asyncio.Lock()

    async def listen(self) -> None:
        """Raises OSError."""
        server = grpc.aio.server(
            options=[("grpc.max_receive_message_length", MAX_REPORT), ("grpc.so_reuseport", 0)]
        )
        server.add_generic_rpc_handlers((self._handler,))
        _, path = private_socket(
            str(self._folder),
            "-reports.sock",
            lambda path: server.add_insecure_port(f"unix:{path}"),
        )
        self._path = Path(path)
        await server.start()
        self._servers.append(server)

    async def connect(self) -> _Streams:
        """Raises OSError."""
        async with self._connecting:
            try:
                return await asyncio.open_unix_connection(self._path)
            except (FileNotFoundError, ConnectionRefusedError):
                await self.listen()
                return await asyncio.open_unix_connection(self._path)

    async def stop(self) -> None:
        for server in self._servers:
            await server.stop(1.0)
        self._path.unlink(missing_ok=True)


async def serve(folder: Path, lock: int) -> None:
    """Serve until the experiment has no supervisor.

    `lock` is the locked file that gets the port.
    """
    manager = DbManager(folder)
    await manager.listen()
    # The port and the token of an earlier server, which running trials know.
    before = known_address(folder)
    token = secrets.token_hex(16) if before is None else before.token
    forward = partial(_connected, manager, token)
    try:
        listener = await asyncio.start_server(
            forward, "127.0.0.1", 0 if before is None else before.port
        )
    except OSError:
        listener = await asyncio.start_server(forward, "127.0.0.1", 0)
    document = json.dumps(
        {"pid": os.getpid(), "port": listener.sockets[0].getsockname()[1], "token": token}
    ).encode()
    os.pwrite(lock, document, 0)
    os.ftruncate(lock, len(document))
    os.write(1, b"ready\n")
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    idle_polls = 0
    while idle_polls < IDLE_POLLS:
        await asyncio.sleep(POLL_S)
        if is_held(folder / SUPERVISOR_LOCK):
            idle_polls = 0
        elif _is_expected(folder):
            idle_polls += 1
        else:
            break
    listener.close()
    await manager.stop()


def _is_expected(folder: Path) -> bool:
    """Return whether another supervisor may follow: a killed one leaves its socket behind."""
    try:
        return Path(json.loads((folder / SUPERVISOR_LOCK).read_bytes())["socket"]).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False


# Connections


_BAD_HEAD = (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError)


async def _connected(
    manager: DbManager, token: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Serve a connection that asks a proxy for a host."""
    with contextlib.closing(writer), contextlib.suppress(*_BAD_HEAD):
        async with asyncio.timeout(_HEAD_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, _, target = head.partition(" ")
            authorization = _AUTHORIZATION.search(head)
            sent = b"" if authorization is None else authorization[1].encode("latin-1")
            allowed = secrets.compare_digest(sent, credentials(token).encode())
            if method != "CONNECT" or not allowed:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                return
            streams = await _opened(manager, target.split(" ", 1)[0], writer)
        await _pass_on((reader, writer), streams)


async def _opened(manager: DbManager, target: str, writer: asyncio.StreamWriter) -> _Streams:
    """Answer `CONNECT target`, and return the connection to that host."""
    host, _, port = target.rpartition(":")
    host = host.strip("[]")
    try:
        if host.partition(".")[0] == DB_MANAGER:  # in whatever namespace
            streams = await manager.connect()
        elif proxy := proxy_of(os.environ):
            return await _through(proxy, target)  # which answers
        else:
            streams = await asyncio.open_connection(host, int(port))
    except (OSError, ValueError):
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
        raise ConnectionError from None
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    return streams


async def _through(proxy: str, target: str) -> _Streams:
    """Ask the environment's own proxy for a connection. Raises OSError, ValueError."""
    url = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    streams = await asyncio.open_connection(url.hostname or "", url.port or 80)
    user = unquote(url.netloc.rpartition("@")[0])
    allowed = f"Proxy-Authorization: Basic {b64encode(user.encode()).decode()}\r\n" if user else ""
    streams[1].write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{allowed}\r\n".encode())
    return streams


async def _pass_on(client: _Streams, server: _Streams) -> None:
    """Copy both directions until one of them ends."""
    with contextlib.closing(server[1]):
        ways = [
            asyncio.create_task(_copy(client[0], server[1])),
            asyncio.create_task(_copy(server[0], client[1])),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        await cancelled(*ways)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()


def main() -> None:
    """Detach and serve. The argument is the experiment's folder.

    Prints "ready", or "held" if another server runs.
    """
    folder = Path(sys.argv[-1])
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.fork():
        os._exit(0)  # the server is not the controller's child, so it leaves no zombie
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.write(1, b"held\n")
        os._exit(0)
    os.chdir("/")
    asyncio.run(serve(folder, lock))
