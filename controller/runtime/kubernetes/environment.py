"""The environment of a trial's container. Pure."""

from __future__ import annotations

import re
from typing import Any

from controller.runtime.kubernetes.labels import workers_of
from controller.runtime.kubernetes.workers import rendezvous
from controller.runtime.protocol import ClusterPart, Launch

Raw = dict[str, Any]

_EXPANDED = re.compile(r"\$(?=[$(])|(?<=\$)\$")


def as_is(text: str) -> str:
    """Kubernetes would put variables in place of $(NAME); here, as on a laptop, nobody but the program reads it."""
    return _EXPANDED.sub("$$", text)


def env_of(launch: Launch, part: ClusterPart) -> list[Raw]:
    """The ranks' meeting point, then what the file sets and who the trial is, then secrets."""
    env: dict[str, Raw] = rendezvous(launch.name, workers_of(part), port=launch.env.get("MASTER_PORT", ""))
    env |= {name: {"value": as_is(value)} for name, value in launch.env.items()}
    env |= {
        name: {"valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}}
        for name, secret in part.secrets.items()
    }
    return [{"name": name, **source} for name, source in env.items()]
