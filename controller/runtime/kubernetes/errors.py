"""Errors between this program and an API server, in sentences for people, and what each means to a run.

No I/O and no `kubernetes` package.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from controller.runtime.protocol import RuntimeLost

_REFUSED = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)
_NOT_CALLED = re.compile(r'failed calling webhook "(?P<webhook>[^"]+)".*: (?P<why>[^:]+)$', re.DOTALL)
ANONYMOUS = "system:anonymous"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a user may not do, as the server's authorizer said it. namespace: "" at the scope of the cluster."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str


class ApiError(Exception):
    """The server answered with an error. `reason` is its word for it: AlreadyExists, NotFound, Forbidden, Expired, …"""

    def __init__(self, status: int, reason: str, message: str, *, retry_after_s: float | None = None,
                 details: dict[str, Any] | None = None) -> None:  # fmt: skip
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.details = details or {}

    @property
    def refusal(self) -> Refusal | None:
        """Who may not do what, if that is why; None for other errors, also for a 403 of a quota or an admission."""
        found = _REFUSED.search(self.message) if self.status == 403 else None
        return Refusal(**found.groupdict(default="")) if found else None


class Unreachable(RuntimeLost):
    """No answer from the server: refused, not found, not trusted (TLS), timed out, or broken off."""


class Silent(Unreachable):
    """Connected, but nothing comes."""


class NotAllowed(Exception):
    """The server does not know who we are, or the kubeconfig has nothing to say who we are."""


class BadKubeconfig(Exception):
    """There is no kubeconfig, it cannot be read, or it has no such context."""


def rule_for(error: ApiError) -> str:
    """The line that a Role (or, without a namespace, a ClusterRole) lacks; "" if a rule would not help."""
    refusal = error.refusal
    if refusal is None:
        return ""
    group = refusal.group or '""'
    return f"- {{apiGroups: [{group}], resources: [{refusal.resource}], verbs: [{refusal.verb}]}}"


def silent_webhook(error: ApiError) -> str:
    """Why nobody could judge an object; "" if somebody did. Not the object's fault, and it passes."""
    found = _NOT_CALLED.search(error.message) if error.status >= 500 else None
    return f"webhook {found['webhook']} does not answer ({found['why']}); is its operator running?" if found else ""


_SETTLE_S = 5.0  # a server that has just started may refuse everything before it has read its own rules
_ANEW_S = 30.0  # refusals so far apart have nothing to do with each other


class ErrorClassifier:
    """What an error of the cluster means to a run: wait and ask again, or a person must act."""

    def __init__(self) -> None:
        self._barred: dict[str, tuple[float, float]] = {}  # what is not allowed, since when, and when it was last tried

    def classify(self, error: Exception, *, patient: bool) -> Exception:
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
