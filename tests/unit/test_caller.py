"""The identity of a caller without a token: its address."""

from __future__ import annotations

import pytest

from suggest.server.access.caller import host_of


@pytest.mark.parametrize(
    ("peer", "caller"),
    [
        ("ipv4:127.0.0.1:4711", "127.0.0.1"),
        ("ipv6:%5B::1%5D:4711", "::1"),
        ("ipv6:[::1]:4711", "::1"),
        ("unix:", "unix"),
        ("unix:/run/user/1000/tuner/s.sock", "unix"),
        ("", ""),
    ],
)
def test_without_tokens_a_caller_is_a_host_whatever_its_port(peer: str, caller: str) -> None:
    assert host_of(peer) == caller
