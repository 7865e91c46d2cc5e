"""The identity of a caller: the name of its token, otherwise its address."""

from __future__ import annotations

import contextvars
from dataclasses import dataclass

import pytest

from suggest.server.access.caller import caller_of, set_caller


@dataclass(frozen=True, slots=True)
class From:
    """The part of a call's context that these tests use."""

    address: str

    def peer(self) -> str:
        return self.address


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
    assert contextvars.Context().run(caller_of, From(peer)) == caller


def test_a_token_names_the_caller_of_its_call_only() -> None:
    def call() -> str:
        set_caller("team-a")
        return caller_of(From("ipv4:192.0.2.7:4711"))

    assert contextvars.Context().run(call) == "team-a"
    assert contextvars.Context().run(caller_of, From("ipv4:192.0.2.7:4711")) == "192.0.2.7"
