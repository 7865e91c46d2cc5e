"""A server's certificate can change at any time: new connections get it,
old ones stay, a bad one is ignored.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from suggest.errors import InvalidArgument
from suggest.server import Protection, Server, ServerOptions
from suggest.server.access.certificates import KeyPair
from tests.certificates import Authority, replace
from tests.conditions import eventually
from tests.service.running import a_server

HOSTS = ("localhost",)


def shown_by(server: Server, authority: Authority, *, port: int = 0) -> str:
    """Return the common name of the certificate that a new connection gets; port 0: of gRPC."""
    context = ssl.create_default_context(cafile=str(authority.own.certificate))
    context.set_alpn_protocols(["h2", "http/1.1"])
    port = port or int(server.address.rpartition(":")[2])
    with (
        socket.create_connection(("localhost", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        return dict(pair for (pair,) in secure.getpeercert()["subject"])["commonName"]  # type: ignore[index, misc]


def protection_by(certificate: Path, key: Path) -> Protection:
    return Protection(insecure=True, tls_cert=str(certificate), tls_key=str(key))


def test_a_new_certificate_is_shown_without_a_restart_and_old_connections_live_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("used", "/CN=first", HOSTS)
    protection = protection_by(pair.certificate, pair.key)
    options = ServerOptions(metrics_address="0.0.0.0:0")
    with (
        a_server(tmp_path / "s.db", protection=protection, options=options) as server,
        grpc.secure_channel(
            server.address, grpc.ssl_channel_credentials(authority.own.certificate.read_bytes())
        ) as channel,
    ):
        ask = health_pb2_grpc.HealthStub(channel).Check
        ask(health_pb2.HealthCheckRequest(), timeout=10)
        assert shown_by(server, authority) == "first"

        # Only half of a pair was replaced, so the old pair stays in use.
        with caplog.at_level(logging.ERROR, "suggest.server.access"):
            other = authority.issue("other", "/CN=second", HOSTS)
            pair.key.write_bytes(other.key.read_bytes())
            eventually(lambda: "cannot be used together" in caplog.text)
        assert shown_by(server, authority) == "first"

        replace(pair, other)
        eventually(lambda: shown_by(server, authority) == "second")
        assert shown_by(server, authority, port=server.metrics_port) == "second"
        ask(health_pb2.HealthCheckRequest(), timeout=10)
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"], (
            "bad once, then good"
        )


@pytest.mark.parametrize("content", [b"", b"no PEM at all"], ids=["empty", "garbage"])
def test_an_invalid_certificate_is_refused_at_the_start(tmp_path: Path, content: bytes) -> None:
    certificate, key = tmp_path / "a.crt", tmp_path / "a.key"
    for path in (certificate, key):
        path.write_bytes(content)
    with pytest.raises(
        InvalidArgument, match=r"a\.crt and .*a\.key: cannot be used together: one of them is no"
    ):
        KeyPair(certificate, key)


def test_a_key_of_another_certificate_is_refused_at_the_start(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = (authority.issue(name, f"/CN={name}", HOSTS) for name in ("one", "other"))
    with pytest.raises(InvalidArgument, match="the key does not belong to the certificate"):
        KeyPair(one.certificate, other.key)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"missing\.crt: cannot be read: No such file"):
        KeyPair(tmp_path / "missing.crt", tmp_path / "missing.key")


@pytest.mark.parametrize(
    ("mode", "group_is_ours", "allowed"),
    [
        (0o600, True, True),
        (0o440, True, True),
        (0o440, False, False),
        (0o644, True, False),
        (0o604, False, False),
    ],
)
def test_a_key_that_others_can_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, group_is_ours: bool, allowed: bool
) -> None:
    pair = Authority(tmp_path).issue("server", "/CN=server", HOSTS)
    pair.key.chmod(mode)
    if not group_is_ours:
        monkeypatch.setattr(os, "getegid", lambda: pair.key.stat().st_gid + 1)
        monkeypatch.setattr(os, "getgroups", list)
    if allowed:
        KeyPair(pair.certificate, pair.key)
        return
    with pytest.raises(
        InvalidArgument,
        match=rf"the mode {mode:04o} lets .* read the key; see: chmod 600 .*fsGroup",
    ):
        KeyPair(pair.certificate, pair.key)
