"""How much of the quotas of a namespace is used, as its cluster says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """How much of a resource is used, of what a quota allows, as the cluster writes the amounts."""

    resource: str
    used: str
    allowed: str
    quota: str
    is_gpu: bool

    def __str__(self) -> str:
        return f"{self.used} of {self.allowed} {self.resource} used (quota {self.quota})"


@dataclass(frozen=True, slots=True)
class QuotaReport:
    """A namespace's quotas for GPUs, CPU and memory; None if unknown, and `trouble` says why."""

    quotas: Sequence[QuotaUse] | None
    trouble: str = ""
