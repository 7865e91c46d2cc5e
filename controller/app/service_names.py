"""Names of suggestion services, as they are stored with experiments, and credentials for one.

A name is "" (the state directory's store), a storage URL or an address.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from suggest import paths
from suggest.errors import InvalidArgument
from suggest.url_redaction import redacted_url


@dataclass(frozen=True, slots=True)
class ServiceCredentials:
    """Credentials for a running service; None means those of the environment.

    Not stored with the experiment.
    """

    token_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


FROM_ENVIRONMENT = ServiceCredentials()


def is_address(service: str) -> bool:
    """Return whether the service is a running server, and not a store."""
    return bool(service) and "://" not in service


def service_name(*, server: str | None, storage: str | None) -> str:
    """Return the service in the form stored with an experiment, with absolute paths.

    Returns "" without either argument. Raises InvalidArgument.
    """
    if server:
        return ",".join(map(_absolute, server.split(",")))
    url = storage or ""
    if url and "://" not in url:
        # It would be taken for an address.
        cure = "use sqlite:///PATH, or postgresql+psycopg://USER@HOST/DATABASE"
        raise InvalidArgument.at("storage", f"{url}: is not a storage URL; {cure}")
    prefix = "sqlite:///"
    if url.startswith(prefix) and url not in (prefix, f"{prefix}:memory:"):
        return prefix + str(paths.absolute(url.removeprefix(prefix)))
    return url


def _absolute(address: str) -> str:
    path = address.strip().removeprefix("unix:")
    return path if path == address.strip() else f"unix:{Path(path).absolute()}"


def shares_an_address(recorded: str, requested: str) -> bool:
    """Return whether both are servers that share an address, so that either may be named."""
    common = set(recorded.split(",")) & set(requested.split(","))
    return "://" not in recorded + requested and bool(common)


def described(service: str) -> str:
    if not service:
        return "state directory's own store"
    if "://" in service:
        return f"store {redacted_url(service)}"
    return f"service at {service}"
