"""What an error of the cluster means to a run: wait and ask again, or a person must act."""

from __future__ import annotations

import time

from controller.runtime.kubernetes.errors import ApiError, NotAllowed, rule_for
from controller.runtime.protocol import RuntimeLost

_SETTLE_S = 5.0  # a server that has just started may refuse everything before it has read its own rules
_ANEW_S = 30.0  # refusals so far apart have nothing to do with each other


class Meaning:
    def __init__(self) -> None:
        self._barred: dict[str, tuple[float, float]] = {}  # what is not allowed, since when, and when it was last tried

    def of(self, error: Exception, *, patient: bool) -> Exception:
        """NotAllowed (a person must act; what runs goes on), or RuntimeLost: asking again later may help. patient: what
        has just begun to be refused may be allowed again in a moment."""
        rule = rule_for(error) if isinstance(error, ApiError) else ""
        if not rule and not isinstance(error, NotAllowed):
            return RuntimeLost(f"the cluster refuses: {error}" if isinstance(error, ApiError) else str(error))
        barred = NotAllowed(f"{error}; the missing rule: {rule}" if rule else str(error))
        now_s = time.monotonic()
        since_s, last_s = self._barred.get(rule, (now_s, now_s))
        if now_s - last_s > _ANEW_S:
            since_s = now_s
        self._barred[rule] = since_s, now_s
        return RuntimeLost(str(barred)) if patient and now_s - since_s < _SETTLE_S else barred
