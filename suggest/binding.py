"""Binds a gRPC server to an address that no other process uses,
and imports gRPC without its log output.

All peculiarities of gRPC and the operating system about addresses are here;
nothing about the service.
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


def bind(
    server: grpc.aio.Server, address: Address, credentials: grpc.ServerCredentials | None
) -> Address:
    """Bind the server, without TLS if there are no credentials, and return its address.

    Refuses an address in use.
    """
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
    # Do not use umask, because it affects the whole process:
    # a child started in another thread would inherit it.
    Path(address.path).chmod(0o600)
    return address


def refuse_taken(address: Address, *, clear: bool = True) -> None:
    """Raise Unavailable if the address is in use. `clear` removes the socket of a dead server.

    gRPC's own error names neither the reason nor a cure, and gRPC would replace a live socket.
    """
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
            f"cannot listen at {address}: {e.strerror or e}; use another port, or end the process "
            f"that uses it"
        ) from e


def _refuse_taken_socket(path: Path, *, clear: bool) -> None:
    """Remove a socket file without a listener, which a killed server leaves behind."""
    if path.parent.is_dir() and _shared(path.parent):
        raise Unavailable(
            f"cannot listen at unix:{path}: any user could replace the socket; use a folder of "
            f"your own"
        )
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise Unavailable(
                f"cannot listen at unix:{path}: there is no folder {path.parent}; create it first"
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
            raise Unavailable(
                f"cannot listen at unix:{path}: another server already does; use it, or stop it"
            )


def _shared(folder: Path) -> bool:
    """Return whether any user may replace files in the folder.

    In /tmp, users cannot replace files of others.
    """
    rights = folder.stat().st_mode
    return bool(rights & stat.S_IWOTH) and not rights & stat.S_ISVTX


def import_grpc_quietly() -> None:
    """Import gRPC without its log output about forks and failed connections.

    This program reports what matters. gRPC reads these variables once, when it is imported. The
    environment that trials inherit does not change.
    """
    wanted = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
    added = {key: value for key, value in wanted.items() if key not in os.environ}
    os.environ.update(added)
    try:
        import grpc  # noqa: F401
    finally:
        for key in added:
            del os.environ[key]
