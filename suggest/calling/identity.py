"""How a client shows who it is and knows whom it talks to: its token, and the authorities that it trusts.

A token goes with each call, in the clear at most to this machine, and to no socket: that asks for none. It is in no
message, log or repr. gRPC is imported when a channel is made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from suggest.address import parse_address
from suggest.errors import InvalidArgument, Problem

if TYPE_CHECKING:
    import grpc

TOKEN, TOKEN_FILE, TLS_CA = "TUNER_TOKEN", "TUNER_TOKEN_FILE", "TUNER_TLS_CA"
SYSTEM = "system"  # instead of a file: whatever authorities this machine trusts

_Metadata = tuple[tuple[str, str], ...]


class Identity:
    """What is None is looked up in the environment; "" is none.

    `token` goes before `token_file`, which is read when first needed, and again when it has changed. `tls_ca`: PEM, or
    `system`; "": no TLS. A socket gets neither.
    """

    def __init__(self, token: str | None = None, token_file: str | None = None, tls_ca: str | None = None) -> None:
        here: Mapping[str, str] = os.environ
        if token is None and token_file is None:
            token, token_file = here.get(TOKEN), here.get(TOKEN_FILE)
        self._token = token or ""
        self._file = Path(token_file) if token_file and not token else None
        self._seen: object = None  # what the file looked like when it was read
        self._metadata: _Metadata = ()
        self._tls_ca = here.get(TLS_CA, "") if tls_ca is None else tls_ca

    def metadata(self, address: str) -> _Metadata:
        """For a call to the address, to which `check` has nothing to say."""
        if address.startswith("unix:"):
            return ()
        if self._file is not None:
            self._look()
        elif self._token and not self._metadata:
            self._metadata = _bearer(self._token, TOKEN)
        return self._metadata

    def check(self, address: str) -> None:
        """Raises InvalidArgument: there is no token where one should be, or it would go there in the clear."""
        parsed = parse_address(address)
        if self.metadata(str(parsed)) and not (self._tls_ca or parsed.private):
            message = (
                f"the token would go to {parsed} in the clear; name the server's authority in {TLS_CA} "
                f"(--tls-ca FILE, or {SYSTEM} for those that this machine trusts)"
            )
            raise InvalidArgument([Problem("", message)])

    def credentials(self, address: str) -> grpc.ChannelCredentials | None:
        """For a channel to the address; None: in the clear. Raises InvalidArgument."""
        import grpc

        self.check(address)
        if not self._tls_ca or address.startswith("unix:"):
            return None
        if self._tls_ca == SYSTEM:
            return grpc.ssl_channel_credentials()
        try:
            authorities = Path(self._tls_ca).read_bytes()
        except OSError as e:
            raise InvalidArgument([Problem(self._tls_ca, f"cannot be read: {e.strerror}; see {TLS_CA}")]) from e
        if b"-----BEGIN CERTIFICATE-----" not in authorities:
            raise InvalidArgument([Problem(self._tls_ca, "has no certificate in it; name a file in PEM")])
        return grpc.ssl_channel_credentials(authorities)

    def _look(self) -> None:
        """Read the token's file, if it has changed. While it is gone or empty, the token stays as it was."""
        assert self._file is not None
        try:
            found = self._file.stat()
            looks = (found.st_mtime_ns, found.st_size, found.st_ino)
            if looks == self._seen:
                return
            metadata = _bearer(self._file.read_text(encoding="ascii", errors="replace"), str(self._file))
        except OSError as e:
            if self._metadata:
                return
            raise InvalidArgument([Problem(str(self._file), f"cannot be read: {e.strerror}; see {TOKEN_FILE}")]) from e
        except InvalidArgument:
            if self._metadata:
                return
            raise
        self._seen, self._metadata = looks, metadata


def _bearer(token: str, place: str) -> _Metadata:
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        # Without a word of it: it may be a secret all the same.
        raise InvalidArgument([Problem(place, "has no token in it: one line, without blanks, in plain ASCII")])
    return (("authorization", f"Bearer {token}"),)
