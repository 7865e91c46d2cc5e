"""Binds a gRPC server to an address that no other process uses, and imports gRPC without its log output.

Everything peculiar to gRPC and the operating system about addresses is here; nothing about the service.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from suggest.address import Address
from suggest.errors import Unavailable

if TYPE_CHECKING:
    import grpc


def bind(server: grpc.aio.Server, address: Address, credentials: grpc.ServerCredentials | None) -> Address:
    """Where it listens then, without TLS if there are no credentials. Nothing else may listen there already."""
    refuse_taken(address)
    try:
        if credentials is None:
            port = server.add_insecure_port(str(address))
        else:
            port = server.add_secure_port(str(address), credentials)
    except RuntimeError as e:
        raise Unavailable(f"cannot listen at {address}: {e}") from e
    if not address.path:
        return Address(host=address.host, port=port)
    # Not by umask, which is the whole process's: a child started meanwhile in another thread would keep it.
    Path(address.path).chmod(0o600)
    return address


def refuse_taken(address: Address, *, clear: bool = True) -> None:
    """`clear`: a dead server's socket is removed.

    gRPC's own complaint would name neither the reason nor a cure; and it would take a live socket's name away."""
    if address.path:
        _refuse_taken_socket(Path(address.path), clear=clear)
        return
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except OSError as e:
        raise Unavailable(
            f"cannot listen at {address}: {e.strerror or e}; use another port, or end the process that uses it"
        ) from e


def _refuse_taken_socket(path: Path, *, clear: bool) -> None:
    """A socket file without a listener is what a killed server leaves behind: it is removed."""
    if path.parent.is_dir() and _shared(path.parent):
        raise Unavailable(f"cannot listen at unix:{path}: any user could replace the socket; use a folder of your own")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise Unavailable(
                f"cannot listen at unix:{path}: there is no folder {path.parent}; make it first"
            ) from None
        return
    if not stat.S_ISSOCK(mode):
        raise Unavailable(f"cannot listen at unix:{path}: another file is there; use another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            if clear:
                path.unlink(missing_ok=True)
        except OSError as e:
            raise Unavailable(f"cannot listen at unix:{path}: {e.strerror}") from e
        else:
            raise Unavailable(f"cannot listen at unix:{path}: another server does already; use it, or stop it")


def _shared(folder: Path) -> bool:
    """Whether anybody may replace what lies there. In /tmp and the like nobody may replace another's."""
    rights = folder.stat().st_mode
    return bool(rights & stat.S_IWOTH) and not rights & stat.S_ISVTX


def import_grpc_quietly() -> None:
    """gRPC's core writes to stderr about forks and failed connections: ours to say, where it matters to people.

    It reads these once, when imported; the environment that trials inherit stays as it was.
    """
    wanted = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
    added = {key: value for key, value in wanted.items() if key not in os.environ}
    os.environ.update(added)
    try:
        import grpc  # noqa: F401
    finally:
        for key in added:
            del os.environ[key]
