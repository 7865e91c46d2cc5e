"""Limits on connections: how many a host without a token may have, how many there may be in all, and for how long.

gRPC closes connections that do not complete a handshake and limits their total, but has no limit per host: one host
could take every connection. Therefore a thread periodically inspects the process's sockets and shuts down those of
hosts that have too many connections on which no call was admitted (by a token, or by `--insecure`). To gRPC this looks
like a peer that hangs up. The page's server limits only the total, too, and knows no connections in their TLS
handshake; its port is also inspected, and its requests count as calls. The alternatives are in docs/adr.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from suggest import events
from suggest.server.access.caller import host_of

log = logging.getLogger(__name__)

LOOK_S = 1.0
SOON_S = 0.1  # until the next look after a connection had to be closed
SILENT_S = 10.0  # how long a connection may stay without any call
HEALTH_CHECKERS = 16  # connections of a host that only check health; these may stay
UNKNOWN = 64  # connections of a host over which no call was ever admitted
ALL_UNKNOWN = 1000
OF_HOST = 2000  # connections of a host, including admitted ones
NOISY_UNKNOWN = 16  # as UNKNOWN, for a host that calls too often
CALLS_S = 100.0  # calls per second of a host without a token; a burst may have as many more
DELAY_S = 2.0  # delay of replies to a host that calls more often; meanwhile its few streams are occupied
LOGGED_S = 60.0  # between two log lines with the same reason
_FOLDERS = ("/proc/self/fd", "/dev/fd")


class Peer(NamedTuple):
    """The other end of a connection, with the host in its shortest form."""

    host: str
    port: int


@dataclass(slots=True)
class SeenConnection:
    """A connection. `used` is when a call was last admitted over it, 0 if never."""

    host: str
    descriptor: int
    since: float
    asked: bool = False
    used: float = 0.0


class ClosedConnections:
    """Logs which connections were closed and why: at once, then once a minute for each reason."""

    def __init__(self) -> None:
        self._hosts: dict[str, Counter[str]] = {}  # by reason: closed since the last line
        self._logged: dict[str, float] = {}

    def add(self, host: str, reason: str) -> None:
        self._hosts.setdefault(reason, Counter())[host] += 1

    def log(self, now: float) -> None:
        for reason, hosts in list(self._hosts.items()):
            if now - self._logged.get(reason, now - LOGGED_S) < LOGGED_S:
                continue
            ((host, _),) = hosts.most_common(1)
            others = len(hosts) - 1
            events.warn(
                "connections_closed", reason=reason, connections=hosts.total(), host=host, other_hosts=others or None
            )
            self._logged[reason] = now
            del self._hosts[reason]


class ConnectionLimits:
    """Enforces the limits on the connections of one server.

    `port` is the server's port, None for a socket file, which only its user can reach. `also` are further ports.
    `limit` applies to all connections together.
    """

    def __init__(
        self,
        port: int | None,
        *,
        also: Collection[int] = (),
        limit: int = 10_000,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ports = {*also} if port is None else {port, *also}
        self._most = limit
        self._now = now
        self._admitted: dict[str, float] = {}  # time of the last call, by gRPC's name of the peer
        self._unauthenticated: dict[str, float] = {}  # the same, of calls that needed no token or were denied
        self._calls: Counter[str] = Counter()  # calls without a token by host, minus the allowed number
        self._calls_at = now()
        self._seen: dict[Peer, SeenConnection] = {}
        self._inodes: dict[int, tuple[int, Peer | None]] = {}  # by descriptor: the inode, and the peer
        self._folder = next((folder for folder in _FOLDERS if Path(folder).is_dir()), "")
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._null = self._spare = -1
        self._closings = ClosedConnections()

    @property
    def most_of_page(self) -> int:
        """How many connections the page's server may accept, which leaves descriptors for gRPC and the store."""
        return self._most // 2

    def watch(self, port: int) -> None:
        """Limit the connections of one more port, on which nothing was accepted yet."""
        self._ports.add(port)
        self.start()

    def start(self) -> None:
        """Start the thread, which needs no further file descriptor later, because there may be none."""
        if not self._ports or not self._folder or self._thread is not None:
            return
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._spare = os.dup(self._null)
        self._thread = threading.Thread(target=self._run, name="connections", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._closed = True
            self._wake.set()
            self._thread.join()
            self._thread = None
            os.close(self._spare)
            os.close(self._null)

    def admitted(self, peer: str) -> None:
        """Record that a call was admitted over this connection."""
        self._admitted[peer] = self._now()

    def record_unauthenticated(self, peer: str) -> float:
        """Record a call that needs no token or was denied. Return how many seconds to delay the reply."""
        self._unauthenticated[peer] = self._now()
        host = host_of(peer)
        self._calls[host] += 1
        return DELAY_S if self._calls[host] > 2 * CALLS_S else 0.0

    def record_request(self, host: str, port: int, *, admitted: bool) -> None:
        """Record a request to a watched port, by its peer; again if it is admitted."""
        table = self._admitted if admitted else self._unauthenticated
        table[f"ipv6:[{host.replace('%', '%25')}]:{port}"] = self._now()

    def _run(self) -> None:
        pause_s = LOOK_S
        while not self._closed:
            self._wake.wait(pause_s)
            self._wake.clear()
            try:
                pause_s = SOON_S if self.look() else LOOK_S
            except OSError:
                log.exception("the connections cannot be looked at; trying again")

    def look(self) -> int:
        """Close connections over the limits and return how many were closed."""
        now = self._now()
        self._take_note(now)
        noisy = self._noisy(now)
        closed = 0
        for peer, reason in too_many(self._seen, now, noisy=noisy, limit=self._most).items():
            if self._shut(peer):
                self._closings.add(self._seen[peer].host, reason)
                closed += 1
        self._closings.log(now)
        return closed

    def _take_note(self, now: float) -> None:
        present = dict(self._peers())
        for peer in [peer for peer in self._seen if peer not in present]:
            del self._seen[peer]
        admitted, unauthenticated = (
            {_peer_by(name): at for name, at in list(table.items())}
            for table in (self._admitted, self._unauthenticated)
        )
        for peer, descriptor in present.items():
            connection = self._seen.get(peer)
            if connection is None:
                connection = self._seen[peer] = SeenConnection(_neighborhood(peer.host), descriptor, now)
            connection.descriptor = descriptor
            connection.asked = peer in unauthenticated
            connection.used = admitted.get(peer, 0.0)
        for table in (self._admitted, self._unauthenticated):
            for name, at in list(table.items()):
                # A connection that has just arrived may be missing in the listing.
                if now - at > SILENT_S and _peer_by(name) not in present:
                    table.pop(name, None)

    def _noisy(self, now: float) -> set[str]:
        """Return the hosts that call without a token more often than allowed."""
        allowed, self._calls_at = (now - self._calls_at) * CALLS_S, now
        noisy = set()
        for host, calls in list(self._calls.items()):
            if calls > CALLS_S:
                noisy.add(_neighborhood(_canonical(host)))
            excess = min(calls, 4 * CALLS_S) - allowed
            if excess > 0:
                self._calls[host] = int(excess)
            else:
                del self._calls[host]
        return noisy

    def _peers(self) -> Iterator[tuple[Peer, int]]:
        """Yield the peers of the server's connections and the descriptors of these connections."""
        inodes: dict[int, tuple[int, Peer | None]] = {}
        for name in os.listdir(self._folder):  # noqa: PTH208 - a thousand paths would cost more than their names
            descriptor = int(name)
            try:
                status = os.fstat(descriptor)
            except OSError:
                continue  # closed meanwhile
            if not stat.S_ISSOCK(status.st_mode) or descriptor == self._spare:
                continue
            entry = self._inodes.get(descriptor)
            if entry is None or entry[0] != status.st_ino:
                entry = status.st_ino, self._peer(descriptor)
            inodes[descriptor] = entry
            if entry[1] is not None:
                yield entry[1], descriptor
        self._inodes = inodes

    def _peer(self, descriptor: int) -> Peer | None:
        """Return the peer of a descriptor, None if it is not a connection of the server."""
        with self._held(descriptor) as duplicate:
            return None if duplicate is None else self._peer_of(duplicate)

    def _peer_of(self, duplicate: socket.socket) -> Peer | None:
        try:
            own_name, peer_name = duplicate.getsockname(), duplicate.getpeername()
        except OSError:
            return None
        if not isinstance(own_name, tuple) or own_name[1] not in self._ports:
            return None
        return Peer(_canonical(peer_name[0]), peer_name[1])

    def _shut(self, peer: Peer) -> bool:
        with self._held(self._seen[peer].descriptor) as duplicate:
            if duplicate is None or self._peer_of(duplicate) != peer:
                return False  # the descriptor number belongs to another file by now
            try:
                duplicate.shutdown(socket.SHUT_RDWR)
            except OSError:
                return False
        return True

    @contextmanager
    def _held(self, descriptor: int) -> Iterator[socket.socket | None]:
        """Yield the socket through a duplicate descriptor, so that it stays the same. Takes no further descriptor."""
        try:
            os.dup2(descriptor, self._spare, inheritable=False)
        except OSError:
            yield None
            return
        # The family only determines how long an address may be; the system returns the actual address.
        held = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, self._spare)
        try:
            yield held
        finally:
            held.detach()
            os.dup2(self._null, self._spare, inheritable=False)


