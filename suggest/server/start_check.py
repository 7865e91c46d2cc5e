"""`tuner serve --check`: check each requirement of a server separately, without starting it.

Changes nothing: creates no file, upgrades no schema, removes no stale socket.
A real start repeats all checks.
"""

from __future__ import annotations

import os
import sqlite3
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from suggest.address import Address, parse_address
from suggest.binding import refuse_taken
from suggest.errors import InvalidArgument, NotFound, StoreUnavailable, TunerError
from suggest.server.access.certificates import KeyPair
from suggest.server.access.protection import Protection, watched_tokens
from suggest.server.admin import schema_versions
from suggest.server.server_options import LimitsFile, ServerOptions, metrics_address
from suggest.storage.location import is_postgres, sqlite_path
from suggest.storage.schema import version
from suggest.storage.sqlite import translated
from suggest.storage.study_tables import SCHEMA
from suggest.url_redaction import redacted_url

_ANY_HOST = ("0.0.0.0", "::", "")
SOON_DAYS = 14


@dataclass(frozen=True, slots=True)
class StartFinding:
    """One finding.

    `problem` keeps the server from starting or clients from reaching it; None if all is well.
    """

    subject: str
    detail: str
    problem: TunerError | None = None


def look(
    address: str,
    storage_url: str,
    *,
    advertise: str,
    protection: Protection,
    options: ServerOptions,
) -> Iterator[StartFinding]:
    """Check a server's settings, yielding each finding as soon as it is known."""
    yield _judged("address", lambda: _address(address, protection))
    for port in options.katib:
        yield _judged("katib", partial(_katib, port, address, protection))
    if options.katib_checkpoints is not None:
        yield _judged("katib", lambda: _katib_checkpoints(options))
    if advertise:
        yield _judged(
            "advertise",
            lambda: f"clients of other servers are redirected to {parse_address(advertise)}",
        )
    yield _judged("storage", lambda: _storage(storage_url))
    if protection.tls_cert and protection.tls_key:
        cert, key = Path(protection.tls_cert), Path(protection.tls_key)
        client_ca = Path(protection.tls_client_ca) if protection.tls_client_ca else None
        yield _judged(
            "certificate", lambda: _certificate(cert, key, client_ca, advertise or address)
        )
    if protection.tokens:
        yield _judged(
            "tokens",
            lambda: f"{protection.tokens}: {len(watched_tokens(Path(protection.tokens)).value)}",
        )
    if options.limits:
        yield _judged("limits", lambda: _limits(str(options.limits)))
    if options.metrics_address:
        yield _judged("metrics", lambda: _metrics(options.metrics_address, address, protection))


def _judged(subject: str, judge: Callable[[], str]) -> StartFinding:
    try:
        return StartFinding(subject, judge())
    except TunerError as e:
        return StartFinding(subject, str(e), e)


def _address(text: str, protection: Protection) -> str:
    address = parse_address(text)
    protection.check(address)
    refuse_taken(address, clear=False)
    if address.path:
        open_to = "only its user"
    elif protection.tokens:
        open_to = "clients with a token"
    elif protection.tls_client_ca:
        open_to = "clients with a certificate"
    else:
        open_to = "everybody"
    return (
        f"{address} is free; open to "
        f"{open_to}{'' if address.path or protection.tls_cert else ', unencrypted'}"
    )


def _katib(port: int, served: str, protection: Protection) -> str:
    main = parse_address(served)
    address = Address(host=main.host or "127.0.0.1", port=port)
    protection.check(main, katib=True)
    if port and address == main:
        raise InvalidArgument.at(
            "katib", f"{address} is the address of the service; use another port"
        )
    refuse_taken(address)
    return f"{address} is free; Katib's clients need no token"


def _katib_checkpoints(options: ServerOptions) -> str:
    options.check_checkpoints()
    return f"checkpoints of pbt are in {options.katib_checkpoints}"


def _metrics(text: str, served: str, protection: Protection) -> str:
    address = metrics_address(text)
    protection.check(parse_address(served), address)
    if address.port and address == parse_address(served):
        raise InvalidArgument.at(
            "metrics-address", f"{address} is the address of the service; use another port"
        )
    refuse_taken(address)
    return f"{address} is free"


def _limits(path: str) -> str:
    return f"{path}: {len(LimitsFile(path).now().quotas)} namespaces with limits of their own"


# The store


