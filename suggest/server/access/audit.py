"""The audit log: a line in the logger `suggest.audit` for each call
that would change something, refused or not.

Reads are not recorded. The line is written where the work is done, so it is correct
even if the client has disconnected meanwhile. Because denied calls could fill a disk,
one line a minute is written per peer without a token, and per method that a token does
not allow, with the number of calls left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from suggest.errors import PermissionDenied, TunerError, Unauthenticated
from suggest.events import line
from suggest.server.access.caller import CALLER, host_of
from suggest.server.rpcs import NO_RESOURCE, Resource

log = logging.getLogger("suggest.audit")


EVERY_S = 60.0
_MANY = 10_000  # keys to remember; all further ones are counted together


class DenialLog:
    """Decides which denied calls are written. Belongs to the server's loop."""

    def __init__(self) -> None:
        # by key: (time of the last line, calls left out since)
        self._since: dict[str, tuple[float, int]] = {}

    def take(self, key: str) -> int | None:
        """Return how many calls with this key were left out since the last line.

        Return None to also leave out this one.
        """
        now = time.monotonic()
        if key not in self._since and len(self._since) >= _MANY:
            key = "others"
        at, left_out = self._since.get(key, (now - EVERY_S, 0))
        if now - at < EVERY_S:
            self._since[key] = at, left_out + 1
            return None
        self._since[key] = now, 0
        return left_out

    def over(self) -> Iterator[tuple[str, int]]:
        """Yield and forget keys not denied for a minute, with the number of calls left out."""
        now = time.monotonic()
        for key, (at, left_out) in list(self._since.items()):
            if now - at >= EVERY_S:
                del self._since[key]
                if left_out:
                    yield key, left_out


class AuditEntry:
    """The audit entry of one call.

    `method` is the bare name, `peer` is gRPC's name of the client's address.
    """

    def __init__(self, method: str, peer: str) -> None:
        self.begun = False
        self.resource = NO_RESOURCE
        self.request: object = None  # until the request was read
        self._method = method
        self._host = host_of(peer)

    def run(self, behavior: Callable[[Any, Any], Any], request: object, resource: Resource) -> Any:
        self.begun = True
        try:
            reply = behavior(request, resource)
        except TunerError as e:
            self._write("failed", e.reason)
            raise
        except BaseException:
            self._write("failed", "INTERNAL")
            raise
        self._write("allowed")
        return reply

    def refused(self, error: TunerError, denials: DenialLog) -> None:
        """Write that the call was refused.

        If the work had begun, `run` has written the entry.
        """
        if self.begun:
            return
        if not denied(error):
            self._write("failed", error.reason)
        elif (left_out := denials.take(self.denial_key)) is not None:
            self._write("denied", error.reason, left_out)

    @property
    def denial_key(self) -> str:
        """Return the key of a denied call; calls with the same key are written once a minute."""
        caller = CALLER.get()
        return f"{self._host} {caller} {self._method}" if caller else self._host

    def _write(self, decision: str, reason: str = "", left_out: int = 0) -> None:
        has_request = self.request is not None
        log.info(
            "%s",
            line(
                "change",
                time=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                who=CALLER.get() or self._host,
                method=self._method,
                resource=_changed(self.resource, self.request) if has_request else "",
                request=getattr(self.request, "request_id", "") if has_request else "",
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


def _changed(resource: Resource, request: object) -> str:
    """Return the name of the study or trial that the call changes or creates."""
    study_id = getattr(request, "study_id", "")
    return resource.text + (f"/studies/{study_id}" if study_id else "")
