"""The answers to the probes: `/healthz`, and `/readyz`, which is ready as a standby that reads the
lease, or as the leader with working watches and a store.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.operator.leadership import Leadership
from suggest.endpoint import PlainReply

_OK = PlainReply("200 OK", b"ok\n")


class Health:
    """Whether this process is ready."""

    def __init__(self, leadership: Leadership) -> None:
        # Returns what keeps the leader from its work at present.
        self.leader_trouble: Callable[[], str] = lambda: ""
        self._leadership = leadership

    def trouble(self) -> str:
        """Return why the process is not ready; "" if it is."""
        if self._leadership.lost is not None:
            return str(self._leadership.lost)
        return self._leadership.trouble or self.leader_trouble()

    def answer(self, path: str, _accept: str) -> PlainReply:
        match path:
            case "/healthz":
                return _OK
            case "/readyz":
                trouble = self.trouble()
                unavailable = PlainReply("503 Service Unavailable", f"{trouble}\n".encode())
                return unavailable if trouble else _OK
        return PlainReply("404 Not Found", b"there are /healthz and /readyz\n")
