"""The server's certificate and key: read, checked to belong together, and given to gRPC anew when they have changed.

A connection keeps the certificate that it was made with; the next one gets the new one. Nothing is restarted.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from suggest.access.watched import Watched
from suggest.errors import InvalidArgument, Problem

if TYPE_CHECKING:
    import grpc


class KeyPair:
    """`certificate`: PEM, with those between it and the authority after it. Raises InvalidArgument."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._paths = certificate, key
        self._watched: Watched[tuple[bytes, bytes]] = Watched(self._paths, self._checked)

    def look(self) -> bool:
        """Reads the files again if they have changed: see `Watched`."""
        return self._watched.look()

    def credentials(self) -> grpc.ServerCredentials:
        """For a port; gRPC asks for the newest pair at each new connection."""
        import grpc

        given = self._watched.value

        def configuration() -> grpc.ServerCertificateConfiguration:
            certificate, key = given
            return grpc.ssl_server_certificate_configuration([(key, certificate)])

        def newer() -> grpc.ServerCertificateConfiguration | None:
            """None: as before. Called in gRPC's own threads."""
            nonlocal given
            newest = self._watched.value
            if newest is given:
                return None
            given = newest
            return configuration()

        # types-grpcio does not know that the fetcher may return nothing, which gRPC documents.
        fetcher: Callable[[], grpc.ServerCertificateConfiguration] = newer  # type: ignore[assignment]
        return grpc.dynamic_ssl_server_credentials(configuration(), fetcher)

    def _checked(self, contents: Sequence[bytes]) -> tuple[bytes, bytes]:
        """By OpenSSL, from the files: it takes no bytes. Should they change meanwhile, `Watched` sees it."""
        certificate, key = self._paths
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(certificate, key, password=lambda: "")  # never asks on the terminal
        except (ssl.SSLError, OSError, ValueError) as e:
            why = "the key does not belong to the certificate" if _mismatch(e) else "one of them is no (plain) PEM"
            message = f"cannot be used together: {why}; see: openssl x509 -in {certificate} -noout -text"
            raise InvalidArgument([Problem(f"{certificate} and {key}", message)]) from e
        return contents[0], contents[1]


def _mismatch(error: Exception) -> bool:
    return isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH"
