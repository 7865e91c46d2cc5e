"""Protection of a server: the operator's settings, and the rules
that refuse a server that is open by mistake.

Only its user can reach a socket, so it needs no token. A network address needs tokens,
even on loopback. A server that is open to everybody, or unencrypted beyond this
machine, needs the flag `--insecure`.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from suggest.address import Address
from suggest.errors import InvalidArgument, Unauthenticated
from suggest.server.access.authorization import Authorizer, TokenReader
from suggest.server.access.caller import AccessVerb, Grant, Rights
from suggest.server.access.certificates import KeyPair
from suggest.server.access.file_reloader import FileReloader
from suggest.server.access.tokens import Tokens, read_tokens

log = logging.getLogger(__name__)

RECHECK_S = 1.0  # how long it may take until a changed file is reloaded


@dataclass(frozen=True, slots=True)
class Protection:
    """Settings as given by the flags of `tuner serve`. The files are paths, or "" for none.

    authenticator: knows the callers, instead of the file of tokens.
    """

    insecure: bool = False
    tokens: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    authenticator: TokenReader | None = None

    def check(
        self, address: Address, metrics: Address | None = None, *, katib: bool = False
    ) -> None:
        """Check the protection of a server at `address`, with metrics at `metrics`.

        The server may also have ports for Katib's clients.

        Raises:
            InvalidArgument: the server would be more open than its operator may think.
        """
        if katib and not (address.private or self.insecure or self.tls_client_ca):
            raise InvalidArgument.at(
                "katib",
                f"Katib's clients send no token, so anyone who reaches {address.host} could use "
                "its studies; listen at a loopback address, require certificates with "
                "--tls-client-ca, or accept everyone with --insecure",
            )
        if self.tls_client_ca and not self.tls_cert:
            raise InvalidArgument.at(
                "tls-client-ca",
                "requires --tls-cert and --tls-key, because clients present theirs over TLS only",
            )
        if metrics is not None and not (metrics.private or self.insecure or self.tls_cert):
            raise InvalidArgument.at(
                "metrics-address",
                f"anyone who reaches {metrics} could read the metrics unencrypted; listen at a "
                "loopback address, add --tls-cert and --tls-key, or accept everyone with "
                "--insecure",
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            present, absent = ("cert", "key") if self.tls_cert else ("key", "cert")
            raise InvalidArgument.at(f"tls-{absent}", f"is required with --tls-{present}")
        if address.path:
            if self.tokens or self.tls_cert:
                raise InvalidArgument.at(
                    "address",
                    f"{address} is a socket that only its user can reach, without a token; "
                    "omit --tokens and --tls-cert, or listen at HOST:PORT",
                )
            return
        if self.insecure or self.tls_client_ca:
            return
        if not self.tokens and self.authenticator is None:
            raise InvalidArgument.at(
                "tokens",
                f"anyone who reaches {address} could do everything; name those who may with "
                "--tokens FILE, or with --tls-client-ca FILE, accept everyone with --insecure, or "
                "use unix:PATH, which only its user can reach",
            )
        if not (self.tls_cert or address.private):
            raise InvalidArgument.at(
                "tls-cert",
                f"tokens would be sent to {address} unencrypted; add --tls-cert and --tls-key, "
                "or --insecure if the network is protected otherwise",
            )


class LoadedProtection:
    """The contents of the files of a `Protection`. The constructor raises InvalidArgument."""

    def __init__(self, protection: Protection) -> None:
        self.authorizer: Authorizer | None = None  # None if every caller may do everything
        self.pair: KeyPair | None = None  # None without TLS
        self.certified = bool(protection.tls_client_ca)  # whether clients have certificates
        self._watched: list[KeyPair | FileReloader[Tokens]] = []
        self._tokens: FileReloader[Tokens] | None = None
        if protection.tokens:
            self._tokens = watched_tokens(Path(protection.tokens))
            self.authorizer = Authorizer(_TokenFile(self._tokens))
            self._watched.append(self._tokens)
        if protection.authenticator is not None:
            self.authorizer = Authorizer(protection.authenticator)
        if protection.tls_cert:
            client_ca = Path(protection.tls_client_ca) if protection.tls_client_ca else None
            self.pair = KeyPair(Path(protection.tls_cert), Path(protection.tls_key), client_ca)
            self._watched.append(self.pair)

    def verbs_of(self, token: str) -> frozenset[str] | None:
        """Return the names of the verbs that the token permits; None if it is unknown.

        Without tokens, all.
        """
        if self._tokens is None:
            return frozenset(verb.value for verb in AccessVerb)
        grant = self._tokens.value.grant(token)
        return None if grant is None else frozenset(verb.value for verb in grant.verbs)

    @property
    def change(self) -> bool:
        """Whether there are files that may change."""
        return bool(self._watched)

    def look(self) -> None:
        """Reload the files that have changed. Blocking."""
        for watched in self._watched:
            watched.look()


class _TokenFile:
    """The `TokenReader` of a token file."""

    def __init__(self, tokens: FileReloader[Tokens]) -> None:
        self._tokens = tokens

    async def rights_of(self, token: str) -> Rights:
        grant: Grant | None = self._tokens.value.grant(token)
        if grant is None:
            raise Unauthenticated("unknown or revoked token; ask the server's operator for one")
        return grant


def watched_tokens(path: Path) -> FileReloader[Tokens]:
    """Return a reloader of the token file. Raises InvalidArgument."""

    def read(contents: Sequence[bytes]) -> Tokens:
        tokens = read_tokens(contents[0], place=str(path))
        rights = path.stat().st_mode
        if rights & stat.S_IWOTH:
            raise InvalidArgument.at(
                str(path),
                f"any user can write to it and grant themselves access; see: chmod o-w {path}",
            )
        if tokens.plain and rights & (stat.S_IRGRP | stat.S_IROTH):
            log.warning(
                "file=%s: contains tokens in plain text and is readable by others than its owner; "
                "see: chmod 600 %s, or store their sha256 instead",
                path,
                path,
            )
        return tokens

    return FileReloader((path,), read)
