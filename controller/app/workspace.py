"""What all requests of one person or process share: the state directory, and the suggestion service they name.

A service is named by a string, kept with the experiment: "" (the state directory's store), a storage URL, an address.
Imports nothing heavy: the client and the stores come in when they are used.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from controller.app.state_directory import StateDirectory
from suggest.errors import FailedPrecondition
from suggest.url_redaction import redacted_url

if TYPE_CHECKING:
    from controller.app.local_experiments import LocalExperiments
    from controller.app.suggestion_service import SessionClient
    from controller.core.model import Experiment


@dataclass(frozen=True, slots=True)
class ServiceCredentials:
    """For a running service; None = as the environment says. Not kept with the experiment."""

    token_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


@dataclass(frozen=True, slots=True)
class Workspace:
    """`service`: the one asked for; "" = that of the experiment, and for a new one the state directory's own store."""

    state: StateDirectory
    service: str = ""
    credentials: ServiceCredentials = ServiceCredentials()

    def opened(self, *, make: bool = False) -> AbstractContextManager[LocalExperiments]:
        """The experiments of the state directory, as `local_experiments.opened` opens them."""
        from controller.app.local_experiments import opened

        return opened(self.state, make=make)

    def service_of(self, experiment: Experiment) -> str:
        """Raises FailedPrecondition: another service was asked for than the one that has its trials."""
        recorded, asked = experiment.server, self.service
        if not asked or asked == recorded:
            return recorded
        if not _shares_an_address(recorded, asked):
            raise FailedPrecondition(
                f"the trials of {experiment.name} are in the {described(recorded)}, not in the {described(asked)}; "
                "omit the flag, or choose another name for a new experiment"
            )
        return asked

    def connected(self, service: str) -> AbstractAsyncContextManager[SessionClient]:
        """A client of that service, which is started if it is an embedded one, and stopped again."""
        from controller.app.suggestion_service import connected

        return connected(service, self.state, self.credentials)


def service_name(*, server: str | None, storage: str | None) -> str:
    """The service as it is kept with an experiment: relative paths become absolute. "" without either."""
    if server:
        return ",".join(map(_absolute, server.split(",")))
    url = storage or ""
    prefix = "sqlite:///"
    if url.startswith(prefix) and url not in (prefix, f"{prefix}:memory:"):
        return prefix + str(Path(url.removeprefix(prefix)).expanduser().absolute())
    return url


def _absolute(address: str) -> str:
    path = address.strip().removeprefix("unix:")
    return path if path == address.strip() else f"unix:{Path(path).absolute()}"


def _shares_an_address(recorded: str, asked: str) -> bool:
    """Servers on one database: another one of them was named."""
    return "://" not in recorded + asked and not set(recorded.split(",")).isdisjoint(asked.split(","))


def described(service: str) -> str:
    if not service:
        return "state directory's own store"
    if "://" in service:
        return f"store {redacted_url(service)}"
    return f"service at {service}"