def too_many(
    connections: Mapping[Peer, SeenConnection], now: float, *, noisy: Collection[str], limit: int
) -> dict[Peer, str]:
    """Return the peers whose connections are to be closed, and why. Of the same kind, the oldest are closed first."""
    closed: dict[Peer, str] = {}
    unknown: dict[str, list[Peer]] = {}
    staying: Counter[str] = Counter()
    oldest_first = sorted(connections, key=lambda peer: connections[peer].since)
    for peer in oldest_first:
        each = connections[peer]
        if each.used:
            continue
        unknown.setdefault(each.host, []).append(peer)
        if now - each.since > SILENT_S:
            staying[each.host] += each.asked
            if not each.asked:
                closed[peer] = f"no call within {SILENT_S:g} s"
            elif staying[each.host] > HEALTH_CHECKERS:
                closed[peer] = f"over {HEALTH_CHECKERS} older than {SILENT_S:g} s without an admitted call"
    for host, peers in unknown.items():
        open_ = [peer for peer in peers if peer not in closed]
        allowed = NOISY_UNKNOWN if host in noisy else UNKNOWN
        reason = f"over {allowed} of a host without an admitted call"
        closed.update(dict.fromkeys(open_[: max(0, len(open_) - allowed)], reason))
    closable = [peer for peer in oldest_first if not connections[peer].used and peer not in closed]
    allowed = min(ALL_UNKNOWN, limit // 2)
    reason = f"over {allowed} of all hosts without an admitted call"
    closed.update(dict.fromkeys(closable[: max(0, len(closable) - allowed)], reason))
    # Even with a token, one host must not get all connections.
    by_use = sorted((peer for peer in connections if peer not in closed), key=lambda peer: connections[peer].used)
    of_host = Counter(connections[peer].host for peer in by_use)
    allowed = min(OF_HOST, limit // 2)
    for peer in by_use:
        host = connections[peer].host
        if of_host[host] > allowed:
            of_host[host] -= 1
            closed[peer] = f"over {allowed} of a host"
    # gRPC refuses further connections, but counts each of its servers alone, and not the page's.
    by_use = [peer for peer in by_use if peer not in closed]
    closed.update(dict.fromkeys(by_use[: max(0, len(by_use) - limit)], f"over {limit}"))
    return closed


def _neighborhood(host: str) -> str:
    """Return the unit that is counted: a host, or with IPv6 the network that one host usually has for itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4 or address.is_loopback:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False))


@lru_cache(maxsize=20_000)
def _peer_by(name: str) -> Peer:
    """Parse gRPC's name of a peer: `ipv4:127.0.0.1:4711`, `ipv6:%5B::1%5D:4711`."""
    port = name.rpartition(":")[2]
    return Peer(_canonical(host_of(name)), int(port) if port.isdigit() else 0)


def _canonical(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str((address.ipv4_mapped if address.version == 6 else None) or address)
