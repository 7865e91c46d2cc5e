"""A client's token, its own certificate, and the certificate authorities it trusts.

A token is sent with each call; unencrypted only to this machine, and never
to a socket, which does not need one. The token never appears in messages,
logs or a repr. gRPC is imported when a channel is created.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from suggest.address import parse_address
from suggest.errors import InvalidArgument
from suggest.lazy_module import LazyModule

if TYPE_CHECKING:
    import grpc
else:
    grpc = LazyModule("grpc")

TOKEN, TOKEN_FILE, TLS_CA = "TUNER_TOKEN", "TUNER_TOKEN_FILE", "TUNER_TLS_CA"
TLS_CERT, TLS_KEY = "TUNER_TLS_CERT", "TUNER_TLS_KEY"
SYSTEM = "system"  # instead of a file: the certificate authorities that this machine trusts

_Metadata = tuple[tuple[str, str], ...]


class ClientCredentials:
    """Credentials of a client.

    An argument that is None is read from the environment; "" means none.

    Args:
        token: The token; takes precedence over `token_file`.
        token_file: The file with the token, read when first needed and again when it has changed.
        tls_ca: A PEM file with the trusted certificate authorities, or `system`. "" means no TLS.
        tls_cert: A PEM file with the client's own certificate, for servers that require one.
        tls_key: A PEM file with the key of that certificate.

    None of these is used with a socket.
    """

    def __init__(
        self,
        token: str | None,
        token_file: str | None,
        tls_ca: str | None,
        tls_cert: str | None,
        tls_key: str | None,
    ) -> None:
        environment: Mapping[str, str] = os.environ
        if token is None and token_file is None:
            token, token_file = environment.get(TOKEN), environment.get(TOKEN_FILE)
        self._token = token or ""
        self._file = Path(token_file) if token_file and not token else None
        self._seen: object = None  # the file's time, size and inode when it was last read
        self._metadata: _Metadata = ()
        self._tls_ca = environment.get(TLS_CA, "") if tls_ca is None else tls_ca
        if tls_cert is None and tls_key is None:
            tls_cert, tls_key = environment.get(TLS_CERT), environment.get(TLS_KEY)
        self._tls_cert, self._tls_key = tls_cert or "", tls_key or ""

    def metadata(self, address: str) -> _Metadata:
        """Return the metadata of a call to the address, for which `check` must have passed."""
        if address.startswith("unix:"):
            return ()
        if self._file is not None:
            self._look()
        elif self._token and not self._metadata:
            self._metadata = _bearer(self._token, TOKEN)
        return self._metadata

    def check(self, address: str) -> None:
        """Check the credentials for calls to the address.

        Raises:
            InvalidArgument: a file has no token, a setting is missing, or the token would be sent
            unencrypted.
        """
        parsed = parse_address(address)
        if bool(self._tls_cert) != bool(self._tls_key):
            present, absent = (TLS_CERT, TLS_KEY) if self._tls_cert else (TLS_KEY, TLS_CERT)
            raise InvalidArgument.at(
                "", f"{present} is set without {absent}; name the other half too"
            )
        if self._tls_cert and not self._tls_ca and not parsed.path:
            message = (
                f"a client certificate needs TLS; name the server's CA in {TLS_CA} (--tls-ca FILE)"
            )
            raise InvalidArgument.at("", message)
        if self.metadata(str(parsed)) and not (self._tls_ca or parsed.private):
            message = (
                f"the token would be sent to {parsed} unencrypted; name the server's CA in "
                f"{TLS_CA} (--tls-ca FILE, or {SYSTEM} for the CAs that this machine trusts)"
            )
            raise InvalidArgument.at("", message)

    def credentials(self, address: str) -> grpc.ChannelCredentials | None:
        """Return the credentials of a channel to the address, None without TLS.

        Raises InvalidArgument.
        """
        self.check(address)
        if not self._tls_ca or address.startswith("unix:"):
            return None
        authorities = None if self._tls_ca == SYSTEM else _pem(self._tls_ca, TLS_CA, "CERTIFICATE")
        if not self._tls_cert:
            return grpc.ssl_channel_credentials(authorities)
        certificate = _pem(self._tls_cert, TLS_CERT, "CERTIFICATE")
        return grpc.ssl_channel_credentials(
            authorities, _pem(self._tls_key, TLS_KEY, "PRIVATE KEY"), certificate
        )

    def version(self) -> object:
        """Return a value that changes with the client's certificate on disk.

        A channel keeps the certificate with which it was opened.
        """
        if not self._tls_cert:
            return None
        try:
            return tuple(
                (f.st_mtime_ns, f.st_size, f.st_ino)
                for f in map(os.stat, (self._tls_cert, self._tls_key))
            )
        except OSError:
            return None

    def _look(self) -> None:
        """Reload the token file if it has changed.

        While the file is missing or empty, keep the last token.
        """
        assert self._file is not None
        try:
            status = self._file.stat()
            looks = (status.st_mtime_ns, status.st_size, status.st_ino)
            if looks == self._seen:
                return
            metadata = _bearer(
                self._file.read_text(encoding="ascii", errors="replace"), str(self._file)
            )
        except OSError as e:
            if self._metadata:
                return
            raise InvalidArgument.at(
                str(self._file), f"cannot be read: {e.strerror}; see {TOKEN_FILE}"
            ) from e
        except InvalidArgument:
            if self._metadata:
                return
            raise
        self._seen, self._metadata = looks, metadata


def _pem(path: str, variable: str, kind: str) -> bytes:
    try:
        content = Path(path).read_bytes()
    except OSError as e:
        raise InvalidArgument.at(path, f"cannot be read: {e.strerror}; see {variable}") from e
    if f"{kind}-----".encode() not in content:
        raise InvalidArgument.at(path, f"has no {kind.lower()} in it; name a PEM file")
    return content


def _bearer(token: str, place: str) -> _Metadata:
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        # Do not show the value: it may be a secret all the same.
        raise InvalidArgument.at(
            place, "has no token in it; write one line of ASCII without spaces"
        )
    return (("authorization", f"Bearer {token}"),)
