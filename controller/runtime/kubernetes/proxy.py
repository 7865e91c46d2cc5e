"""The proxy between here and an API server: `proxy-url`, else HTTPS_PROXY and NO_PROXY, by the rules of kubectl.

Python's rules (urllib.request) differ from Go's: they know no address ranges in NO_PROXY, and send requests to loopback
addresses, such as those of kind, through the proxy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from controller.runtime.kubernetes.errors import BadKubeconfig

_SCHEMES = ("http", "https")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Proxy:
    """`source`: what names it. The URL may hold a password; `address` does not."""

    url: str
    source: str

    @property
    def address(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def proxy_for(server: str, proxy_url: str, place: str, environ: Mapping[str, str]) -> Proxy | None:
    """None: requests go to the server directly.

    Args:
        proxy_url: of the cluster in the kubeconfig, or ""; it comes before the environment, and NO_PROXY has no say.
        place: the file and cluster that `proxy_url` is from.

    Raises:
        BadKubeconfig: a proxy that is not an HTTP proxy.
    """
    if proxy_url:
        return _checked(Proxy(proxy_url, "proxy-url"), f"{place}: proxy-url", proxy_url)
    target = urlsplit(server)
    scheme = target.scheme.lower()
    name = f"{scheme.upper()}_PROXY"
    said = environ.get(name) or environ.get(name.lower()) or ""
    port = target.port or _PORTS.get(scheme, 0)
    if not said or _excepted(target.hostname or "", port, environ.get("NO_PROXY") or environ.get("no_proxy") or ""):
        return None
    return _checked(Proxy(said if "://" in said else f"http://{said}", name), name, said)


def _checked(proxy: Proxy, place: str, said: str) -> Proxy:
    parts = urlsplit(proxy.url)
    if parts.scheme in _SCHEMES and parts.hostname:
        return proxy
    if parts.scheme.startswith("socks"):
        raise BadKubeconfig(
            f"{place}: {proxy.address} is a SOCKS proxy, which tuner does not support; "
            "use an http:// or https:// proxy, or run tuner where the API server can be reached directly"
        )
    shown = proxy.address if parts.hostname else repr(said)
    raise BadKubeconfig(f"{place}: expected http://HOST:PORT or https://HOST:PORT, got {shown}")


def _excepted(host: str, port: int, no_proxy: str) -> bool:
    """As golang.org/x/net/http/httpproxy."""
    host = host.lower().rstrip(".")
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(entry.strip().lower(), host, port, address) for entry in no_proxy.split(","))


def _matches(entry: str, host: str, port: int,
             address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:  # fmt: skip
    if entry in ("", "*"):
        return entry == "*"
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    named, _, named_port = entry.rpartition(":") if entry.count(":") == 1 or "]:" in entry else (entry, "", "")
    if named_port and named_port != str(port):
        return False
    named = named.strip("[]")
    if address is not None:
        return address == _address(named)
    suffix = named.removeprefix("*")
    return host.endswith(suffix) if suffix.startswith(".") else host == suffix or host.endswith(f".{suffix}")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
