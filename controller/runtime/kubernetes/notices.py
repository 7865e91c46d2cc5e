"""Rights that we lack and can do without: each is logged once, with what is not shown for want of it."""

from __future__ import annotations

import logging

from controller.runtime.kubernetes.errors import ApiError, rule_for

_log = logging.getLogger(__name__)


class Notices:
    """Of one connection."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def denied(self, error: ApiError, *, without: str) -> None:
        rule = rule_for(error)
        said = f"not shown: {without}" + (f"; the missing rule: {rule}" if rule else f": {error}")
        if said not in self._said:
            self._said.add(said)
            _log.warning("%s", said)
