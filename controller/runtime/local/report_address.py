"""Where trials report by Katib's API. On this machine:
finds or starts the experiment's `report_server`.

A program finds Katib's DBManager under the name that it has with Katib: in a pod by /etc/hosts, on
this machine by the variables that make the server the proxy of gRPC.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import time
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from controller.core.attempt import RuntimeLost
from controller.runtime.local.supervisor_connection import detached_output

LOCK = "reports.lock"
_LOG = "reports.log"
_USER = "trial"
_ROOT = Path(__file__).parents[3]
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); from controller.runtime.local.report_server "
    "import main; main()"
)
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # in gRPC's order
_NO_PROXY = ("no_grpc_proxy", "no_proxy")
_HERE = "localhost,127.0.0.1,::1"
_GIVE_UP_S = 20.0
_RETRY_S = 0.05


async def report_variables(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a trial that reports by Katib's API. Raises RuntimeLost."""
    server = await _reach(folder)
    beside = next((environ[name] for name in _NO_PROXY if environ.get(name)), "")
    return {
        "grpc_proxy": f"http://{_USER}:{server.token}@127.0.0.1:{server.port}",
        "no_grpc_proxy": ",".join(filter(None, (beside, _HERE))),
    }


def proxy_of(environ: Mapping[str, str]) -> str:
    """Return the proxy that gRPC would use; "" for none."""
    return next((environ[name] for name in _PROXIES if environ.get(name)), "")


async def keep_serving(folder: Path) -> None:
    """Replace a server that was killed, for trials that run: it gets the same address.

    Raises RuntimeLost.
    """
    if not is_held(folder / LOCK):
        await _reach(folder)


class ReportAddress(NamedTuple):
    """The port of a server, and the token that it asks for."""

    port: int
    token: str


def credentials(token: str) -> str:
    """Return what a client of the proxy sends, by HTTP's Basic authentication."""
    return b64encode(f"{_USER}:{token}".encode()).decode()


def known_address(folder: Path) -> ReportAddress | None:
    """Return the address of the running server, or of the last one; None if there was none."""
    try:
        document = json.loads((folder / LOCK).read_bytes())
        return ReportAddress(int(document["port"]), str(document["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_held(lock: Path) -> bool:
    """Return whether a process holds the lock."""
    try:
        file = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


async def _reach(folder: Path) -> ReportAddress:
    """Return the address of the running server, or of a new one."""
    give_up_at = time.monotonic() + _GIVE_UP_S
    while time.monotonic() < give_up_at:
        if (
            (is_held(folder / LOCK) or await asyncio.to_thread(_spawn, folder) == b"ready\n")
            and (address := known_address(folder))
            and await _listens(address)
        ):
            return address
        await asyncio.sleep(_RETRY_S)
    raise RuntimeLost(f"the server for the reports of trials does not start; see {folder / _LOG}")


async def _listens(address: ReportAddress) -> bool:
    """Return whether the port accepts connections.

    The lock is held a moment before, and a moment after.
    """
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", address.port)
    except OSError:
        return False
    writer.close()
    return True


def _spawn(folder: Path) -> bytes:
    """Start a server and return its first output."""
    arguments = ("-P", "-c", _BOOT, str(_ROOT), str(folder))
    return detached_output(
        arguments, log=folder / _LOG, what="the server for the reports of trials"
    )
