"""How a server is watched and kept within bounds, as its operator says it. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Oversight:
    """As the flags of `tuner serve` say it. `metrics_address`: HOST:PORT, or "" for none."""

    metrics_address: str = ""
