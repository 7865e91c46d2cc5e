"""The server's certificate and key, and the CA of client certificates if clients need them. Changed
files are reloaded.

A connection keeps the certificate with which it was established; new connections get the new one,
without a restart.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suggest.errors import InvalidArgument
from suggest.server.access.file_reloader import FileReloader

if TYPE_CHECKING:
    import grpc


class KeyPair:
    """A certificate and its key in PEM files.

    `certificate` may contain intermediate certificates after the server's own.
    `client_ca` contains the CAs of clients; if it is given, every client needs
    a certificate. The constructor raises InvalidArgument.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._paths = certificate, key
        self._client_ca = client_ca
        paths = self._paths if client_ca is None else (*self._paths, client_ca)
        self._watched: FileReloader[tuple[bytes, bytes, bytes | None]] = FileReloader(
            paths, self._checked
        )

    def look(self) -> bool:
        """Reload the files if they have changed; see `FileReloader`."""
        return self._watched.look()

    def context(self) -> ssl.SSLContext:
        """Return a context for one connection of Python's ssl module.

        It does not ask for a client certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._paths, password=lambda: "")
        return context

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a port; gRPC asks for the newest pair at each new connection."""
        # Here, because other checks of the files need no gRPC.
        import grpc

        current = self._watched.value

        def configuration() -> grpc.ServerCertificateConfiguration:
            certificate, key, authorities = current
            return grpc.ssl_server_certificate_configuration([(key, certificate)], authorities)

        def newer() -> grpc.ServerCertificateConfiguration | None:
            """Return None if nothing has changed. gRPC calls this in its own threads."""
            nonlocal current
            newest = self._watched.value
            if newest is current:
                return None
            current = newest
            return configuration()

        # types-grpcio does not know that the fetcher may return nothing, which gRPC documents.
        fetcher: Callable[[], grpc.ServerCertificateConfiguration] = newer  # type: ignore[assignment]
        return grpc.dynamic_ssl_server_credentials(
            configuration(), fetcher, require_client_authentication=self._client_ca is not None
        )

    def _checked(self, contents: Sequence[bytes]) -> tuple[bytes, bytes, bytes | None]:
        """Check the files with OpenSSL, which reads files only.

        If they change meanwhile, `FileReloader` notices.
        """
        certificate, key = self._paths
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # never asks on the terminal
            context.load_cert_chain(certificate, key, password=lambda: "")
        except (ssl.SSLError, OSError, ValueError) as e:
            is_mismatch = isinstance(e, ssl.SSLError) and e.reason == "KEY_VALUES_MISMATCH"
            problem = (
                "the key does not belong to the certificate"
                if is_mismatch
                else "one of them is not plain PEM"
            )
            message = (
                f"cannot be used together: {problem}; see: openssl x509 -in {certificate} "
                f"-noout -text"
            )
            raise InvalidArgument.at(f"{certificate} and {key}", message) from e
        _refuse_readable(key)
        if self._client_ca is None:
            return contents[0], contents[1], None
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self._client_ca)
        except (ssl.SSLError, OSError, ValueError) as e:
            message = "has no certificate in it; name a PEM file with the CAs of the clients"
            raise InvalidArgument.at(str(self._client_ca), message) from e
        return contents[0], contents[1], contents[2]


def _refuse_readable(key: Path) -> None:
    """Raise InvalidArgument if other users can read the key.

    The process's own group may read it, as with a Kubernetes secret (fsGroup).
    """
    status = key.stat()
    groups = {os.getegid(), *os.getgroups()}
    open_to = ""
    if status.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        open_to = "everybody"
    elif status.st_mode & (stat.S_IRGRP | stat.S_IWGRP) and status.st_gid not in groups:
        open_to = f"the group {status.st_gid}, which is not this process's,"
    if open_to:
        message = (
            f"the mode {stat.S_IMODE(status.st_mode):04o} lets {open_to} read the key; see: chmod "
            f"600 {key} (for a secret in Kubernetes: defaultMode: 0440, and an fsGroup)"
        )
        raise InvalidArgument.at(str(key), message)
