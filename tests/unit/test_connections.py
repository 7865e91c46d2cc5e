"""Which connections are closed: the oldest ones without admitted calls, of hosts that have too many."""

from __future__ import annotations

from collections import Counter

import pytest

from suggest.server import connection_limits
from suggest.server.connection_limits import HEALTH_CHECKERS, SILENT_S, UNKNOWN, Peer, SeenConnection, too_many

NOW = 1000.0


def seen(count: int, *, host: str = "h", since: float = NOW - 1, asked: bool = False, used: float = 0.0, port: int = 1):
    return {
        Peer(host, port + n): SeenConnection(host, 100 + n, since + n / 1e6, asked=asked, used=used)
        for n in range(count)
    }


def closed(them: dict[Peer, SeenConnection], *, noisy: tuple[str, ...] = (), most: int = 10_000) -> list[Peer]:
    return list(too_many(them, NOW, noisy=noisy, limit=most))


def test_a_connection_without_calls_is_closed_after_a_while() -> None:
    fresh, silent = seen(3), seen(3, since=NOW - SILENT_S - 1, port=500)
    assert set(closed(fresh | silent)) == set(silent)


def test_a_few_connections_that_ask_for_health_stay_open() -> None:
    asking = seen(HEALTH_CHECKERS + 5, since=NOW - SILENT_S - 1, asked=True)
    assert closed(asking) == list(asking)[HEALTH_CHECKERS:]


def test_a_connection_with_an_admitted_call_stays_open_however_old() -> None:
    assert closed(seen(500, since=0.0, used=1.0)) == []


def test_a_host_has_a_limit_of_unknown_connections_and_the_newest_are_kept() -> None:
    connections = seen(UNKNOWN + 7)
    assert closed(connections) == list(connections)[:7]
    assert len(closed(connections, noisy=("h",))) == UNKNOWN + 7 - connection_limits.NOISY_UNKNOWN
    assert closed(connections | seen(10, host="other", port=900)) == list(connections)[:7], "another host does not pay"


def test_many_hosts_share_a_limit_of_unknown_connections() -> None:
    crowds = {peer: one for n in range(40) for peer, one in seen(50, host=f"h{n}").items()}
    assert len(crowds) - len(closed(crowds)) == connection_limits.ALL_UNKNOWN
    assert len(crowds) - len(closed(crowds, most=512)) == 256


def test_no_host_holds_all_admitted_connections_and_the_least_used_are_closed() -> None:
    busy, idle = seen(40, used=NOW), seen(30, used=NOW - 100, port=500)
    gone = closed(busy | idle, most=100)
    assert len(gone) == 20
    assert set(gone) <= set(idle)


def test_no_more_connections_than_all_may_have_stay_open() -> None:
    hosts = {peer: one for n in range(4) for peer, one in seen(30, host=f"h{n}", used=NOW - n).items()}
    gone = closed(hosts, most=100)
    assert len(gone) == 20
    assert {peer.host for peer in gone} == {"h3"}, "the least used"


@pytest.mark.parametrize(
    ("connections", "most", "reason"),
    [
        (seen(1, since=0.0), 100, "no call within 10 s"),
        (seen(17, since=0.0, asked=True), 100, "over 16 older than 10 s without an admitted call"),
        (seen(65), 1000, "over 64 of a host without an admitted call"),
        (seen(60), 100, "over 50 of all hosts without an admitted call"),
        (seen(60, used=1.0), 100, "over 50 of a host"),
        (seen(50, used=1.0) | seen(51, host="other", used=1.0), 100, "over 50 of a host"),
        (seen(50, used=1.0) | seen(50, host="b", used=1.0) | seen(1, host="c", used=1.0), 100, "over 100"),
    ],
)
def test_each_connection_is_closed_for_a_reason(
    connections: dict[Peer, SeenConnection], most: int, reason: str
) -> None:
    assert set(too_many(connections, NOW, noisy=(), limit=most).values()) == {reason}


def test_closed_connections_are_logged_at_once_and_then_together(caplog: pytest.LogCaptureFixture) -> None:
    closed = connection_limits.ClosedConnections()
    for seconds, hosts in ((0.0, "aab"), (1.0, "c"), (59.0, "d"), (61.0, "")):
        for host in hosts:
            closed.add(host, "over 64")
        closed.log(NOW + seconds)
    assert caplog.messages == [
        'event=connections_closed reason="over 64" connections=3 host=a other_hosts=1',
        'event=connections_closed reason="over 64" connections=2 host=c other_hosts=1',
    ]


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("ipv4:127.0.0.1:4711", Peer("127.0.0.1", 4711)),
        ("ipv6:%5B::1%5D:4711", Peer("::1", 4711)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:4711", Peer("10.0.0.1", 4711)),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", Peer("fe80::1", 4711)),
    ],
)
def test_peers_are_known_by_what_grpc_calls_them(name: str, peer: Peer) -> None:
    assert connection_limits._peer_by(name) == peer


def test_a_network_of_ipv6_is_one_host() -> None:
    hosts = ["2001:db8::1", "2001:db8::2:3", "2001:db8:0:1::1", "10.0.0.1", "10.0.0.2", "::1"]
    assert Counter(map(connection_limits._neighborhood, hosts)).most_common(1) == [("2001:db8::/64", 2)]
