"""Certificates for servers in tests, by the openssl command,
from the authority that test clusters use too.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cluster.pki import Authority, Certificate

__all__ = ["Authority", "Certificate", "replace"]


def replace(old: Certificate, new: Certificate) -> None:
    """Replace the files of `old` by those of `new`, each atomically, one after the other."""
    for source, target in ((new.key, old.key), (new.certificate, old.certificate)):
        beside = Path(f"{target}.new")
        shutil.copy(source, beside)
        beside.replace(target)
