"""The retry policy: how long to wait before a retry. This module neither sleeps nor counts."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off: `first_s`, doubled after each failure, at most `longest_s`.

    jitter: the random share of each pause, from 0 to 1. If many clients lose the same server at the
    same moment, a jitter of 0.5 keeps them from returning together.
    """

    first_s: float
    longest_s: float
    jitter: float = 0.0

    def pause_s(self, failures: int, *, longest_s: float | None = None) -> float:
        """Return the pause after a failure that follows `failures` others.

        `longest_s` may limit this pause further.
        """
        limit_s = self.longest_s if longest_s is None else longest_s
        pause_s = min(self.first_s * 2.0 ** min(failures, 30), limit_s)
        return pause_s * random.uniform(1 - self.jitter, 1) if self.jitter else pause_s
