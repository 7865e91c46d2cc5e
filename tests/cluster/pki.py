"""Certificates and keys of a test cluster, by the openssl command; made anew for each, and worth nothing elsewhere."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")


@dataclass(frozen=True, slots=True)
class Certificate:
    certificate: Path
    key: Path


class Authority:
    """One that signs all of a cluster's certificates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.own = Certificate(folder / "ca.crt", folder / "ca.key")
        _openssl("req", "-x509", *NEW_KEY, "-subj", "/CN=test-cluster", *_to(self.own))

    def issue(self, name: str, subject: str, hosts: Sequence[str] = ()) -> Certificate:
        """`hosts`: the names and addresses it serves; without any it is a client's."""
        issued = Certificate(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        kinds = ("IP" if host.replace(".", "").isdigit() else "DNS" for host in hosts)
        names = ",".join(f"{kind}:{host}" for kind, host in zip(kinds, hosts, strict=True))
        extensions = ["basicConstraints=critical,CA:FALSE", "extendedKeyUsage=serverAuth,clientAuth"]
        extensions += [f"subjectAltName={names}"] if names else []
        signed_by = ("-CA", str(self.own.certificate), "-CAkey", str(self.own.key))
        added = [word for extension in extensions for word in ("-addext", extension)]
        _openssl("req", "-x509", *signed_by, *NEW_KEY, "-subj", subject, *added, *_to(issued))
        return issued


def _to(made: Certificate) -> tuple[str, ...]:
    return ("-out", str(made.certificate), "-keyout", str(made.key))


def _openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {words[0]}: {done.stderr.strip()}")
