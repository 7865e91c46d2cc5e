"""The suggestion service that a verb talks to: its own, on a private socket in this event loop, or a running one.

A service is named by a string, kept with the experiment: "" (the state directory's store), a storage URL, an address.
Reading through one's own service disturbs nobody: only writing takes ownership of a study.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from controller.cli.home import Home
from suggest.client import AsyncClient
from suggest.errors import FailedPrecondition, StoreBroken
from suggest.study import Study, StudyName, StudySpec
from suggest.trial import NO_LABELS


class SessionClient(AsyncClient):
    """Remembers the seed of the study that it last made or got: provenance names it, and only the service knows it."""

    seed: int | None = None

    async def create_study(
        self, name: StudyName, spec: StudySpec, *, request_id: str, labels: Mapping[str, str] = NO_LABELS
    ) -> Study:
        study = await super().create_study(name, spec, request_id=request_id, labels=labels)
        self.seed = study.seed
        return study

    async def get_study(self, name: StudyName) -> Study:
        study = await super().get_study(name)
        self.seed = study.seed
        return study


def asked_for(arguments: argparse.Namespace) -> str:
    """The service that the flags name; "" if they name none. Kept with the experiment: it means the same anywhere."""
    if arguments.server:
        return ",".join(map(_absolute, arguments.server.split(",")))
    url: str = arguments.storage or ""
    prefix = "sqlite:///"
    if url.startswith(prefix) and url not in (prefix, f"{prefix}:memory:"):
        return prefix + str(Path(url.removeprefix(prefix)).expanduser().absolute())
    return url


def _absolute(address: str) -> str:
    path = address.strip().removeprefix("unix:")
    return path if path == address.strip() else f"unix:{Path(path).absolute()}"


def same_service(recorded: str, asked: str, name: str) -> str:
    """The service of an experiment that exists. Raises FailedPrecondition: another one was asked for."""
    if not asked or asked == recorded:
        return recorded
    if not _shares_an_address(recorded, asked):
        raise FailedPrecondition(
            f"the trials of {name} are in the {_described(recorded)}, not in the {_described(asked)}; "
            "leave the flag away, or choose another name for a new experiment"
        )
    return asked


def _shares_an_address(recorded: str, asked: str) -> bool:
    """Servers on one database: another one of them was named."""
    return "://" not in recorded + asked and not set(recorded.split(",")).isdisjoint(asked.split(","))


def without_password(url: str) -> str:
    """As people may see it."""
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", re.sub(r"([?&]password=)[^&]*", r"\1***", url))


def _described(service: str) -> str:
    if not service:
        return "state directory's own store"
    if "://" in service:
        return f"store {without_password(service)}"
    return f"service at {service}"


@dataclass(frozen=True, slots=True)
class Access:
    """To a running service, by the flags; what is None, the environment says. Not kept with the experiment."""

    token_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Access:
        return cls(arguments.token_file, arguments.tls_ca, arguments.tls_cert, arguments.tls_key)


@asynccontextmanager
async def connected(service: str, home: Home, access: Access) -> AsyncIterator[SessionClient]:
    """A client of the service, which is started if it is an embedded one, and stopped again."""
    if service and "://" not in service:
        client = SessionClient(
            service,
            token_file=access.token_file,
            tls_ca=access.tls_ca,
            tls_cert=access.tls_cert,
            tls_key=access.tls_key,
        )
        try:
            yield client
        finally:
            await client.close()
        return
    if not service and home.studies_db.is_dir():
        raise StoreBroken(f"{home.studies_db} is a directory; move it away, or use another --state-dir")
    from suggest.server import Server  # heavy; whoever uses a remote service is spared it

    socket = home.service_socket()
    server = Server(service or home.storage_url, f"unix:{socket}")
    await server.start()
    try:
        client = SessionClient(f"unix:{socket}", inside=server.inside())
        try:
            yield client
        finally:
            await client.close()
    finally:
        await server.stop()
        socket.unlink(missing_ok=True)
