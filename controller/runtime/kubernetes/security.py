"""What a trial may not do: the restricted profile of the pod security standards, which any namespace accepts. Pure.

Who needs more writes a `template`; the namespace's own policy decides whether that may run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Raw = dict[str, Any]

_GROUP = 65532  # owns what a claim for checkpoints holds; any number does, as long as it stays the same


def pod_security(cluster: Mapping[str, object]) -> Raw:
    """The user is the image's own, as long as it is not root."""
    context: Raw = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if "checkpoints" in cluster:
        # A fresh disk belongs to root, and the image's user could not write on it.
        context |= {"fsGroup": _GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def container_security(cluster: Mapping[str, object]) -> Raw:
    """A trial writes to its volumes only, unless `readOnlyRootFilesystem: false` says otherwise."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": cluster.get("readOnlyRootFilesystem", True),
    }
