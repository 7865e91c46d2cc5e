"""The certificate with which the controller serves if the installation has none.

It is signed by itself, and kept in the state directory. The API server's proxy and
`kubectl port-forward` do not verify it; pods can, with a copy of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from suggest.whole_file import PRIVATE, replace_file

_LASTS = timedelta(days=3650)
_AT_LEAST = timedelta(days=365)
_LOOPBACK = "127.0.0.1"


def own_certificate(folder: Path, hosts: Sequence[str], now: datetime) -> tuple[Path, Path]:
    """Return the files of the certificate and its key, which are made if there are none.

    They are also made if the certificate is for other hosts, or ends soon.
    """
    certificate, key = folder / "tls.crt", folder / "tls.key"
    if not (key.exists() and _is_good(certificate, hosts, now)):
        folder.mkdir(mode=0o700, exist_ok=True)
        private = ec.generate_private_key(ec.SECP256R1())
        text = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        replace_file(key, text, mode=PRIVATE)
        signed = _signed(private, hosts, now).public_bytes(Encoding.PEM)
        replace_file(certificate, signed, mode=PRIVATE)
    return certificate, key


def _is_good(file: Path, hosts: Sequence[str], now: datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    is_for_hosts = names == x509.SubjectAlternativeName(_names(hosts))
    return is_for_hosts and certificate.not_valid_after_utc - now > _AT_LEAST


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
    return [*names, x509.IPAddress(ip_address(_LOOPBACK))]


def _signed(
    key: ec.EllipticCurvePrivateKey, hosts: Sequence[str], now: datetime
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tuner")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    extensions: Sequence[tuple[x509.ExtensionType, bool]] = [
        (x509.SubjectAlternativeName(_names(hosts)), False),
        # Clients take it as their authority.
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (usage, True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
    ]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of other machines may be behind.
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _LASTS)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(key, SHA256())