def _storage(url: str) -> str:
    if is_postgres(url):
        try:
            current, newest = schema_versions(url)
        except NotFound:
            return f"{redacted_url(url)}: empty; the first start creates the tables"
        return f"{redacted_url(url)}: {_schema(current, newest)}"
    try:
        path = sqlite_path(url, make_folder=False).resolve()
        exists = path.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        cause = getattr(error, "strerror", "") or error
        raise StoreUnavailable(
            f"{url} cannot be reached: {cause}; give this user permission, or name another"
        ) from error
    if not exists:
        folder = _nearest(path.parent)
        if not folder.is_dir():
            raise StoreUnavailable(
                f"{folder} is not a directory, and {path} will be created; name another"
            )
        _must_be_writable(folder, f"{path} will be created")
        return f"{path}: does not exist; the first start creates it"
    _must_be_writable(path, "the store is written to")
    _must_be_writable(path.parent, "SQLite keeps files beside the store")
    found = version(_ReadOnly(path), SCHEMA)
    if found is None:
        return f"{path}: empty; the first start creates the tables"
    return f"{path}: {_schema(found, SCHEMA.newest)}"


def _schema(found: str, newest: str) -> str:
    if found == newest:
        return f"schema {found}, the newest"
    return (
        f"schema {found}; the first start upgrades it to {newest}, which older servers then refuse"
    )


def _nearest(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _must_be_writable(path: Path, purpose: str) -> None:
    needed = os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)
    if not os.access(path, needed):
        raise StoreUnavailable(
            f"{path} cannot be written to, and {purpose}; give this user write permission, or "
            f"name another"
        )


class _ReadOnly:
    """A `Readable` that opens a SQLite file in read-only mode."""

    def __init__(self, path: Path) -> None:
        self.place = str(path)
        self._path = path

    @contextmanager
    def reading(self, *, single: bool = False) -> Iterator[Connection]:
        # Without a log, no process has the database open. SQLite would create a log even for
        # reading, unless immutable.
        log = self._path.with_name(f"{self._path.name}-wal")
        how = "mode=ro" if log.exists() else "mode=ro&immutable=1"

        def connect() -> sqlite3.Connection:
            return sqlite3.connect(f"{self._path.as_uri()}?{how}", uri=True, timeout=1.0)

        engine = create_engine("sqlite+pysqlite://", creator=connect, poolclass=NullPool)
        with translated(self._path), engine.connect() as connection:
            yield connection


# The certificate


def _certificate(cert: Path, key: Path, client_ca: Path | None, address: str) -> str:
    """Check the certificate with a TLS handshake in this process: OpenSSL itself validates it."""
    KeyPair(cert, key, client_ca)
    names, expires = _served_certificate(cert, key)
    host = parse_address(address).host
    if host not in _ANY_HOST and not any(_covers(name, host) for name in names):
        raise InvalidArgument.at(
            str(cert),
            f"is for {', '.join(names) or 'no name'}, and clients that connect to {host} will "
            "refuse it; use one with that name (subjectAltName), or set --advertise to the name "
            "that they use",
        )
    days = (expires - datetime.now(UTC)).days
    clients = f"; clients show one by {client_ca}" if client_ca else ""
    soon = "; renew it: the server takes a new one without a restart" if days < SOON_DAYS else ""
    return f"{cert}: for {', '.join(names)}, until {expires:%Y-%m-%d} ({days} days){soon}{clients}"


def _served_certificate(cert: Path, key: Path) -> tuple[list[str], datetime]:
    """Return the names in the certificate and its expiry time."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(cert, key)
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    # trust the certificate without its issuer
    asking.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    asking.load_verify_locations(cert)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    client = asking.wrap_bio(to_client, to_server)
    try:
        for _ in range(4):
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as e:
        raise InvalidArgument.at(
            str(cert), f"{e.verify_message}; see: openssl x509 -in {cert} -text"
        ) from e
    certificate = client.getpeercert() or {}
    alternatives: list[tuple[str, str]] = list(certificate.get("subjectAltName", ()))  # type: ignore[arg-type]
    names = [value for kind, value in alternatives if kind in ("DNS", "IP Address")]
    return names, datetime.fromtimestamp(
        ssl.cert_time_to_seconds(str(certificate["notAfter"])), UTC
    )


def _covers(name: str, host: str) -> bool:
    name, host = name.lower(), host.lower()
    if name.startswith("*."):
        return host.partition(".")[2] == name[2:]
    return name == host
