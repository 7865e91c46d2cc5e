"""Sign-in by a client certificate that no TLS connection shows: a statement signed by its owner.

The API server's proxies end the TLS connection of a client and drop its `Authorization`. A client
that has a certificate signs a JSON web token with the certificate's key, as RFC 7523 has it. The
token contains the certificate (`x5c`, RFC 7515), is meant for one audience, and soon expires. The
receiver accepts what the API server would: a certificate for clients by the cluster's authority.
Its common name is the user, its organizations are the groups.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import jwt
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from suggest.errors import InvalidArgument, Unauthenticated

LIFE_S = 60
_SKEW_S = 60  # by which the clocks of the two sides may differ
_MOST_CERTIFICATES = 5  # from the client's to the one that an authority has issued
_LONGEST = 32_768  # characters
_Key = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate is about, as Kubernetes reads it."""

    name: str
    groups: tuple[str, ...]


def signed(certificates: bytes, key: bytes, *, audience: str, now: datetime) -> str:
    """Return a statement for the audience that is valid for LIFE_S.

    Args:
        certificates: PEM: the client's certificate, and those between it and its authority.
        key: PEM, not encrypted.

    Raises:
        InvalidArgument: They cannot be read, or such a key cannot sign.
    """
    try:
        chain = x509.load_pem_x509_certificates(certificates)
        private = load_pem_private_key(key, password=None)
        _, algorithm = _key_of(chain[0])
    except (ValueError, TypeError) as error:
        raise InvalidArgument.at("client-key", f"cannot be used to sign in: {error}") from None
    ders = [base64.b64encode(each.public_bytes(Encoding.DER)).decode() for each in chain]
    claims = {"aud": audience, "iat": now, "exp": now + timedelta(seconds=LIFE_S)}
    # The types of the two libraries differ in keys that `_key_of` has refused.
    return jwt.encode(claims, private, algorithm, {"x5c": ders})  # type: ignore[arg-type]


def verified(statement: str, authorities: bytes, *, audience: str, now: datetime) -> Subject:
    """Return who has signed the statement.

    authorities: PEM, the certificates of the cluster's authorities for clients.

    Raises:
        Unauthenticated: Nobody whom the authorities know has signed it for the audience just now.
    """
    if len(statement) > _LONGEST:
        raise Unauthenticated(f"the signed statement has more than {_LONGEST} characters")
    try:
        chain = _chain(statement)
        key, algorithm = _key_of(chain[0])
        _check_issued(chain, x509.load_pem_x509_certificates(authorities), now)
        _check_for_clients(chain[0])
        claims = jwt.decode(
            statement,
            key,
            # By the key alone: never what the statement asks for.
            algorithms=[algorithm],
            audience=audience,
            options={"require": ["aud", "iat", "exp"], "verify_exp": False, "verify_iat": False},
        )
        _check_time(claims["iat"], claims["exp"], now)
    except (jwt.PyJWTError, InvalidSignature, ValueError, TypeError) as error:
        raise Unauthenticated(f"the client certificate is not accepted: {error}") from None
    return _subject(chain[0])


def _chain(statement: str) -> list[x509.Certificate]:
    ders = jwt.get_unverified_header(statement).get("x5c")
    if not isinstance(ders, list) or not 0 < len(ders) <= _MOST_CERTIFICATES:
        raise ValueError(f"x5c must be a list of 1 to {_MOST_CERTIFICATES} certificates")
    try:
        return [
            x509.load_der_x509_certificate(base64.b64decode(der, validate=True)) for der in ders
        ]
    except binascii.Error as error:
        raise ValueError(f"x5c: {error}") from None


def _check_issued(
    chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate], now: datetime
) -> None:
    """Check that an authority has issued the first certificate, by way of the following ones.

    The verifier of `cryptography` refuses version 1 of X.509, in which `openssl x509 -req` writes
    certificates, and which the API server accepts.
    """
    for position, certificate in enumerate(chain):
        _check_valid(certificate, now)
        if position and not _may_issue(certificate, between=position - 1):
            raise ValueError(f"{_named(certificate)} must not issue certificates")
        for authority in authorities:
            if _is_issued_by(certificate, authority):
                _check_valid(authority, now)
                return
        following = chain[position + 1 : position + 2]
        if following and not _is_issued_by(certificate, following[0]):
            raise ValueError(f"{_named(certificate)} is not by {_named(following[0])}")
    raise ValueError("it is not by the cluster's authority for clients")


def _is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _check_valid(certificate: x509.Certificate, now: datetime) -> None:
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise ValueError(
            f"{_named(certificate)} is valid from {certificate.not_valid_before_utc} to "
            f"{certificate.not_valid_after_utc}"
        )


def _may_issue(certificate: x509.Certificate, *, between: int) -> bool:
    """Return whether it is an authority's, with so many other authorities below it."""
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return False
    is_short_enough = basic.path_length is None or basic.path_length >= between
    return basic.ca and usage.key_cert_sign and is_short_enough


def _check_for_clients(certificate: x509.Certificate) -> None:
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return  # for any purpose
    if not {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & {
        *usages
    }:
        raise ValueError("it is not for clients")


def _check_time(issued: object, expires: object, now: datetime) -> None:
    if not isinstance(issued, int) or not isinstance(expires, int):
        raise ValueError("iat and exp must be whole seconds")
    now_s = now.timestamp()
    if not issued - _SKEW_S <= now_s <= expires + _SKEW_S:
        raise ValueError("the signed statement has expired, or the clocks differ")
    if expires - issued > LIFE_S:
        raise ValueError(f"the signed statement is valid for more than {LIFE_S} s")


def _key_of(certificate: x509.Certificate) -> tuple[_Key, str]:
    """Return the certificate's key, and the algorithm of signatures with it. Raises ValueError."""
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey):
        return key, "RS256"
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return key, _CURVES[key.curve.name]
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key, "EdDSA"
    raise ValueError("the key of the certificate must be RSA, P-256, P-384, P-521 or Ed25519")


def _subject(certificate: x509.Certificate) -> Subject:
    names = [
        str(each.value) for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    ]
    if len(names) != 1 or not names[0]:
        raise Unauthenticated("the client certificate must have one common name, its user")
    organizations = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return Subject(names[0], tuple(str(each.value) for each in organizations))


def _named(certificate: x509.Certificate) -> str:
    return f"the certificate {certificate.subject.rfc4514_string()!r}"
