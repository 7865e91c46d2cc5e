"""The retry policy: how long to wait before something that failed is tried again. Neither sleeps nor counts."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off: `first_s`, doubled after each failure, at most `longest_s`.

    jitter: the share of each pause that is random, in 0 to 1. Where many clients lose the same server at the same
    moment, a jitter of 0.5 keeps them from returning together.
    """

    first_s: float
    longest_s: float
    jitter: float = 0.0

    def pause_s(self, failures: int, *, longest_s: float | None = None) -> float:
        """The pause after a failure that `failures` others came before. longest_s: a shorter limit for this pause."""
        limit_s = self.longest_s if longest_s is None else longest_s
        pause_s = min(self.first_s * 2.0 ** min(failures, 30), limit_s)
        return pause_s * random.uniform(1 - self.jitter, 1) if self.jitter else pause_s
