"""One study in memory: what it proposes, what it knows of each trial, which trials should stop. No I/O."""

from suggest.engine.engine import Engine, Proposal, Proposed, check_spec

__all__ = ["Engine", "Proposal", "Proposed", "check_spec"]
