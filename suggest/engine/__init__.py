"""One study in memory: what it proposes, what it knows of each trial, which trials should stop.

No I/O.
"""

from suggest.engine.engine import Draft, Engine, Met, Proposal, Proposed
from suggest.engine.spec_check import check_spec

__all__ = ["Draft", "Engine", "Met", "Proposal", "Proposed", "check_spec"]
