"""The files of tokens and certificates: what is accepted, what is refused,
and with which message.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest

from suggest.address import parse_address
from suggest.errors import InvalidArgument
from suggest.server.access.caller import AccessVerb, Grant
from suggest.server.access.protection import Protection, watched_tokens
from suggest.server.access.tokens import read_tokens

SECRET = "a-token-that-nobody-guesses"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()
REST = "namespaces: [team-a], verbs: [read]"


def refused(content: str) -> list[str]:
    with pytest.raises(InvalidArgument) as raised:
        read_tokens(content.encode(), place="t.yaml")
    assert SECRET not in str(raised.value)
    return [f"{p.path}: {p.message}" for p in raised.value.problems]


def test_a_token_is_known_by_its_digest_and_opens_what_is_granted() -> None:
    tokens = read_tokens(f"tokens: {{a: {{sha256: '{DIGEST}', {REST}}}}}".encode(), place="t.yaml")
    assert tokens.grant(SECRET) == Grant("a", frozenset({AccessVerb.READ}), frozenset({"team-a"}))
    assert [tokens.grant(wrong) for wrong in ("", DIGEST, SECRET + "x", "ü")] == [None] * 4
    assert not tokens.plain


def test_all_means_all_verbs_and_all_namespaces() -> None:
    tokens = read_tokens(
        f"tokens: {{a: {{token: {SECRET}, namespaces: all, verbs: all}}}}".encode(), place="t.yaml"
    )
    grant = tokens.grant(SECRET)
    assert grant == Grant("a", frozenset(AccessVerb), None)
    assert grant.namespaces is None
    assert tokens.plain


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "t.yaml: must have the key `tokens:` and no other at the top"),
        ("tokens: {}", "t.yaml: must have the key `tokens:`"),
        ("tokens: [a, }", "t.yaml:1: cannot be read as YAML, or has a name twice"),
        (
            f"tokens: {{a: {{token: {SECRET}, token: {SECRET}, {REST}}}}}",
            "t.yaml:1: cannot be read as YAML, or has a",
        ),
        (
            f"tokens: {{a: {{sha256: 2020-13-45, {REST}}}}}",
            "t.yaml: cannot be read as YAML, or has a name twice",
        ),
        ("tokens: {a: 7}", "t.yaml: tokens.a: must have sha256 (or token), namespaces and verbs"),
        (
            f"tokens: {{unix: {{token: {SECRET}, {REST}}}}}",
            "t.yaml: tokens.unix: a token's name is a letter, then",
        ),
        (
            f"tokens: {{10.0.0.1: {{token: {SECRET}, {REST}}}}}",
            "t.yaml: tokens.10.0.0.1: a token's name is a letter",
        ),
        (
            f"tokens: {{a: {{{REST}}}}}",
            "t.yaml: tokens.a: needs either sha256 (of the token, in hex) or the token",
        ),
        (
            f"tokens: {{a: {{sha256: {DIGEST[:-1]}, {REST}}}}}",
            "t.yaml: tokens.a.sha256: must be 64 hex digits",
        ),
        (
            f"tokens: {{a: {{token: short, {REST}}}}}",
            "t.yaml: tokens.a.token: must be a random text of 20 ASCII",
        ),
        (
            f"tokens: {{a: {{token: {SECRET}, namespaces: [], verbs: all}}}}",
            "t.yaml: tokens.a.namespaces: must be ",
        ),
        (
            f"tokens: {{a: {{token: {SECRET}, namespaces: [A], verbs: all}}}}",
            "t.yaml: tokens.a.namespaces: 'A' is ",
        ),
        (
            f"tokens: {{a: {{token: {SECRET}, namespaces: all, verbs: [reed]}}}}",
            "t.yaml: tokens.a.verbs: 'reed' is ",
        ),
        (
            f"tokens: {{a: {{token: {SECRET}, {REST}, admin: true}}}}",
            "t.yaml: tokens.a: unknown key admin; use",
        ),
    ],
)
def test_problems_are_reported_with_their_place(content: str, message: str) -> None:
    (first, *_) = refused(content)
    assert first.startswith(message)


def test_two_names_for_one_secret_are_refused_and_all_problems_come_at_once() -> None:
    entry = f"{{token: {SECRET}, {REST}}}"
    message = refused(f"tokens: {{a: {entry}, b: {entry}, c: 1}}")
    assert [line.split(":")[1] for line in message] == [" tokens.b", " tokens.c"]


def test_plain_tokens_in_a_world_readable_file_give_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(f"tokens: {{a: {{token: {SECRET}, {REST}}}}}")
    file.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        watched_tokens(file)
        assert caplog.text == ""
        file.chmod(0o644)
        watched_tokens(file)
    assert "chmod 600" in caplog.text
    assert SECRET not in caplog.text


def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(f"tokens: {{a: {{sha256: '{DIGEST}', {REST}}}}}")
    file.chmod(0o606)
    with pytest.raises(InvalidArgument, match="grant themselves access; see: chmod o-w"):
        watched_tokens(file)


TLS = {"tls_cert": "c", "tls_key": "k"}
MUTUAL = {**TLS, "tls_client_ca": "a"}


@pytest.mark.parametrize(
    ("address", "protection", "message"),
    [
        ("unix:/tmp/s", Protection(), ""),
        ("unix:/tmp/s", Protection(tokens="t"), "is a socket that only its user can reach"),
        (
            "localhost:1",
            Protection(),
            "tokens: anyone who reaches localhost:1 could do everything; name those who may",
        ),
        ("127.0.0.1:1", Protection(**TLS), "tokens: anyone who reaches"),
        ("localhost:1", Protection(insecure=True), ""),
        ("localhost:1", Protection(tokens="t"), ""),
        ("[::1]:1", Protection(tokens="t"), ""),
        ("0.0.0.0:1", Protection(), "tokens: anyone who reaches 0.0.0.0:1"),
        (
            "0.0.0.0:1",
            Protection(tokens="t"),
            "tls-cert: tokens would be sent to 0.0.0.0:1 unencrypted",
        ),
        ("tuner.example:1", Protection(tokens="t", insecure=True), ""),
        ("tuner.example:1", Protection(tokens="t", **TLS), ""),
        ("tuner.example:1", Protection(insecure=True), ""),
        ("tuner.example:1", Protection(**MUTUAL), ""),
        ("tuner.example:1", Protection(tokens="t", **MUTUAL), ""),
        (
            "tuner.example:1",
            Protection(tokens="t", tls_client_ca="a"),
            "tls-client-ca: requires --tls-cert and --tls-key",
        ),
        (
            "tuner.example:1",
            Protection(tokens="t", tls_cert="c"),
            "tls-key: is required with --tls-cert",
        ),
        (
            "tuner.example:1",
            Protection(tokens="t", tls_key="k"),
            "tls-cert: is required with --tls-key",
        ),
    ],
)
def test_a_server_is_never_more_open_than_configured(
    address: str, protection: Protection, message: str
) -> None:
    if not message:
        protection.check(parse_address(address))
        return
    with pytest.raises(InvalidArgument) as raised:
        protection.check(parse_address(address))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("metrics", "protection", "allowed"),
    [
        ("localhost:9", Protection(tokens="t"), True),
        ("127.0.0.1:9", Protection(tokens="t"), True),
        ("0.0.0.0:9", Protection(tokens="t"), False),
        ("tuner.example:9", Protection(tokens="t"), False),
        ("0.0.0.0:9", Protection(tokens="t", insecure=True), True),
        ("0.0.0.0:9", Protection(tokens="t", **TLS), True),
    ],
)
def test_metrics_leave_the_machine_over_tls_or_with_insecure(
    metrics: str, protection: Protection, allowed: bool
) -> None:
    if allowed:
        protection.check(parse_address("localhost:1"), parse_address(metrics))
        return
    with pytest.raises(
        InvalidArgument,
        match=r"metrics-address: anyone who reaches .* add --tls-cert and --tls-key",
    ):
        protection.check(parse_address("localhost:1"), parse_address(metrics))
