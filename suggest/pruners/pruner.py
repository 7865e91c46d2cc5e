"""What a pruner is: it is shown the curves of succeeded trials, and judges running ones against them.

Like a sampler it is a function of what it was shown, in whatever order; it reads no clock and draws nothing.
"""

from __future__ import annotations

from typing import Protocol

from suggest.curves import Curve
from suggest.trial import StopAdvice


class Pruner(Protocol):
    """One study's pruner. Not thread-safe: its owner holds the study's lock."""

    def add_peer(self, curve: Curve) -> None:
        """A trial has succeeded with this curve, which will not change."""
        ...

    def judge(self, curve: Curve, *, before: int | None) -> StopAdvice:
        """Should the trial with this curve (not empty) stop at its last step?

        `before` is the last step that was there before the latest report, None for the first: what lies between has
        not been judged.
        """
        ...
