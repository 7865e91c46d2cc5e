"""The record of who changed what: a line in `suggest.audit` for each call that would change something, refused or not.

Reading is not recorded. Written where the work is done, so that it is true of a call whose caller has gone meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from suggest.access.verbs import NEEDS, resource
from suggest.caller import host_of, name
from suggest.errors import PermissionDenied, TunerError, Unauthenticated
from suggest.events import line

log = logging.getLogger("suggest.audit")


class Entry:
    """Of one call. `method`: its bare name. `peer`: gRPC's word for where it comes from."""

    def __init__(self, method: str, peer: str) -> None:
        self.begun = False
        self.request: Any = None  # unread so far
        self._method = method
        self._host = host_of(peer)

    def run(self, behaviour: Callable[[Any, Any], Any], request: Any) -> Any:
        self.begun = True
        try:
            reply = behaviour(request, None)
        except TunerError as e:
            self._write("failed", e.reason)
            raise
        except BaseException:
            self._write("failed", "INTERNAL")
            raise
        self._write("allowed")
        return reply

    def refused(self, error: TunerError) -> None:
        """Before the work was begun; else it is written already."""
        if not self.begun:
            denied = isinstance(error, Unauthenticated | PermissionDenied)
            self._write("denied" if denied else "failed", error.reason)

    def _write(self, decision: str, reason: str = "") -> None:
        known = self.request is not None
        log.info(
            "%s",
            line(
                "change",
                time=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                who=name() or self._host,
                method=self._method,
                resource=_resource(self._method, self.request) if known else "",
                request=getattr(self.request, "request_id", "") if known else "",
                decision=decision,
                reason=reason,
                peer=self._host,
            ),
        )


def recorded() -> bool:
    return log.isEnabledFor(logging.INFO)


def _resource(method: str, request: Any) -> str:
    """What is changed: a study or a trial, by its name; one that shall be made, by the name that it shall have."""
    names = [resource(request, need) for need in NEEDS.get(method, ()) if need.field]
    made = getattr(request, "study_id", "")
    return (names[0] if names else "") + (f"/studies/{made}" if made else "")
