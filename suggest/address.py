"""Parses addresses of the suggestion service: `HOST:PORT` or `unix:PATH`.

Pure; `suggest.server` finds out whether an address is free.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from suggest.errors import InvalidArgument

# the system's limit is 108 bytes on Linux and 104 on macOS, with a final zero
MAX_SOCKET_PATH = 100
_UNIX = "unix:"


@dataclass(frozen=True, slots=True)
class Address:
    """An address: a socket's path, or host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        """Return the address as people and gRPC write it."""
        if self.path:
            return f"{_UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def private(self) -> bool:
        """Whether the address is reachable from this machine only."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """Parse one address. Raises InvalidArgument."""
    if text.startswith(_UNIX):
        return _socket(text)
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidArgument.at(
            "address",
            f"{text!r} is not an address; use HOST:PORT, such as localhost:8765, or unix:PATH",
        )
    return Address(host=host, port=int(port))


def parse_addresses(text: str) -> tuple[str, ...]:
    """Parse the comma-separated addresses of servers on one database. Raises InvalidArgument."""
    return tuple(dict.fromkeys(str(parse_address(each.strip())) for each in text.split(",")))


def _socket(text: str) -> Address:
    path = text.removeprefix(_UNIX)
    if path.startswith("//"):
        path = path.removeprefix("//")  # unix:///PATH, the URL form
    if not path:
        raise InvalidArgument.at("address", f"{text!r} names no socket; use unix:PATH")
    if (size := len(path.encode())) > MAX_SOCKET_PATH:
        raise InvalidArgument.at(
            "address",
            f"{text}: a socket's path may have {MAX_SOCKET_PATH} bytes, this has {size}; use a "
            "shorter one, such as unix:/tmp/tuner.sock",
        )
    return Address(path=path)
