"""The audit log: a line in `suggest.audit` for each call that would change something, refused or not.

Reads are not recorded. The line is written where the work is done, so it is right even if the caller has gone
meanwhile. Denied calls could fill a disk: per peer without a token, and per method that a token does not open, one
line a minute is written, with the number of those left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from suggest.errors import PermissionDenied, TunerError, Unauthenticated
from suggest.events import line
from suggest.server.access.caller import host_of, name
from suggest.server.rpcs import NO_RESOURCE, Resource

log = logging.getLogger("suggest.audit")


EVERY_S = 60.0
_MANY = 10_000  # peers and tokens, after which all that is not known yet is one


class DenialLog:
    """Which denied calls are written. Belongs to the server's loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: dict[str, tuple[float, int]] = {}  # when one was written last, and how many were not since

    def take(self, key: str) -> int | None:
        """How many like it were not written since one was; None: nor is this one."""
        now = self._now()
        if key not in self._since and len(self._since) >= _MANY:
            key = "others"
        at, left_out = self._since.get(key, (now - EVERY_S, 0))
        if now - at < EVERY_S:
            self._since[key] = at, left_out + 1
            return None
        self._since[key] = now, 0
        return left_out

    def over(self) -> Iterator[tuple[str, int]]:
        """Those of which none has come for a minute, with the number that was not written; they are forgotten."""
        now = self._now()
        for key, (at, left_out) in list(self._since.items()):
            if now - at >= EVERY_S:
                del self._since[key]
                if left_out:
                    yield key, left_out


class AuditEntry:
    """Of one call. `method`: its bare name. `peer`: gRPC's word for where it comes from."""

    def __init__(self, method: str, peer: str) -> None:
        self.begun = False
        self.resource = NO_RESOURCE
        self.request: Any = None  # not read yet
        self._method = method
        self._host = host_of(peer)

    def run(self, behaviour: Callable[[Any, Any], Any], request: Any, resource: Resource) -> Any:
        self.begun = True
        try:
            reply = behaviour(request, resource)
        except TunerError as e:
            self._write("failed", e.reason)
            raise
        except BaseException:
            self._write("failed", "INTERNAL")
            raise
        self._write("allowed")
        return reply

    def refused(self, error: TunerError, denials: DenialLog) -> None:
        """Before the work was begun; else it is written already."""
        if self.begun:
            return
        if not denied(error):
            self._write("failed", error.reason)
        elif (left_out := denials.take(self.denial_key)) is not None:
            self._write("denied", error.reason, left_out)

    @property
    def denial_key(self) -> str:
        """Denied calls with the same one are written once a minute."""
        return f"{self._host} {name()} {self._method}" if name() else self._host

    def _write(self, decision: str, reason: str = "", left_out: int = 0) -> None:
        known = self.request is not None
        log.info(
            "%s",
            line(
                "change",
                time=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                who=name() or self._host,
                method=self._method,
                resource=_changed(self.resource, self.request) if known else "",
                request=getattr(self.request, "request_id", "") if known else "",
                decision=decision,
                reason=reason,
                peer=self._host,
                suppressed=left_out or None,
            ),
        )


def denied(error: TunerError) -> bool:
    return isinstance(error, Unauthenticated | PermissionDenied)


def recorded() -> bool:
    return log.isEnabledFor(logging.INFO)


def _changed(resource: Resource, request: Any) -> str:
    """The name of the study or trial that is changed, or of the study that is to be created."""
    made = getattr(request, "study_id", "")
    return resource.text + (f"/studies/{made}" if made else "")
