"""A statement signed with a client certificate is accepted as the API server would accept the
certificate, and for one audience and one minute only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controller.kube.assertion import LIFE_S, Subject, signed, verified
from suggest.errors import InvalidArgument, Unauthenticated

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
OTHER_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)
Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


@dataclass
class Issued:
    certificate: x509.Certificate
    private: Key

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key(self) -> bytes:
        return self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def issue(
    common_name: str,
    *,
    by: Issued | None = None,
    groups: Sequence[str] = (),
    is_authority: bool = False,
    usage: x509.ObjectIdentifier | None = ExtendedKeyUsageOID.CLIENT_AUTH,
    until: datetime = NOW + timedelta(days=1),
    private: Key | None = None,
) -> Issued:
    private = private or new_key()
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    names += [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
    subject = x509.Name(names)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=30))
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if is_authority:
        flags = dict.fromkeys(OTHER_USAGES, False)
        builder = builder.add_extension(x509.KeyUsage(key_cert_sign=True, **flags), critical=True)
    elif usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    signer = by.private if by else private
    algorithm = None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return Issued(builder.sign(signer, algorithm), private)


CLUSTER = issue("cluster", is_authority=True)
ALICE = issue("alice", by=CLUSTER, groups=("vision", "audio"))


def statement_of(person: Issued, *between: Issued, audience: str = "tuner") -> str:
    chain = b"".join(each.pem for each in (person, *between))
    return signed(chain, person.key, audience=audience, now=NOW)


def read(statement: str, *, authority: Issued = CLUSTER, later_s: float = 0) -> Subject:
    now = NOW + timedelta(seconds=later_s)
    return verified(statement, authority.pem, audience="tuner", now=now)


@pytest.mark.parametrize(
    "private",
    [
        rsa.generate_private_key(65537, 2048),
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP521R1()),
        ed25519.Ed25519PrivateKey.generate(),
    ],
    ids=lambda key: type(key).__name__,
)
def test_the_user_and_groups_are_those_of_the_certificate(private: Key) -> None:
    person = issue("alice", by=CLUSTER, groups=("vision", "audio"), private=private)
    assert read(statement_of(person)) == Subject("alice", ("vision", "audio"))


def test_an_authority_between_may_issue_certificates() -> None:
    team = issue("team", by=CLUSTER, is_authority=True)
    person = issue("bob", by=team)
    assert read(statement_of(person, team)).name == "bob"


def test_the_clocks_may_differ_by_less_than_a_minute() -> None:
    assert read(statement_of(ALICE), later_s=-50).name == "alice"
    assert read(statement_of(ALICE), later_s=LIFE_S + 50).name == "alice"


def forged(claims: dict[str, object], key: object, algorithm: str, x5c: object) -> str:
    usual: dict[str, object] = {"aud": "tuner", "iat": NOW, "exp": NOW + timedelta(seconds=LIFE_S)}
    return jwt.encode(usual | claims, key, algorithm, {"x5c": x5c})  # type: ignore[arg-type]


def x5c_of(*chain: Issued) -> list[str]:
    header = jwt.get_unverified_header(statement_of(*chain))
    return list(header["x5c"])


MALLORY = issue("mallory", by=issue("other", is_authority=True))
REFUSED = {
    "by another authority": statement_of(MALLORY),
    "by an authority of the same name": statement_of(
        issue("alice", by=issue("cluster", is_authority=True))
    ),
    "by herself": statement_of(issue("alice")),
    "by another client's certificate": statement_of(issue("admin", by=ALICE), ALICE),
    "by the key of another": forged({}, MALLORY.private, "ES256", x5c_of(ALICE)),
    "of a certificate that has expired": statement_of(
        issue("alice", by=CLUSTER, until=NOW - timedelta(seconds=1))
    ),
    "of a certificate for servers": statement_of(
        issue("alice", by=CLUSTER, usage=ExtendedKeyUsageOID.SERVER_AUTH)
    ),
    "of a certificate without a user": statement_of(issue("", by=CLUSTER, groups=("admins",))),
    "for another audience": statement_of(ALICE, audience="other"),
    "without a signature": forged({}, None, "none", x5c_of(ALICE)),
    "with the public key as a secret": forged({}, "x" * 64, "HS256", x5c_of(ALICE)),
    "that is valid for long": forged(
        {"exp": NOW + timedelta(days=1)}, ALICE.private, "ES256", x5c_of(ALICE)
    ),
    "of the future": forged(
        {"iat": NOW + timedelta(hours=1), "exp": NOW + timedelta(hours=1, seconds=60)},
        ALICE.private,
        "ES256",
        x5c_of(ALICE),
    ),
    "without a certificate": forged({}, ALICE.private, "ES256", []),
    "with many certificates": forged({}, ALICE.private, "ES256", x5c_of(ALICE) * 6),
    "with something else for a certificate": forged({}, ALICE.private, "ES256", [{"a": 1}]),
    "with no certificate in it": forged({}, ALICE.private, "ES256", ["AAAA"]),
    "of a megabyte": "e" * 1_000_000,
    "of nothing": "",
    "of dots": "..",
}


@pytest.mark.parametrize("statement", REFUSED.values(), ids=REFUSED.keys())
def test_it_refuses_a_statement(statement: str) -> None:
    with pytest.raises(Unauthenticated):
        read(statement)


def test_a_statement_expires() -> None:
    with pytest.raises(Unauthenticated, match="expired"):
        read(statement_of(ALICE), later_s=LIFE_S + 61)


def test_a_key_that_cannot_be_read_is_named() -> None:
    with pytest.raises(InvalidArgument, match="client-key"):
        signed(ALICE.pem, b"-----BEGIN NOTHING-----", audience="tuner", now=NOW)
