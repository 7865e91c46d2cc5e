"""Certificates and keys of a test cluster, made by the openssl command;
no other cluster accepts them.
"""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# An operator that rotates its certificates replaces those that end within ninety days.
LASTS = ("-nodes", "-days", "365")
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", *LASTS)


@dataclass(frozen=True, slots=True)
class Certificate:
    certificate: Path
    key: Path


class Authority:
    """A CA that signs all certificates in a folder.

    `hosts`: names in its certificate. `rsa`: its key in PKCS #1.
    """

    def __init__(self, folder: Path, hosts: Sequence[str] = (), *, rsa: bool = False) -> None:
        self._folder = folder
        self.own = Certificate(folder / "ca.crt", folder / "ca.key")
        new_key = ("-newkey", "rsa:2048", *LASTS) if rsa else NEW_KEY
        extensions = ["keyUsage=critical,keyCertSign,cRLSign"]
        extensions += [_names(hosts)] if hosts else []
        _openssl(
            "req",
            "-x509",
            *new_key,
            "-subj",
            "/CN=test-cluster",
            *_added(extensions),
            *_to(self.own),
        )
        if rsa:
            _openssl("rsa", "-traditional", "-in", str(self.own.key), "-out", str(self.own.key))

    def issue(self, name: str, subject: str, hosts: Sequence[str] = ()) -> Certificate:
        """`hosts`: the names and addresses of a server; without any it is a client certificate."""
        issued = Certificate(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        extensions = [
            "basicConstraints=critical,CA:FALSE",
            "extendedKeyUsage=serverAuth,clientAuth",
        ]
        extensions += [_names(hosts)] if hosts else []
        signed_by = ("-CA", str(self.own.certificate), "-CAkey", str(self.own.key))
        _openssl(
            "req",
            "-x509",
            *signed_by,
            *NEW_KEY,
            "-subj",
            subject,
            *_added(extensions),
            *_to(issued),
        )
        return issued

    def server_context(self) -> ssl.SSLContext:
        """Return the TLS context of a server with a new certificate for api.example and 127.0.0.1."""
        issued = self.issue("server", "/CN=server", ["api.example", "127.0.0.1"])
        context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cafile=str(self.own.certificate)
        )
        context.load_cert_chain(issued.certificate, issued.key)
        return context


def _names(hosts: Sequence[str]) -> str:
    kinds = ("IP" if host.replace(".", "").isdigit() else "DNS" for host in hosts)
    return "subjectAltName=" + ",".join(
        f"{kind}:{host}" for kind, host in zip(kinds, hosts, strict=True)
    )


def _added(extensions: Sequence[str]) -> list[str]:
    return [word for extension in extensions for word in ("-addext", extension)]


def _to(made: Certificate) -> tuple[str, ...]:
    return ("-out", str(made.certificate), "-keyout", str(made.key))


def _openssl(*words: str) -> None:
    done = subprocess.run(
        ["openssl", *words], capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"openssl {words[0]}: {done.stderr.strip()}")
