"""Errors between this program and an API server, in sentences for people,
and what each means to a run.

No I/O and no `kubernetes` package.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from controller.core.attempt import RuntimeLost
from suggest.errors import InvalidArgument, PermissionDenied, Problem

_REFUSED = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group '
    r'"(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)
_NOT_CALLED = re.compile(
    r'failed calling webhook "(?P<webhook>[^"]+)".*: (?P<why>[^:]+)$', re.DOTALL
)
ANONYMOUS = "system:anonymous"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the server's authorizer denied, and to whom; at cluster scope, `namespace` is ""."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str


class ApiError(Exception):
    """An error response of the server, which chooses the class of the error, as with OSError.

    `reason` is the one of its Status: AlreadyExists, NotFound, Forbidden, …
    """

    def __new__(
        cls, status: int, *_: object, details: dict[str, Any] | None = None, **__: object
    ) -> ApiError:
        names_object = bool((details or {}).get("name"))
        chosen = NotServed if status == 404 and not names_object else _BY_STATUS.get(status, cls)
        return super().__new__(chosen)

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        retry_after_s: float | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s
        self.details = details or {}

    @property
    def is_of_server(self) -> bool:
        """Return whether the server is in trouble or busy: the same request may succeed later."""
        return self.status == 429 or self.status >= 500

    @property
    def refusal(self) -> Refusal | None:
        """Return what RBAC denied; None for other errors, also a 403 of a quota or of admission."""
        match = _REFUSED.search(self.message) if isinstance(self, ApiForbidden) else None
        return Refusal(**match.groupdict(default="")) if match else None


class ApiForbidden(ApiError):
    """403: a right is missing, or a quota or admission refuses."""


class ApiNotFound(ApiError):
    """404: there is no such object, kind or namespace."""


class NotServed(ApiNotFound):
    """404 without an object: the server does not serve the kind, perhaps because it restarts."""


class ApiConflict(ApiError):
    """409: the name is taken, or the object has changed meanwhile."""


_BY_STATUS: dict[int, type[ApiError]] = {403: ApiForbidden, 404: ApiNotFound, 409: ApiConflict}


class BackendError(Exception):
    """An error that a server behind the API server's proxy has sent, as Connect has errors.

    `code` is a word, such as not_found.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Unreachable(RuntimeLost):
    """No server response: connection refused or broken, host unknown, TLS failure, or timeout."""


class NotResponding(Unreachable):
    """The connection is open, but the server sends nothing."""


class AccessDenied(PermissionDenied):
    """The credentials are missing, not accepted, or lack a right; a person must act."""


class BadKubeconfig(InvalidArgument):
    """The kubeconfig is missing, cannot be read, or does not have the context."""

    def __init__(self, message: str) -> None:
        super().__init__([Problem("", message)])


def rule_for(error: ApiError) -> str:
    """Return the missing line of a Role, or of a ClusterRole; "" if a rule would not help."""
    refusal = error.refusal
    if refusal is None:
        return ""
    return line_of_role(refusal.group, refusal.resource, [refusal.verb])


def line_of_role(group: str, resource: str, verbs: Iterable[str]) -> str:
    """Return the line of a Role that grants the verbs."""
    api_group = group or '""'
    return f"- {{apiGroups: [{api_group}], resources: [{resource}], verbs: [{', '.join(verbs)}]}}"


def unavailable_webhook(error: ApiError) -> str:
    """Describe the admission webhook that does not respond at present; "" for other errors."""
    match = _NOT_CALLED.search(error.message) if error.status >= 500 else None
    if match:
        return (
            f"webhook {match['webhook']} does not answer ({match['why']}); is its operator running?"
        )
    return ""


# a server that has just started may refuse everything before it has read its own rules
_SETTLE_S = 5.0
# The same for a lease, without whose right a controller ends, or no longer sees who holds it.
LEASE_SETTLE_S = 30.0
_UNRELATED_S = 30.0  # refusals further apart than this have separate causes


class ErrorClassifier:
    """Decides what an error of the cluster means to a run: retry later, or a person must act."""

    def __init__(self, *, settle_s: float = _SETTLE_S) -> None:
        self._settle_s = settle_s
        # by missing rule: first and latest refusal
        self._refused: dict[str, tuple[float, float]] = {}

    def classify(self, error: Exception, *, patient: bool) -> Exception:
        """Return AccessDenied if a person must act, or RuntimeLost if a retry may help.

        Running trials continue while the person acts. With `patient`, a refusal that began less
        than settle_s ago is still RuntimeLost: it may be lifted in a moment.
        """
        rule = rule_for(error) if isinstance(error, ApiError) else ""
        if not rule and not isinstance(error, AccessDenied):
            return RuntimeLost(
                f"the cluster refuses: {error}" if isinstance(error, ApiError) else str(error)
            )
        denied = AccessDenied(f"{error}; the missing rule: {rule}" if rule else str(error))
        now_s = time.monotonic()
        since_s, last_s = self._refused.get(rule, (now_s, now_s))
        if now_s - last_s > _UNRELATED_S:
            since_s = now_s
        self._refused[rule] = since_s, now_s
        return RuntimeLost(str(denied)) if patient and now_s - since_s < self._settle_s else denied
